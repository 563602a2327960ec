//! The data objects that make up the state, and which of them to merge: pure functions.
//!
//! A *layout* is a list of data objects in the order in which they apply, each with the shards in
//! which it applies. In a shard, the first object that applies is its *base*; those after it are
//! its *deltas*. Being the base is a matter of place, not of kind: nothing lies below a base, so
//! its deletions delete nothing.
//!
//! Two kinds of merge keep a layout small:
//!
//! 1. Neighbouring shards form groups of up to [`GROUP_BYTES`]. A group whose deltas have at least
//!    as many bytes as its bases becomes a new base. At most twice the deltas' bytes are written,
//!    and a delta is part of this once. (Because of the groups, a small state is not 64 small
//!    objects. The whole state is never one group, so a step is bounded, and a hot part does not
//!    rewrite all of it.)
//! 2. [`FAN_IN`] neighbouring objects of one *level* become one of the next, except where they are
//!    bases. A row is written once for each level; there is one for each power of `FAN_IN` in the
//!    number of snapshots.
//!
//! So over `n` snapshots a changed byte is written at most 3 + log(n) times, with the logarithm to
//! the base `FAN_IN`. At most `SHARDS` objects are a base somewhere, and there are at most `FAN_IN
//! - 1` others of each level.

use crate::bytes::{put_counted, put_short, Taker};
use crate::data::Written;
use crate::shard::{shards_in, ShardSet, SHARDS};

/// The number of objects of one level that become one.
pub(crate) const FAN_IN: usize = 8;
/// The largest number of objects of one level that are merged at once.
const INPUTS_MAX: usize = 64;
/// The size in bytes up to which neighbouring shards are merged together. A single shard may have
/// more.
const GROUP_BYTES: u64 = 64 << 20;

/// A data object, as a manifest describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataObject {
    /// The name in the store.
    pub name: String,
    /// The length in bytes.
    pub len: u64,
    /// The checksum that covers the object.
    pub root: u64,
    /// How often its rows have been merged with others of their kind.
    pub level: u8,
    /// The bytes by shard; 0 where it does not apply, or no longer applies.
    pub shards: [u64; SHARDS],
}

impl DataObject {
    pub(crate) fn new(name: &str, level: u8, written: &Written) -> DataObject {
        let Written { len, root, shards } = *written;
        DataObject { name: name.to_owned(), len, root, level, shards }
    }

    /// Appends its description, in the encoding of manifests.
    pub fn put(&self, out: &mut Vec<u8>) {
        put_counted(self.name.as_bytes(), out);
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&self.root.to_le_bytes());
        out.push(self.level);
        out.extend_from_slice(&self.live().to_le_bytes());
        for shard in shards_in(self.live()) {
            put_short(self.shards[shard], out);
        }
    }

    /// Takes a description off the front. `None` if the bytes are none.
    pub fn take(input: &mut &[u8]) -> Option<DataObject> {
        let mut taker = Taker(input);
        let (name, len, root, level) = (taker.text()?, taker.u64()?, taker.u64()?, taker.u8()?);
        let mut shards = [0; SHARDS];
        for shard in shards_in(taker.u64()?) {
            shards[shard] = taker.short()?;
        }
        *input = taker.0;
        Some(DataObject { name, len, root, level, shards })
    }

    /// Returns the shards in which it applies.
    pub(crate) fn live(&self) -> ShardSet {
        (0..SHARDS).filter(|shard| self.shards[*shard] > 0).fold(0, |set, s| set | 1 << s)
    }
}

/// Objects to merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The objects, oldest first, each with the shards of which it contributes rows.
    pub(crate) inputs: Vec<(DataObject, ShardSet)>,
    /// The shards whose base takes part. There, deletions need not be written.
    pub(crate) based: ShardSet,
    /// The level of the result.
    pub(crate) level: u8,
}

impl Work {
    /// Appends its description.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.inputs.len() as u32).to_le_bytes());
        for (object, shards) in &self.inputs {
            object.put(out);
            out.extend_from_slice(&shards.to_le_bytes());
        }
        out.extend_from_slice(&self.based.to_le_bytes());
        out.push(self.level);
    }

    /// Takes a description off the front. `None` if the bytes are none.
    pub fn take(input: &mut &[u8]) -> Option<Work> {
        let mut taker = Taker(input);
        let count = taker.u32()?;
        let mut inputs = Vec::new();
        for _ in 0..count {
            let object = DataObject::take(&mut taker.0)?;
            inputs.push((object, taker.u64()?));
        }
        let (based, level) = (taker.u64()?, taker.u8()?);
        *input = taker.0;
        Some(Work { inputs, based, level })
    }

    /// Returns the objects that take part.
    pub fn inputs(&self) -> impl Iterator<Item = &DataObject> {
        self.inputs.iter().map(|(object, _)| object)
    }

    /// Returns all shards that take part.
    pub(crate) fn shards(&self) -> ShardSet {
        self.inputs.iter().fold(0, |set, (_, shards)| set | shards)
    }
}

/// Returns the shards that have a base, and for each object those in which it is the base.
fn bases(layout: &[DataObject]) -> (ShardSet, Vec<ShardSet>) {
    let mut seen = 0;
    let of = layout.iter().map(|object| {
        let live = object.live();
        let base = live & !seen;
        seen |= live;
        base
    });
    let of = of.collect();
    (seen, of)
}

/// Returns the shards that have rows or deletions.
pub(crate) fn occupied(layout: &[DataObject]) -> ShardSet {
    bases(layout).0
}

/// Returns the next merge that pays off, if there is one.
pub fn plan(layout: &[DataObject]) -> Option<Work> {
    if layout.len() > SHARDS + INPUTS_MAX {
        // Merging is too slow: a shard may have more deltas than can be open at once.
        return plan_level(layout).or_else(|| plan_base(layout));
    }
    plan_base(layout).or_else(|| plan_level(layout))
}

/// Returns a merge of the first group of shards whose deltas outweigh their bases.
fn plan_base(layout: &[DataObject]) -> Option<Work> {
    let (mut base, mut deltas) = ([0; SHARDS], [0; SHARDS]);
    let (_, bases) = bases(layout);
    for (object, is_base) in layout.iter().zip(&bases) {
        for shard in shards_in(object.live()) {
            let sum = if is_base >> shard & 1 == 1 { &mut base } else { &mut deltas };
            sum[shard] += object.shards[shard];
        }
    }
    let group = groups(&base, &deltas).into_iter().find(|group| {
        let sum = |of: &[u64; SHARDS]| shards_in(*group).map(|shard| of[shard]).sum::<u64>();
        sum(&deltas) >= sum(&base).max(1)
    })?;
    let inputs = layout.iter().map(|object| (object, object.live() & group));
    Some(Work { inputs: collect(inputs), based: group, level: 0 })
}

/// Divides all shards into groups of neighbours.
fn groups(base: &[u64; SHARDS], deltas: &[u64; SHARDS]) -> Vec<ShardSet> {
    let (mut groups, mut group, mut bytes) = (Vec::new(), 0, 0);
    for shard in 0..SHARDS {
        let more = base[shard] + deltas[shard];
        if bytes > 0 && bytes + more > GROUP_BYTES {
            groups.push(std::mem::take(&mut group));
            bytes = 0;
        }
        group |= 1 << shard;
        bytes += more;
    }
    groups.push(group);
    groups
}

/// Returns a merge of neighbouring objects of one level, where they are not bases.
fn plan_level(layout: &[DataObject]) -> Option<Work> {
    let (_, bases) = bases(layout);
    let upper = layout.iter().zip(&bases).map(|(object, base)| (object, object.live() & !base));
    // An object that is a base wherever it applies does not separate others.
    let upper: Vec<_> = upper.filter(|(_, shards)| *shards != 0).collect();
    let runs = upper.chunk_by(|(a, _), (b, _)| a.level == b.level);
    // The lowest level comes first, because it is the cheapest.
    let run = runs.filter(|run| run.len() >= FAN_IN).min_by_key(|run| run[0].0.level)?;
    let run = &run[..run.len().min(INPUTS_MAX)];
    let level = run[0].0.level.saturating_add(1);
    Some(Work { inputs: collect(run.iter().copied()), based: 0, level })
}

fn collect<'a>(
    inputs: impl Iterator<Item = (&'a DataObject, ShardSet)>,
) -> Vec<(DataObject, ShardSet)> {
    inputs.filter(|(_, shards)| *shards != 0).map(|(o, shards)| (o.clone(), shards)).collect()
}

/// Replaces the inputs of `work` by its result, which is `None` if no row is left. Returns `false`,
/// and changes nothing, if the layout is no longer the one for which the work was planned.
pub fn replace(layout: &mut Vec<DataObject>, work: &Work, by: Option<DataObject>) -> bool {
    let live_in = |object: &DataObject, shard: usize| object.shards[shard] > 0;
    for shard in shards_in(work.shards()) {
        let wanted = work.inputs.iter().filter(|(_, shards)| shards >> shard & 1 == 1);
        let wanted: Vec<&str> = wanted.map(|(object, _)| &*object.name).collect();
        let there = layout.iter().filter(|object| live_in(object, shard));
        let there: Vec<&str> = there.map(|object| &*object.name).collect();
        let at = there.iter().position(|name| *name == wanted[0]);
        let fits = match at {
            Some(at) if work.based >> shard & 1 == 1 => at == 0 && there.starts_with(&wanted),
            Some(at) => there[at..].starts_with(&wanted),
            None => false,
        };
        if !fits {
            return false;
        }
    }
    let mut behind = 0;
    for (input, shards) in &work.inputs {
        let at = layout.iter().position(|object| object.name == input.name);
        let at = at.expect("it has just been found");
        behind = behind.max(at + 1);
        shards_in(*shards).for_each(|shard| layout[at].shards[shard] = 0);
    }
    if let Some(object) = by {
        layout.insert(behind, object);
    }
    layout.retain(|object| object.live() != 0);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates an object with this many bytes in the shards of a set.
    fn object(name: &str, level: u8, live: ShardSet, bytes: u64) -> DataObject {
        let mut shards = [0; SHARDS];
        shards_in(live).for_each(|shard| shards[shard] = bytes);
        DataObject { name: name.into(), len: bytes * 64, root: 0, level, shards }
    }

    fn names(work: &Work) -> Vec<&str> {
        work.inputs.iter().map(|(object, _)| &*object.name).collect()
    }

    #[test]
    fn a_first_object_is_the_base_and_is_left_alone() {
        assert_eq!(plan(&[]), None);
        assert_eq!(plan(&[object("a", 0, u64::MAX, 100)]), None);
        assert_eq!(plan(&[object("a", 0, 1, 100), object("b", 0, 2, 100)]), None);
    }

    #[test]
    fn a_group_whose_deltas_outweigh_its_bases_is_merged() {
        // Four shards are a group, with 12 MiB of base and up to 4 of deltas each.
        const MB: u64 = 1 << 20;
        let mut layout = vec![object("a", 0, u64::MAX, 12 * MB)];
        layout.push(object("b", 0, 0b1111 << 4, 4 * MB));
        assert_eq!(plan(&layout), None);
        layout.push(object("c", 0, 0b1111 << 4, 4 * MB));
        layout.push(object("d", 0, 1 << 5, MB));
        assert_eq!(plan(&layout), None);
        layout.push(object("e", 0, 0b0110 << 4, 30 * MB));
        let work = plan(&layout).unwrap();
        // A shard with so many deltas is a group of its own.
        assert_eq!((work.shards(), work.based, work.level), (1 << 5, 1 << 5, 0));
        assert_eq!(names(&work), ["a", "b", "c", "d", "e"]);

        // A snapshot is published during the merge.
        layout.push(object("f", 0, 1 << 5, 1));
        assert!(replace(&mut layout, &work, Some(object("m", 0, 1 << 5, 40 * MB))));
        let live: Vec<_> = layout.iter().map(|o| (&*o.name, o.live())).collect();
        let rest =
            [("b", 0b1101 << 4), ("c", 0b1101 << 4), ("e", 1 << 6), ("m", 1 << 5), ("f", 1 << 5)];
        assert_eq!(live[0], ("a", !(1 << 5)));
        assert_eq!(live[1..], rest);
        assert!(!replace(&mut layout, &work, None), "its inputs have gone");
        assert_eq!(plan(&layout).unwrap().shards(), 1 << 6, "the other one");
    }

    #[test]
    fn a_small_state_is_one_group() {
        let mut layout = vec![object("a", 0, u64::MAX, 100), object("b", 0, 1, 6000)];
        assert_eq!(plan(&layout), None);
        layout.push(object("c", 0, 2, 500));
        let work = plan(&layout).unwrap();
        assert_eq!((work.shards(), names(&work).len()), (u64::MAX, 3));
        assert!(replace(&mut layout, &work, Some(object("m", 0, u64::MAX, 100))));
        assert_eq!(layout.len(), 1);
    }

    #[test]
    fn nothing_is_left_of_shards_that_become_empty() {
        let mut layout = vec![object("a", 0, 0b11, 100), object("b", 0, 0b11, 100)];
        let work = plan(&layout).unwrap();
        layout.push(object("c", 0, 0b10, 1));
        assert!(replace(&mut layout, &work, None));
        assert_eq!((layout.len(), occupied(&layout)), (1, 0b10));
    }

    #[test]
    fn objects_of_one_level_become_one() {
        let mut layout = vec![object("a", 0, !0b1100, 1000)];
        // The third begins shard 2.
        let deltas = (0..8).map(|n| object(&format!("d{n}"), 0, if n < 2 { 1 } else { 0b101 }, 1));
        layout.extend(deltas);
        let work = plan(&layout).unwrap();
        assert_eq!((names(&work).len(), work.based, work.level), (8, 0, 1));
        assert_eq!((work.inputs[2].1, work.inputs[3].1), (1, 0b101), "not where it is the base");
        assert!(replace(&mut layout, &work, Some(object("l1", 1, 0b101, 8))));
        let live: Vec<_> = layout.iter().map(|o| (&*o.name, o.live())).collect();
        assert_eq!(live, [("a", !0b1100), ("d2", 0b100), ("l1", 0b101)]);
        assert_eq!(plan(&layout), None);

        // A base does not separate others: seven more of the first level, with a base among them.
        layout.extend((0..7).map(|n| object(&format!("e{n}"), 1, 1, 1)));
        layout.insert(5, object("m", 0, 0b1000, 1));
        assert_eq!(plan(&layout).unwrap().inputs.len(), 8);
        assert_eq!(plan(&layout).unwrap().level, 2);
    }

    #[test]
    fn work_does_not_fit_another_layout() {
        let mut layout = vec![object("a", 0, 1, 10), object("b", 0, 1, 20)];
        let work = plan(&layout).unwrap();
        let mut other = vec![object("c", 0, 1, 1)];
        assert!(!replace(&mut other, &work, None));
        layout.insert(1, object("c", 0, 1, 1));
        assert!(!replace(&mut layout, &work, None));
        layout.swap(0, 1);
        assert!(!replace(&mut layout, &work, None));
    }
}
