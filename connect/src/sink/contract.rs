//! The promises of every sink, as checks that panic if a promise is broken.

use tidemill_core::{Batch, Result, Row};

use super::{Sink, SinkPlace};

/// A new sink, and a function that reads all of its visible rows.
pub type Made = (Box<dyn Sink>, Box<dyn Fn() -> Vec<Row>>);

/// Checks the promises of a [`Sink`] without failures. `make` makes a new sink; `batch` has the
/// rows to write, at least two, which must differ.
///
/// # Panics
/// If a promise is broken.
pub fn check(make: impl Fn() -> Made, batch: &Batch) {
    let rows: Vec<Row> = batch.rows().collect();
    assert!(rows.len() >= 2, "the check needs two rows");
    let half = rows.len() / 2;
    let (first, second) = (batch.slice(0, half), batch.slice(half, rows.len() - half));
    let empty = batch.slice(0, 0);

    let (mut sink, seen) = make();
    assert_eq!(sink.place().rows, 0, "a new sink");
    sink.settle().expect("nothing to cut in a new sink");
    sink.finish().expect("a sink without rows is finished");
    assert_eq!(seen(), [] as [Row; 0], "no rows");
    sink.finish().expect("a second finish does nothing");
    assert!(sink.write(batch).is_err(), "nothing is written after finish");

    let (mut sink, seen) = make();
    sink.commit().expect("a commit without rows");
    sink.write(&empty).expect("no rows");
    sink.write(&first).expect("rows");
    sink.write(&second).expect("rows");
    let place = sink.place();
    assert_eq!(place.rows, rows.len() as u64, "rows count when they are written");
    sink.commit().expect("a commit");
    sink.commit().expect("a second commit does nothing");
    assert!(sink.place().is_same(&place), "a commit moves nothing");
    sink.finish().expect("the end");
    assert_eq!(seen(), rows, "two batches in one epoch");
    assert!(sink.place().is_same(&place), "the place stays at the end");
    assert!(sink.sync().expect("everything is durable").is_same(&place));

    let (mut sink, seen) = make();
    for part in [&first, &second] {
        sink.write(part).expect("rows");
        sink.commit().expect("a commit");
    }
    assert!(sink.place().is_same(&place), "epochs do not show in a place");
    sink.finish().expect("the end");
    assert_eq!(seen(), rows, "two epochs");

    let (mut sink, seen) = make();
    sink.write(&first).expect("rows");
    sink.commit().expect("a commit");
    let committed = sink.place();
    sink.write(&second).expect("rows");
    assert!(sink.sync().expect("a sync").is_same(&committed), "sync is for what was committed");
    assert!(sink.place().is_same(&place));
    sink.finish().expect("the end");
    assert_eq!(seen(), &rows[..half], "what was not committed is dropped");
    assert!(sink.place().is_same(&committed));

    let (mut sink, seen) = make();
    sink.write(batch).expect("rows");
    drop(sink);
    assert_eq!(seen(), [] as [Row; 0], "what was not committed is not seen");
}

/// A disk to which one sink writes.
pub trait World {
    /// Opens the sink there.
    ///
    /// # Errors
    /// Those of the sink.
    fn open(&self, resume: Option<&SinkPlace>) -> Result<Box<dyn Sink>>;

    /// Returns the number of rows that can be read there, from the first on.
    fn rows(&self) -> usize;

    /// Returns everything that a finished sink has left there, in a form that does not depend on
    /// its syncs.
    fn content(&self) -> Vec<u8>;
}

/// The state that a sink's driver has when the machine stops.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The number of epochs with a durable cut.
    pub cuts: usize,
    /// The sink's place at each of them.
    pub places: Vec<SinkPlace>,
    /// The number of epochs in the last snapshot, and the sink's place in it.
    pub snapshot: (usize, SinkPlace),
}

/// The number of epochs between two snapshots.
const SNAPSHOT_EPOCHS: usize = 3;

/// Writes the epochs to their end, as a sink's driver does. `known` is called each time the
/// driver's knowledge changes.
///
/// # Errors
/// The sink's first error; then the sink must stay failed.
pub fn run(world: &dyn World, epochs: &[Batch], known: &mut dyn FnMut(&Known)) -> Result<()> {
    let mut sink = world.open(None)?;
    let mut now = Known { snapshot: (0, sink.place()), ..Known::default() };
    known(&now);
    let done = go_on(&mut *sink, epochs, &mut now, known);
    if done.is_err() {
        assert!(sink.write(&epochs[0]).is_err(), "a failed sink stays failed");
        assert!(sink.sync().is_err() && sink.finish().is_err(), "a failed sink stays failed");
    }
    done
}

fn go_on(
    sink: &mut dyn Sink,
    epochs: &[Batch],
    now: &mut Known,
    known: &mut dyn FnMut(&Known),
) -> Result<()> {
    while now.cuts < epochs.len() {
        sink.write(&epochs[now.cuts])?;
        now.cuts += 1;
        now.places.push(sink.place());
        known(now);
        sink.commit()?;
        if now.cuts.is_multiple_of(SNAPSHOT_EPOCHS) {
            now.snapshot = (now.cuts, sink.sync()?);
            known(now);
        }
    }
    sink.finish()
}

/// Recovers after a run of [`run`] was stopped with this knowledge, and finishes the run. With
/// `shrinks`, visible rows may be hidden for a while.
///
/// # Panics
/// If a promise is broken.
pub fn check_recovery(world: &dyn World, epochs: &[Batch], known: &Known, shrinks: bool) {
    let mut known = known.clone();
    let (first, place) = known.snapshot.clone();
    let rows = |epochs: &[Batch]| epochs.iter().map(Batch::len).sum::<usize>();
    let committed = rows(&epochs[..known.cuts]);
    let before = world.rows();
    assert!(before <= committed, "{before} rows can be seen, {committed} were to be");
    assert!(shrinks || before >= rows(&epochs[..first]), "a synced row is lost");
    let json = serde_json::to_string(&place).expect("a place is JSON");
    let place = serde_json::from_str(&json).expect("a place is JSON");
    let mut sink = world.open(Some(&place)).expect("a place that is there");
    assert!(sink.place().is_same(&place), "it continues where it was");
    let still_there =
        |what: &str| assert!(shrinks || world.rows() >= before, "rows are gone {what}");
    still_there("when it is opened");
    let replayed = epochs[..known.cuts].iter().zip(&known.places).skip(first);
    for (number, (epoch, place)) in replayed.enumerate() {
        sink.write(epoch).expect("rows");
        assert!(sink.place().is_same(place), "the same rows, the same place");
        sink.commit().expect("a commit");
        still_there("while they are written again");
        if number % 2 == 1 {
            let synced = sink.sync().expect("a sync");
            assert!(synced.is_same(place), "a sync in between");
        }
    }
    sink.settle().expect("the tail is cut");
    still_there("when the tail was cut");
    go_on(&mut *sink, epochs, &mut known, &mut |_| {}).expect("the rest");
    assert_eq!(world.rows(), rows(epochs), "all rows, once");

    // A finished run is started again.
    let end = sink.sync().expect("a finished sink is durable");
    let content = world.content();
    let mut again = world.open(Some(&end)).expect("the end is a place");
    assert!(again.place().is_same(&end));
    again.settle().expect("nothing is behind the end");
    again.finish().expect("nothing more");
    assert_eq!(world.content(), content, "a finished sink is left alone");
}
