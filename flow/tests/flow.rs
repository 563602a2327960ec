//! Rows arrive where they belong.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow_array::Array;
use common::*;
use tidemill_core::{Result, SourceId, StreamId};
use tidemill_env::Env;
use tidemill_flow::{run, Branch, Conductor, Deposits, Gate, Ingress, Input, Polled, Stage, Turn};

#[test]
fn every_row_is_deposited_once_in_the_epoch_of_its_offset() {
    for workers in [1, 2, 3, 8] {
        for sources in [1, 2, 5, 9] {
            let gate = Gate::new(u64::MAX);
            let ends: Vec<(u32, u64)> =
                (0..sources as u32).map(|s| (s, 2000 + 777 * u64::from(s))).collect();
            let inputs = ends
                .iter()
                .map(|&(s, end)| input(s, s as usize % workers, Count::new(s, end, At::End)))
                .collect();
            let (conductor, taken) = Collect::new(&gate, sources, 300);
            run(spec(workers, inputs), gate.clone(), Box::new(conductor)).unwrap();
            let taken = taken.lock().unwrap();
            check(&taken, &ends, &[(0, Some)]);
            assert!(taken.len() > 1, "{} epochs", taken.len());
            assert_eq!(gate.bytes(), 0, "what was charged was given back");
        }
    }
}

#[test]
fn branches_map_and_filter() {
    for workers in [1, 2] {
        let gate = Gate::new(u64::MAX);
        let negated = Branch {
            stream: StreamId(3),
            stages: vec![
                Stage::Filter(Arc::new(Divisible(2))),
                Stage::Map(Arc::new(Negate)),
                Stage::Filter(Arc::new(Divisible(3))),
            ],
        };
        // The last branch drops every row, which is visible only in its stream.
        let branches = vec![divided(1, 7), plain(0), negated, plain(2), divided(4, 10_000_000_000)];
        let ends = [(0, 5000), (1, 3000)];
        let inputs = ends
            .iter()
            .map(|&(s, end)| {
                let ingress = Count::new(s, end, At::End);
                Input { branches: branches.clone(), ..input(s, s as usize % workers, ingress) }
            })
            .collect();
        let (conductor, taken) = Collect::new(&gate, 2, 500);
        run(spec(workers, inputs), gate.clone(), Box::new(conductor)).unwrap();
        let streams: [(u16, Becomes); 5] = [
            (0, Some),
            (1, |v| (v % 7 == 0).then_some(v)),
            (2, Some),
            (3, |v| (v % 6 == 0).then_some(-v)),
            (4, |v| (v == 0).then_some(v)),
        ];
        check(&taken.lock().unwrap(), &ends, &streams);
        assert_eq!(gate.bytes(), 0, "what filters dropped was given back");
    }
}

#[test]
fn progress_is_reported_without_branches_and_without_rows() {
    let gate = Gate::new(u64::MAX);
    let none = Input { branches: vec![], ..input(0, 0, Count::new(0, 1000, At::End)) };
    let empty = input(1, 0, Count::new(1, 0, At::End));
    let (mut conductor, taken) = Collect::new(&gate, 2, 300);
    conductor.rows = 0;
    run(spec(1, vec![none, empty]), gate, Box::new(conductor)).unwrap();
    check(&taken.lock().unwrap(), &[(0, 1000), (1, 0)], &[]);
}

/// Opens epochs with these limits, takes their content while they fill, and opens the next one only
/// when all limits were reached.
struct Replay {
    gate: Arc<Gate>,
    cuts: Vec<Vec<u64>>,
    at: usize,
    next: u64,
    reached: Vec<u64>,
}

impl Conductor for Replay {
    fn turn(&mut self, closed: u64, deposits: &mut Deposits) -> Result<Turn> {
        let open = self.gate.epoch();
        for deposit in [deposits.take(open)]
            .into_iter()
            .chain((self.next..closed).map(|epoch| deposits.take(epoch)).collect::<Vec<_>>())
        {
            for report in deposit.reports {
                let reached = &mut self.reached[report.source.index()];
                *reached = report.next_offset.max(*reached);
            }
        }
        let done = open == 0 || self.reached == self.cuts[self.at];
        if open > 0 {
            for (reached, limit) in self.reached.iter().zip(&self.cuts[self.at]) {
                assert!(reached <= limit, "epoch {open} was over-read: {reached} of {limit}");
            }
        }
        if closed > self.next {
            self.next = closed;
        }
        if done && (open == 0 || open == self.next) {
            if open > 0 {
                self.at += 1;
            }
            if self.at == self.cuts.len() {
                return Ok(Turn::Stop);
            }
            self.gate.open_to(open + 1, &self.cuts[self.at]);
        }
        Ok(Turn::Idle)
    }
}

#[test]
fn recorded_limits_are_kept_exactly() {
    for workers in [1, 2, 3] {
        // Uneven steps: none, one row, less than a poll, and more than a poll.
        let mut cuts = vec![vec![0, 0, 0]];
        let mut seed = 12345u64;
        for _ in 0..200 {
            let mut cut: Vec<u64> = cuts[cuts.len() - 1].clone();
            for limit in &mut cut {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                *limit += [0, 0, 1, 2, 17, 99, 100, 101, 350][(seed >> 33) as usize % 9];
            }
            cuts.push(cut);
        }
        // The gate has less room than an epoch needs, so taking during the epoch makes room.
        let gate = Gate::new(2000);
        let inputs = (0..3)
            .map(|s| input(s, s as usize % workers, Count::new(s, u64::MAX, At::Wait)))
            .collect();
        let replay = Replay { gate: gate.clone(), cuts, at: 0, next: 1, reached: vec![0; 3] };
        run(spec(workers, inputs), gate, Box::new(replay)).unwrap();
    }
}

/// A conductor that calls a closure.
struct Script<F>(F);

impl<F: FnMut(u64, &mut Deposits) -> Result<Turn> + Send> Conductor for Script<F> {
    fn turn(&mut self, closed: u64, deposits: &mut Deposits) -> Result<Turn> {
        (self.0)(closed, deposits)
    }
}

#[test]
fn a_paused_source_is_left_alone_and_a_full_gate_stops_all() {
    for workers in [1, 2] {
        let env = Env::real();
        // Room for a few polls of 100 rows, with about 2.5 kB each.
        let gate = Gate::new(10_000);
        gate.pause(SourceId(1), true);
        let inputs = (0..2)
            .map(|s| input(s, s as usize % workers, Count::new(s, u64::MAX, At::Wait)))
            .collect();
        let clock = env.clock.clone();
        let (mine, mut full_since, mut phase) = (gate.clone(), None, 0);
        let turn = move |closed, deposits: &mut Deposits| {
            let now = clock.monotonic_ns();
            match phase {
                0 => {
                    mine.open(1);
                    phase = 1;
                }
                // The first source fills the gate, which stays full.
                1 if mine.is_full() => {
                    let (since, bytes) = *full_since.get_or_insert((now, mine.bytes()));
                    assert_eq!(mine.bytes(), bytes, "nothing is read while it is full");
                    assert!(bytes < 20_000, "{bytes} bytes in a gate of 10,000");
                    if now - since > 20_000_000 {
                        mine.pause(SourceId(0), true);
                        mine.pause(SourceId(1), false);
                        phase = 2;
                    }
                }
                // The gate is still full. The second source may read, but does not.
                2 => {
                    let deposit = deposits.take(1);
                    assert!(deposit.reports.iter().all(|r| r.source == SourceId(0)));
                    assert!(!deposit.parcels.is_empty());
                    // The second source may be reading by now.
                    assert!(mine.bytes() < 20_000);
                    phase = 3;
                }
                // Now it reads. The first source has at most the few rows that it was reading.
                3 if deposits.rows(1) > 200 => {
                    let deposit = deposits.take(1);
                    assert!(deposit.reports.iter().any(|r| r.source == SourceId(1)));
                    return Ok(Turn::Stop);
                }
                _ => {}
            }
            assert_eq!(closed, u64::from(phase > 0 && closed > 0));
            Ok(Turn::Idle)
        };
        run(spec(workers, inputs), gate, Box::new(Script(turn))).unwrap();
    }
}

/// Counted rows that another thread pushes.
struct Pushed {
    there: Arc<AtomicU64>,
    count: Count,
}

impl Ingress for Pushed {
    fn poll(&mut self, rows_max: usize) -> Result<Polled> {
        self.count.stop = self.there.load(Ordering::Acquire);
        self.count.polls = 0;
        self.count.poll(rows_max)
    }

    fn offset(&self) -> u64 {
        self.count.offset()
    }
}

#[test]
fn stop_from_outside_ends_parked_workers() {
    for workers in [1, 3] {
        let env = Env::real();
        let gate = Gate::new(u64::MAX);
        let inputs = vec![input(0, workers - 1, Count::new(0, 10, At::Wait))];
        let (conductor, taken) = Collect::new(&gate, 1, 1);
        let (stop, clock) = (gate.clone(), env.clock.clone());
        let watch = taken.clone();
        let outside = env.threads.spawn(
            "outside",
            Box::new(move || {
                while watch.lock().unwrap().is_empty() {
                    clock.sleep_us(1000);
                }
                stop.stop();
            }),
        );
        let mut spec = spec(workers, inputs);
        // The park time is longer than any test may take, so only the wake ends it.
        spec.park_us = 20_000;
        run(spec, gate, Box::new(conductor)).unwrap();
        outside.unwrap().join().unwrap();
    }
}

#[test]
fn a_flow_without_sources_closes_epochs() {
    let gate = Gate::new(0);
    let mine = gate.clone();
    let turn = move |closed, _: &mut Deposits| {
        if closed == 100 {
            return Ok(Turn::Stop);
        }
        if mine.epoch() == closed {
            mine.open(closed + 1);
        }
        Ok(Turn::Idle)
    };
    run(spec(2, vec![]), gate, Box::new(Script(turn))).unwrap();
}

/// An ingress that records the memory addresses of its arrays.
struct Spy(Count, Arc<Mutex<Vec<usize>>>);

impl Ingress for Spy {
    fn poll(&mut self, rows_max: usize) -> Result<Polled> {
        let polled = self.0.poll(rows_max)?;
        if let Polled::Rows(chunk) = &polled {
            self.1.lock().unwrap().push(place(&chunk.batch));
        }
        Ok(polled)
    }

    fn offset(&self) -> u64 {
        self.0.offset()
    }
}

fn place(batch: &tidemill_core::Batch) -> usize {
    batch.columns()[0].to_data().buffers()[0].as_ptr() as usize
}

#[test]
fn inside_a_process_rows_stay_where_they_were_decoded() {
    for workers in [1, 2] {
        let gate = Gate::new(u64::MAX);
        let places = Arc::new(Mutex::new(vec![]));
        let spy = Spy(Count::new(0, 1000, At::End), places.clone());
        let (conductor, taken) = Collect::new(&gate, 1, 100);
        run(spec(workers, vec![input(0, workers - 1, spy)]), gate, Box::new(conductor)).unwrap();
        let taken = taken.lock().unwrap();
        let came: Vec<usize> =
            taken.values().flat_map(|d| &d.parcels).map(|p| place(&p.batch)).collect();
        assert_eq!(came, *places.lock().unwrap());
    }
}

/// Prints latencies of the machine, and asserts only what also holds on a busy one.
#[test]
fn latencies() {
    let env = Env::real();
    for workers in [1, 2] {
        // Epochs one after another without input: opened, followed, closed.
        const EPOCHS: u64 = 2000;
        let gate = Gate::new(u64::MAX);
        let inputs =
            (0..workers).map(|w| input(w as u32, w, Count::new(w as u32, 0, At::Wait))).collect();
        let mine = gate.clone();
        let turn = move |closed, _: &mut Deposits| {
            if closed == EPOCHS {
                return Ok(Turn::Stop);
            }
            if mine.epoch() == closed {
                mine.open(closed + 1);
            }
            Ok(Turn::Idle)
        };
        let before = env.clock.monotonic_ns();
        run(spec(workers, inputs), gate, Box::new(Script(turn))).unwrap();
        let epoch_us = (env.clock.monotonic_ns() - before) / EPOCHS / 1000;
        println!("{workers} workers: {epoch_us} us an empty epoch");

        // A row that is pushed to a sleeping worker from outside, until it is deposited.
        const PUSHES: u64 = 300;
        let gate = Gate::new(u64::MAX);
        let there = Arc::new(AtomicU64::new(0));
        let deposited = Arc::new(AtomicU64::new(0));
        let pushed = Pushed { there: there.clone(), count: Count::new(0, 0, At::Wait) };
        let (mine, seen) = (gate.clone(), deposited.clone());
        let turn = move |_, deposits: &mut Deposits| {
            if mine.epoch() == 0 {
                mine.open(1);
            }
            for report in deposits.take(1).reports {
                seen.store(report.next_offset, Ordering::Release);
            }
            Ok(Turn::Idle)
        };
        let (waker, clock) = (gate.clone(), env.clock.clone());
        let outside = move || {
            let mut times = Vec::new();
            for row in 1..=PUSHES {
                clock.sleep_us(2000);
                let before = clock.monotonic_ns();
                there.store(row, Ordering::Release);
                waker.wake_source(SourceId(0));
                while deposited.load(Ordering::Acquire) < row {
                    std::hint::spin_loop();
                }
                times.push(clock.monotonic_ns() - before);
            }
            waker.stop();
            times.sort_unstable();
            println!("push to deposit: p50 {} us, p99 {} us", times[150] / 1000, times[297] / 1000);
        };
        let outside = env.threads.spawn("outside", Box::new(outside)).unwrap();
        let mut spec = spec(workers, vec![input(0, workers - 1, pushed)]);
        spec.park_us = 100_000;
        run(spec, gate, Box::new(Script(turn))).unwrap();
        outside.join().unwrap();
    }
}
