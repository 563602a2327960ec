//! Any failure ends the run with an error that names it, and never with a hang or an abort.

mod common;

use std::sync::Arc;

use common::*;
use tidemill_core::{Error, Kind, Result, StreamId};
use tidemill_flow::{
    run, Branch, Chunk, Conductor, Deposits, Gate, Ingress, Input, Parcel, Polled, Spec, Stage,
    Transform, Turn,
};

fn failed(spec: Spec) -> Error {
    let gate = Gate::new(u64::MAX);
    let (conductor, _) = Collect::new(&gate, spec.inputs.len(), 100);
    run(spec, gate, Box::new(conductor)).expect_err("something is wrong")
}

/// Tries the broken input in each place, beside healthy ones that never end.
fn everywhere(broken: impl Fn(usize) -> Input, check: impl Fn(Error)) {
    for workers in [1, 2, 3] {
        for worker in 0..workers {
            let mut inputs = vec![broken(worker)];
            for s in 1..4 {
                inputs.push(input(s, s as usize % workers, Count::new(s, u64::MAX, At::Wait)));
            }
            check(failed(spec(workers, inputs)));
        }
    }
}

#[test]
fn an_ingress_error_ends_the_run() {
    everywhere(
        |worker| input(0, worker, Count::new(0, 1000, At::Fail)),
        |error| assert_eq!(error, Error::input("the disk is gone")),
    );
}

#[test]
fn a_panic_in_an_ingress_ends_the_run() {
    everywhere(
        |worker| input(0, worker, Count::new(0, 1000, At::Panic)),
        |error| {
            assert_eq!(error.kind, Kind::Internal);
            assert!(error.what.contains("panicked: on purpose"), "{error}");
            assert!(error.what.starts_with("worker "), "{error}");
        },
    );
}

#[test]
fn a_transform_error_ends_the_run() {
    for stage in [Stage::Map(Arc::new(Refuse)), Stage::Filter(Arc::new(Refuse))] {
        everywhere(
            |worker| {
                let stages = vec![stage.clone()];
                let branches = vec![plain(0), Branch { stream: StreamId(1), stages }];
                Input { branches, ..input(0, worker, Count::new(0, 1000, At::End)) }
            },
            |error| assert_eq!(error.what, "row 0 divides by zero"),
        );
    }
}

/// A transform that is not a valid map.
struct Shorten;

impl Transform for Shorten {
    fn apply(&self, parcel: Parcel) -> Result<Parcel> {
        let batch = parcel.batch.slice(0, 1);
        Ok(Parcel { batch, ..parcel })
    }
}

#[test]
fn a_transform_that_loses_offsets_is_found() {
    for stage in [Stage::Map(Arc::new(Shorten)), Stage::Filter(Arc::new(Shorten))] {
        let branches = vec![Branch { stream: StreamId(1), stages: vec![stage] }];
        let input = Input { branches, ..input(0, 0, Count::new(0, 1000, At::End)) };
        let error = failed(spec(1, vec![input]));
        assert_eq!(error.kind, Kind::Internal);
        assert!(error.what.contains("1 rows, "), "{error}");
    }
}

/// An ingress that panics when it is used and when it is dropped.
struct Spiteful(Count);

impl Ingress for Spiteful {
    fn poll(&mut self, rows_max: usize) -> Result<Polled> {
        self.0.poll(rows_max)
    }

    fn offset(&self) -> u64 {
        self.0.offset()
    }
}

impl Drop for Spiteful {
    fn drop(&mut self) {
        panic!("out of spite");
    }
}

#[test]
fn a_panic_in_a_drop_ends_the_run_too() {
    everywhere(
        |worker| input(0, worker, Spiteful(Count::new(0, 1000, At::Fail))),
        |error| assert_ne!(error.what, ""),
    );
    // At the end of a run without errors.
    let gate = Gate::new(0);
    let spec = spec(2, vec![input(0, 1, Spiteful(Count::new(0, u64::MAX, At::Wait)))]);
    let error = run(spec, gate, Box::new(Do(|| Ok(Turn::Stop)))).unwrap_err();
    assert!(error.what.contains("out of spite"), "{error}");
}

struct Do<F>(F);

impl<F: FnMut() -> Result<Turn> + Send> Conductor for Do<F> {
    fn turn(&mut self, _: u64, _: &mut Deposits) -> Result<Turn> {
        (self.0)()
    }
}

#[test]
fn the_conductor_may_fail_and_panic() {
    for workers in [1, 2] {
        let inputs = || vec![input(0, workers - 1, Count::new(0, u64::MAX, At::Wait))];
        let fail = Do(|| Err(Error::resource("no memory")));
        let error = run(spec(workers, inputs()), Gate::new(0), Box::new(fail)).unwrap_err();
        assert_eq!(error, Error::resource("no memory"));
        let panic = Do(|| panic!("lost the score"));
        let error = run(spec(workers, inputs()), Gate::new(0), Box::new(panic)).unwrap_err();
        assert_eq!(error.what, "worker 0 panicked: lost the score");
    }
}

/// An ingress that returns invalid chunks.
struct Liar(Count, fn(&mut Chunk));

impl Ingress for Liar {
    fn poll(&mut self, rows_max: usize) -> Result<Polled> {
        let mut polled = self.0.poll(rows_max)?;
        if let Polled::Rows(chunk) = &mut polled {
            (self.1)(chunk);
        }
        Ok(polled)
    }

    fn offset(&self) -> u64 {
        self.0.offset()
    }
}

#[test]
fn a_chunk_that_would_break_the_order_is_refused() {
    type Lie = fn(&mut Chunk);
    let lies: [(Lie, &str); 4] = [
        (|c| c.next_offset += 1, "does not end where"),
        (|c| c.offsets[0] = 1, "outside its offsets"),
        (|c| c.times.truncate(1), "one time for each row"),
        (|c| *c.offsets.last_mut().unwrap() = c.next_offset, "outside its offsets"),
    ];
    for (lie, says) in lies {
        let mut liar = Liar(Count::new(0, 10_000, At::Wait), lie);
        liar.0.next = 200;
        let error = failed(spec(1, vec![input(0, 0, liar)]));
        assert!(error.what.contains(says), "{error}");
    }
}

#[test]
fn a_spec_that_makes_no_sense_is_refused() {
    let count = || Count::new(0, 0, At::End);
    for (spec, says) in [
        (spec(0, vec![]), "needs a worker"),
        (Spec { rows_max: 0, ..spec(1, vec![]) }, "at least one row"),
        (spec(2, vec![input(0, 2, count())]), "source 0 has no worker"),
        (spec(2, vec![input(0, 0, count()), input(0, 1, count())]), "source 0 is read twice"),
    ] {
        let error = run(spec, Gate::new(0), Box::new(Do(|| Ok(Turn::Stop)))).unwrap_err();
        assert!(error.what.contains(says), "{error}");
    }
}
