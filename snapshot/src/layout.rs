//! Which data objects make up the state, and which of them to merge: pure functions.
//!
//! A *layout* is a list of data objects in the order in which they apply, each with the shards in
//! which it applies. In a shard, the first object that applies is its *base*; those behind it are
//! its *deltas*. Being the base is a matter of place, not of kind: nothing lies below a base, so its
//! deletions delete nothing.
//!
//! Two kinds of merge keep a layout small:
//!
//! 1. A shard whose deltas have at least as many bytes as its base becomes a new base, neighbours
//!    with it as long as that holds for all of them together. What is written is at most twice the
//!    deltas, and a delta is part of this once.
//! 2. [`FAN_IN`] neighbouring objects of one *level* become one of the next, except where they are
//!    bases. A row is written once for each level; there is one for each power of `FAN_IN` in the
//!    number of snapshots.
//!
//! So of `n` snapshots a changed byte is written at most 3 + log(n) times, with the logarithm to
//! the base `FAN_IN`; and there are at most `SHARDS` objects that are a base somewhere, and
//! `FAN_IN - 1` others of each level.

use crate::data::Written;
use crate::shard::{shards_in, ShardSet, SHARDS};

/// So many objects of one level become one.
pub(crate) const FAN_IN: usize = 8;
/// So many objects of one level are merged at once.
const INPUTS_MAX: usize = 64;
/// Neighbouring shards are merged together up to so many bytes.
const GROUP_BYTES: u64 = 64 << 20;

/// A data object, as a manifest names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataObject {
    /// Its name in the store.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
    /// The checksum that covers it.
    pub root: u64,
    /// How often its rows have been merged with others of their kind.
    pub level: u8,
    /// Bytes by shard; 0 where it does not apply (any more).
    pub shards: [u64; SHARDS],
}

impl DataObject {
    pub(crate) fn new(name: &str, level: u8, written: &Written) -> DataObject {
        let Written { len, root, shards } = *written;
        DataObject { name: name.to_owned(), len, root, level, shards }
    }

    /// The shards in which it applies.
    pub(crate) fn live(&self) -> ShardSet {
        (0..SHARDS).filter(|shard| self.shards[*shard] > 0).fold(0, |set, s| set | 1 << s)
    }
}

/// Objects to merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// The objects, oldest first, each with the shards of which it gives rows.
    pub(crate) inputs: Vec<(DataObject, ShardSet)>,
    /// The shards of which the base takes part: there, deletions have done their work.
    pub(crate) based: ShardSet,
    /// The level of what comes of it.
    pub(crate) level: u8,
}

impl Work {
    /// All shards that take part.
    pub(crate) fn shards(&self) -> ShardSet {
        self.inputs.iter().fold(0, |set, (_, shards)| set | shards)
    }
}

/// The shards that have a base, and of each object those in which it is the base.
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

/// The shards that have rows or deletions.
pub(crate) fn occupied(layout: &[DataObject]) -> ShardSet {
    bases(layout).0
}

/// What to merge next, if anything.
pub(crate) fn plan(layout: &[DataObject]) -> Option<Work> {
    if layout.len() > SHARDS + INPUTS_MAX {
        // Merging has fallen behind; a shard may have more deltas than can be open at once.
        return plan_level(layout).or_else(|| plan_base(layout));
    }
    plan_base(layout).or_else(|| plan_level(layout))
}

/// Neighbouring shards whose deltas outweigh their bases.
fn plan_base(layout: &[DataObject]) -> Option<Work> {
    let (mut base, mut deltas) = ([0; SHARDS], [0; SHARDS]);
    let (_, bases) = bases(layout);
    for (object, is_base) in layout.iter().zip(&bases) {
        for shard in shards_in(object.live()) {
            let sum = if is_base >> shard & 1 == 1 { &mut base } else { &mut deltas };
            sum[shard] += object.shards[shard];
        }
    }
    let first = (0..SHARDS).find(|s| deltas[*s] > 0 && deltas[*s] >= base[*s])?;
    let (mut group, mut base_sum, mut deltas_sum) = (1 << first, base[first], deltas[first]);
    for shard in first + 1..SHARDS {
        if deltas[shard] == 0 && base[shard] == 0 {
            continue;
        }
        base_sum += base[shard];
        deltas_sum += deltas[shard];
        let pays = deltas[shard] > 0 && deltas_sum >= base_sum;
        if !pays || base_sum + deltas_sum > GROUP_BYTES {
            break;
        }
        group |= 1u64 << shard;
    }
    let inputs = layout.iter().map(|object| (object, object.live() & group));
    Some(Work { inputs: collect(inputs), based: group, level: 0 })
}

/// Neighbouring objects of one level, where they are no bases.
fn plan_level(layout: &[DataObject]) -> Option<Work> {
    let (_, bases) = bases(layout);
    let upper = layout.iter().zip(&bases).map(|(object, base)| (object, object.live() & !base));
    // An object that is a base wherever it applies stands in nobody's way.
    let upper: Vec<_> = upper.filter(|(_, shards)| *shards != 0).collect();
    let runs = upper.chunk_by(|(a, _), (b, _)| a.level == b.level);
    // The lowest level first: it is the cheapest.
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

/// Puts what has come of `work` in the place of its inputs: `None` when no row is left. `false`,
/// and nothing changes, when the layout is no longer the one for which the work was planned.
pub(crate) fn replace(layout: &mut Vec<DataObject>, work: &Work, by: Option<DataObject>) -> bool {
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

    /// An object with so many bytes in the shards of a set.
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
    fn shards_whose_deltas_outweigh_their_base_are_merged() {
        let mut layout = vec![object("a", 0, u64::MAX, 100), object("b", 0, 0b1110, 60)];
        assert_eq!(plan(&layout), None);
        layout.push(object("c", 0, 0b0110, 60));
        let work = plan(&layout).unwrap();
        // 3 has less than its base, but can be paid by its neighbours.
        assert_eq!((work.shards(), work.based, work.level), (0b1110, 0b1110, 0));
        assert_eq!(names(&work), ["a", "b", "c"]);
        assert_eq!(work.inputs[2].1, 0b0110);

        // A snapshot came while it was merged.
        layout.push(object("d", 0, 0b0010, 1));
        assert!(replace(&mut layout, &work, Some(object("m", 0, 0b1110, 130))));
        let live: Vec<_> = layout.iter().map(|o| (&*o.name, o.live())).collect();
        assert_eq!(live, [("a", !0b1110), ("m", 0b1110), ("d", 0b0010)]);
        assert!(!replace(&mut layout, &work, None), "its inputs have gone");
        assert_eq!(plan(&layout), None);
    }

    #[test]
    fn nothing_is_left_of_shards_that_become_empty() {
        let mut layout = vec![object("a", 0, 0b11, 100), object("b", 0, 0b01, 100)];
        let work = plan(&layout).unwrap();
        assert!(replace(&mut layout, &work, None));
        assert_eq!((layout.len(), layout[0].live()), (1, 0b10));
        assert_eq!(occupied(&layout), 0b10);
    }

    #[test]
    fn objects_of_one_level_become_one() {
        let mut layout = vec![object("a", 0, !0b100, 1000)];
        // The third begins shard 2.
        let deltas = (0..8).map(|n| object(&format!("d{n}"), 0, if n < 2 { 1 } else { 0b101 }, 1));
        layout.extend(deltas);
        // Where they stand on nothing large, shards are merged first.
        let base = plan(&layout).unwrap();
        assert_eq!((base.based, base.inputs.len()), (0b100, 6));
        assert!(replace(&mut layout, &base, Some(object("m", 0, 0b100, 1))));

        let work = plan(&layout).unwrap();
        assert_eq!((names(&work).len(), work.based, work.level), (8, 0, 1));
        assert_eq!(work.shards(), 1);
        assert!(replace(&mut layout, &work, Some(object("l1", 1, 1, 8))));
        let names: Vec<_> = layout.iter().map(|o| &*o.name).collect();
        assert_eq!(names, ["a", "l1", "m"], "a base stands in nobody's way");
        assert_eq!(plan(&layout), None);
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
