//! The retained rows of streams, as several processes keep them over restarts.
//!
//! The thread that writes the outputs to sinks (`sinks`) also puts them into the rings, in the one
//! order. So a row has the number that it has in one process. Now and then all rings are stored as
//! an object in the store of snapshots. The newest such object counts. A manifest has the number of
//! the next row of each stream at the place from which a start reads the outputs again. So each row
//! comes once: a start leaves out the rows that the object has already.
//!
//! An object has its format's version (u16), the number of streams (u32), and the streams, each with
//! its name, the number after its last row (u64), the number of its batches (u32), and the batches
//! with their columns. A checksum follows (u128).

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_core::encode::hash128;
use tidemill_core::wire::{
    put_batch, put_bytes, put_u16, put_u32, put_u64, take_batch, take_text, take_u16, take_u32,
    take_u64,
};
use tidemill_core::{Batch, Error, Kind, Result, Schema, StreamId};
use tidemill_durable::{name_taken, Store};
use tidemill_txn::program::Program;

use super::delivered::Delivered;
use crate::internal::RingFacts;

/// The version of the format.
const VERSION: u16 = 1;
/// The beginning of the objects' names. Without a hyphen they are no parts of a snapshot, which
/// snapshots would remove.
const PREFIX: &str = "retained.";

/// The objects of a run with its retained rows.
pub(super) struct RingStore {
    store: Arc<dyn Store>,
    /// The run, which is a different one after a start from scratch.
    run: u128,
    /// The newest object: the generation that has stored it, and its number there.
    newest: (u64, u64),
    /// The objects that do not count from the next one on.
    old: Vec<String>,
}

impl RingStore {
    /// Opens the objects of a run, and reads the newest.
    ///
    /// # Errors
    /// When the store fails, or the object is damaged.
    pub fn open(store: &Arc<dyn Store>, run: u128) -> Result<(RingStore, Vec<RingFacts>)> {
        let objects = store.list("")?.into_iter().map(|object| object.name);
        // Those of other runs come first.
        let known = objects.filter(|name| is_retained(name));
        let mut known: Vec<_> = known.map(|name| (id_of(&name, run), name)).collect();
        known.sort();
        let (mut newest, mut found) = ((0, 0), Vec::new());
        if let Some((Some(id), name)) = known.last() {
            newest = *id;
            // Another process may have stored newer rows meanwhile, and removed these.
            let bytes = store.get(name)?.unwrap_or_default();
            found = take(&bytes).ok_or_else(|| damaged(name))?;
        }
        let old = known.into_iter().map(|(_, name)| name).collect();
        Ok((RingStore { store: store.clone(), run, newest, old }, found))
    }

    /// Stores rows for a generation. From then on they count.
    ///
    /// # Errors
    /// When the store fails. The rows from before count then, or these.
    pub fn save(&mut self, generation: u64, rings: &[RingFacts]) -> Result<()> {
        let (last, number) = self.newest;
        // A name is not used again, even if it is unknown whether the object is there.
        self.newest = match generation > last {
            true => (generation, 0),
            false => (last, number + 1),
        };
        let name = name_of(self.run, self.newest);
        if !self.store.put(&name, &put(rings))? {
            return Err(name_taken(&name));
        }
        // An object that can't be removed now is removed after the next one.
        self.old.retain(|old| self.store.delete(old).is_err());
        self.old.push(name);
        Ok(())
    }
}

/// Whether an object of the store of snapshots has retained rows.
pub(super) fn is_retained(name: &str) -> bool {
    name.starts_with(PREFIX)
}

fn name_of(run: u128, (generation, number): (u64, u64)) -> String {
    format!("{PREFIX}{run:032x}.{generation}.{number}")
}

fn id_of(name: &str, run: u128) -> Option<(u64, u64)> {
    let (of, id) = name.strip_prefix(PREFIX)?.split_once('.')?;
    let (generation, number) = id.split_once('.')?;
    (of == format!("{run:032x}")).then_some((generation.parse().ok()?, number.parse().ok()?))
}

fn damaged(name: &str) -> Error {
    let what = format!("{name}, the retained rows of streams, is damaged or of a later version");
    Error::new(Kind::Io, what).help(
        "restore a backup: tidemill restore; or use the version of tidemill that has written it",
    )
}

fn put(rings: &[RingFacts]) -> Vec<u8> {
    let mut out = Vec::new();
    put_u16(VERSION, &mut out);
    put_u32(rings.len() as u32, &mut out);
    for RingFacts { stream, next, batches } in rings {
        put_bytes(stream.as_bytes(), &mut out);
        put_u64(*next, &mut out);
        put_u32(batches.len() as u32, &mut out);
        batches.iter().for_each(|batch| put_batch(batch, &mut out));
    }
    let hash = hash128(&out);
    out.extend_from_slice(&hash.to_le_bytes());
    out
}

fn take(bytes: &[u8]) -> Option<Vec<RingFacts>> {
    let (mut input, hash) = bytes.split_last_chunk::<16>()?;
    if hash128(input) != u128::from_le_bytes(*hash) || take_u16(&mut input)? != VERSION {
        return None;
    }
    let mut rings = Vec::new();
    for _ in 0..take_u32(&mut input)? {
        let (stream, next) = (take_text(&mut input)?.to_owned(), take_u64(&mut input)?);
        let mut batches = Vec::new();
        for _ in 0..take_u32(&mut input)? {
            batches.push(take_batch(&mut input)?);
        }
        let held: u64 = batches.iter().map(|batch: &Batch| batch.len() as u64).sum();
        (held <= next).then_some(())?;
        rings.push(RingFacts { stream, next, batches });
    }
    input.is_empty().then_some(rings)
}

/// The rings of a run, which receive its outputs.
pub(super) struct Retaining {
    delivered: Arc<Delivered>,
    saved: RingStore,
    /// The rows of streams that have no ring in this way to run.
    others: Vec<RingFacts>,
    /// The streams with rings, each with the number of the next row that is read.
    streams: BTreeMap<StreamId, (String, u64)>,
    /// Whether rows have come since the last time that the rings were stored.
    is_news: bool,
}

impl Retaining {
    /// Continues with the stored rows of a run. The outputs are read from the place where these
    /// numbers of rows come next.
    ///
    /// # Errors
    /// When the rows can't be read, or end before that place.
    pub fn open(
        delivered: Arc<Delivered>,
        program: &Program,
        (store, run): (&Arc<dyn Store>, u128),
        rows: &BTreeMap<String, u64>,
    ) -> Result<Retaining> {
        let (saved, found) = RingStore::open(store, run)?;
        let mut rings = delivered.rings.lock();
        let others = rings.restore(&found);
        let mut streams = BTreeMap::new();
        for (id, stream) in (0..).map(StreamId).zip(&program.streams) {
            let name = &*stream.spec.name;
            let Some(ring) = rings.by_name.get(name) else { continue };
            let at = rows.get(name).copied().unwrap_or(0);
            if ring.next() < at {
                let what = format!(
                    "the retained rows of stream {name} end at row {}, but the newest snapshot says that they have \
                     {at} rows",
                    ring.next()
                );
                return Err(Error::new(Kind::Io, what).help(
                    "an object of the snapshots whose name begins with 'retained.' is missing: restore it, or a \
                     backup (tidemill restore)",
                ));
            }
            streams.insert(id, (name.to_owned(), at));
        }
        drop(rings);
        Ok(Retaining { delivered, saved, others, streams, is_news: false })
    }

    /// The streams with rings, with their columns.
    pub fn wanted<'p>(
        &'p self,
        program: &'p Program,
    ) -> impl Iterator<Item = (StreamId, Arc<Schema>)> + 'p {
        let schema = |id: &StreamId| program.streams[id.index()].spec.schema.clone();
        self.streams.keys().map(move |id| (*id, schema(id)))
    }

    /// Takes outputs, in their order.
    pub fn take(&mut self, outputs: &[(StreamId, Batch)]) {
        let mut rings = self.delivered.rings.lock();
        let mut has_more = false;
        for (stream, batch) in outputs {
            let Some((name, at)) = self.streams.get_mut(stream) else { continue };
            let next = rings.by_name.get(name).map_or(0, |ring| ring.next());
            // The stored rows may be newer than the place where this reading has begun.
            let known = next.saturating_sub(*at).min(batch.len() as u64) as usize;
            *at += batch.len() as u64;
            if known < batch.len() {
                rings.push(name, &batch.slice(known, batch.len() - known));
                has_more = true;
            }
        }
        drop(rings);
        if has_more {
            self.is_news = true;
            self.delivered.has_more();
        }
    }

    /// Notes that all outputs of earlier runs have been taken.
    pub fn settle(&self) {
        self.delivered.settle();
    }

    /// Stores the rows for a generation, if there are new ones.
    ///
    /// # Errors
    /// When the store fails.
    pub fn save(&mut self, generation: u64) -> Result<()> {
        if self.is_news {
            let mut rings = self.delivered.rings.lock().facts();
            rings.extend(self.others.iter().cloned());
            self.saved.save(generation, &rings)?;
            self.is_news = false;
        }
        Ok(())
    }

    /// The number of the next row of each stream.
    pub fn rows(&self) -> BTreeMap<String, u64> {
        self.streams.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use tidemill_core::{Column, DataType};
    use tidemill_durable::MemoryStore;
    use tidemill_txn::program::Builder;

    use super::*;
    use crate::rings::{tests::batch, Rings};
    use crate::settings::Settings;

    /// Opens the rings of a stream `out`, of which the manifest says that this many rows come before
    /// the place to read from.
    fn open(store: &Arc<dyn Store>, run: u128, at: u64) -> Result<(Retaining, Arc<Delivered>)> {
        let mut b = Builder::new("app");
        b.emitted("out", vec![Column::new("x", DataType::Int)]);
        let program = b.finish().unwrap();
        let settings = Settings { tail_rows: 5, ..Settings::default() };
        let rings = Rings::on_several(&program, &settings, &[].into(), &[]);
        let delivered = Arc::new(Delivered::new(rings));
        let rows = [("out".to_owned(), at)].into();
        let retaining = Retaining::open(delivered.clone(), &program, (store, run), &rows)?;
        Ok((retaining, delivered))
    }

    fn rows(delivered: &Delivered) -> (u64, Vec<i64>) {
        let rings = delivered.rings.lock();
        let ring = &rings.by_name["out"];
        let rows = ring.rows(ring.first(), usize::MAX).into_iter();
        (ring.first(), rows.flat_map(|(_, batch)| batch.ints(0).unwrap().to_vec()).collect())
    }

    #[test]
    fn each_row_comes_once_wherever_a_start_reads_from() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let out = StreamId(0);
        let (mut first, delivered) = open(&store, 7, 0).unwrap();
        first.take(&[(out, batch(0, 3)), (out, batch(3, 1))]);
        first.save(2).unwrap();
        assert_eq!(first.rows(), [("out".to_owned(), 4)].into());
        first.take(&[(out, batch(4, 3))]);
        first.save(2).unwrap();
        assert_eq!(rows(&delivered), (2, vec![2, 3, 4, 5, 6]));
        assert_eq!(store.list("").unwrap().len(), 1, "earlier objects are removed");
        // The manifest is older than the rows, and a start reads some again.
        for at in [0, 4, 6, 7] {
            let (mut again, delivered) = open(&store, 7, at).unwrap();
            assert_eq!(rows(&delivered), (2, vec![2, 3, 4, 5, 6]));
            again.take(&[(out, batch(at as i64, 9 - at as i64))]);
            assert_eq!(rows(&delivered), (4, vec![4, 5, 6, 7, 8]), "from {at}");
        }
        // Rows of the generation that begins later count, and another run has none of these.
        let (mut later, _) = open(&store, 7, 7).unwrap();
        later.take(&[(out, batch(7, 1))]);
        later.save(3).unwrap();
        first.take(&[(out, batch(7, 1))]);
        first.save(2).unwrap();
        assert_eq!(open(&store, 7, 8).unwrap().0.saved.newest, (3, 0));
        assert_eq!(rows(&open(&store, 8, 0).unwrap().1), (0, vec![]));
    }

    #[test]
    fn missing_and_damaged_rows_are_named() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let refused = |at| open(&store, 7, at).map(drop).unwrap_err().to_string();
        assert!(refused(1).contains("'retained.' is missing"), "{}", refused(1));
        let (mut first, _) = open(&store, 7, 0).unwrap();
        first.take(&[(StreamId(0), batch(0, 3))]);
        first.save(1).unwrap();
        let name = store.list("").unwrap().remove(0).name;
        let bytes = store.get(&name).unwrap().unwrap();
        assert_eq!(take(&bytes).unwrap().len(), 1);
        assert!((0..bytes.len()).all(|cut| take(&bytes[..cut]).is_none()));
        store.delete(&name).unwrap();
        store.put(&name, &bytes[..bytes.len() - 1]).unwrap();
        assert!(refused(0).contains(&name), "{}", refused(0));
    }

    #[test]
    fn rows_of_other_streams_stay_as_they_are() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let other = RingFacts { stream: "pay".into(), next: 9, batches: vec![batch(5, 4)] };
        let (mut saved, _) = RingStore::open(&store, 7).unwrap();
        saved.save(1, &[other]).unwrap();
        let (mut first, _) = open(&store, 7, 0).unwrap();
        first.take(&[(StreamId(0), batch(0, 3))]);
        first.save(2).unwrap();
        let (_, found) = RingStore::open(&store, 7).unwrap();
        let found: Vec<(&str, u64)> = found.iter().map(|of| (&*of.stream, of.next)).collect();
        assert_eq!(found, [("out", 3), ("pay", 9)]);
    }
}
