//! Events by column have the places that they have one by one, at any number of workers, also after
//! a recovery.

use tidemill_core::{Batch, Column, DataType, Row};

use super::*;
use crate::records::{Events, Record};
use crate::worker::run::Source;
use crate::Settings;

/// Two streams in event time. Events of the second one have two transactions each.
struct Timed {
    program: Program,
    by_column: bool,
}

const HANDLERS: [&[usize]; 2] = [&[0], &[1, 2]];

impl Timed {
    fn new(by_column: bool) -> Timed {
        let mut b = Builder::new("timed");
        for (name, late) in [("side", Late::Side), ("admit", Late::Admit)] {
            let stream = b.stream(name, ["at", "n"].map(|n| Column::new(n, DataType::Int)).into());
            b.event_time(stream, "at", late);
        }
        Timed { program: b.finish().expect("a program"), by_column }
    }
}

impl Functions for Timed {
    fn program(&self) -> &Program {
        &self.program
    }

    fn begin(&self, _: &Call) -> Result<Box<dyn Activation>, Abort> {
        unreachable!("the test executes no calls")
    }

    fn event(&self, stream: StreamId, row: &[Value]) -> Vec<Call> {
        HANDLERS[stream.index()].iter().map(|handler| self.handler_call(*handler, row)).collect()
    }

    fn by_column(&self, stream: StreamId) -> Option<&[usize]> {
        self.by_column.then_some(HANDLERS[stream.index()])
    }

    fn handler_call(&self, handler: usize, row: &[Value]) -> Call {
        let args = row.iter().cloned().chain([Value::Int(0)]).collect();
        let target = Target::Function(handler as u32);
        Call { target, table: TableId(0), key: [].into(), args }
    }

    fn timed(&self, call: &Call) -> Option<(StreamId, i64)> {
        match call.target {
            Target::Function(handler @ 0..=2) => {
                Some((StreamId(handler.min(1) as u16), word(call, 0)))
            }
            _ => None,
        }
    }

    fn late(&self, call: Call) -> Call {
        Call { target: Target::Function(ASIDE), ..call }
    }

    fn admitted(&self, call: Call, time_us: i64) -> Call {
        with(call, 2, time_us)
    }
}

/// A record: its stream, whether each of its events has an offset, and the times of the events,
/// after a time that advances with each record.
type Timeds = (u16, bool, Vec<i64>);

fn timeds() -> impl Strategy<Value = Vec<Vec<Timeds>>> {
    let record = (0..2u16, any::<bool>(), prop::collection::vec(0..8i64, 1..6));
    prop::collection::vec(prop::collection::vec(record, 0..12), SOURCES as usize)
}

fn settings(event_time: &Arc<EventTime>) -> Settings {
    Settings {
        seed: 7,
        program: 0,
        sources: SOURCES,
        followed: 0,
        lease_us: 1,
        beat_us: 1,
        form_us: 1,
        epoch_max: 9,
        columns_max: 9,
        has_sole_owner: false,
        alternates: false,
        outputs_max: 1,
        output_bytes: 1,
        copies_outputs: false,
        snapshot_every: 1,
        snapshot_us: 1,
        event_time: event_time.clone(),
        resumed: [].into(),
        buffered_bytes_max: u64::MAX,
        memory_bytes_max: u64::MAX,
        stops_on_fault: false,
        clock_jump_us_max: i64::MAX,
        deaths_max: u32::MAX,
        function: tidemill_function::Settings::default(),
    }
}

/// Executes cuts that take this many records of each source, at this many workers. After the epoch
/// `again`, all workers begin again. Also returns the transactions that are executed by column.
fn run(
    functions: &Timed,
    workers: u32,
    all: &[Vec<Timeds>],
    (step, again): (usize, u64),
) -> (Vec<Epoch>, Vec<Tid>) {
    let source = |nth: u32| EventSource {
        source: nth / 2,
        stream: StreamId((nth % 2) as u16),
        group: 0,
        out_of_orderness_us: i64::from(3 * nth),
        idle_us: None,
        late: [Late::Side, Late::Admit][(nth % 2) as usize],
    };
    let of = Arc::new(EventTime::new((0..2 * SOURCES).map(source).collect(), Vec::new()));
    let settings = settings(&of);
    let mut times = of.begin();
    let manifest = Manifest { times: times.clone(), ..Manifest::default() };
    let mut ranks: Vec<Ranks> = (0..workers).map(|_| Ranks::after(of.clone(), &manifest)).collect();
    let mut sources: Vec<Source> =
        (0..SOURCES).map(|nth| Source::new(nth, 0, of.newest(&times))).collect();
    let mut records: Vec<Vec<(u64, Record)>> = vec![Vec::new(); SOURCES as usize];
    let (mut upto, mut n, mut epochs) = (vec![0; SOURCES as usize], 0, Vec::new());
    let mut columns = Vec::new();
    let longest = all.iter().map(Vec::len).max().unwrap_or(0);
    for epoch in 1..=longest.div_ceil(step) {
        let (from, at) = (upto.clone(), (epoch - 1) * step);
        let mut read: Vec<Vec<(u32, Item)>> = (0..workers).map(|_| Vec::new()).collect();
        for (nth, all) in all.iter().enumerate() {
            let mut new = Vec::new();
            for (number, (stream, is_run, of)) in all.iter().enumerate().skip(at).take(step) {
                let rows: Vec<Row> = (0..)
                    .zip(of)
                    .map(|(row, time)| {
                        [Value::Int(4 * number as i64 + time), Value::Int(n + row)].into()
                    })
                    .collect();
                n += rows.len() as i64;
                let stream = StreamId(*stream);
                let schema = functions.program.streams[stream.index()].spec.schema.clone();
                let batch = Batch::from_rows(schema, rows.iter().map(|row| &row[..]));
                let events = Events { stream, from: None, is_run: *is_run, batch };
                let offset = upto[nth];
                upto[nth] += events.offsets();
                new.push((offset, Record::Events(events)));
            }
            records[nth].extend(new.clone());
            let source = &mut sources[nth];
            let pieces = source.take(new, upto[nth], functions, &settings);
            let rows = pieces.iter().map(|piece| piece.requests).sum::<u64>();
            for span in pieces.iter().flat_map(|piece| &piece.times) {
                let newest = &mut times.newest[span.event_source as usize];
                *newest = (*newest).max(Some(span.newest_us));
            }
            let items = source.until(upto[nth]).into_iter().map(|item| (nth as u32, item));
            let items: Vec<(u32, Item)> = items.collect();
            assert_eq!(items.iter().map(|(_, item)| item.tasks()).sum::<u64>(), rows);
            read[nth % workers as usize].extend(items);
        }
        of.advance(&mut times, &upto);
        let (epoch, base) = (epoch as u64, (epoch as u64) << 20);
        let (count, clock_us) = (1 << 20, 0);
        let (upto, times) = (upto.clone(), times.clone());
        let (by_owner, stops_on_fault) = (true, false);
        let cut =
            CutRecord { epoch, clock_us, base, count, from, upto, times, by_owner, stops_on_fault };
        let take = |(ranks, read): (&mut Ranks, _)| ranks.take(&cut, read, workers == 1, functions);
        let reported: Vec<RankReport> = ranks.iter_mut().zip(read).map(take).collect();
        let mut calls = Vec::new();
        for (nth, ranks) in ranks.iter_mut().enumerate() {
            for (other, reported) in reported.iter().enumerate().filter(|(of, _)| *of != nth) {
                ranks.receive(epoch, NodeId(other as u16), reported.clone());
            }
            let (order, others) = (Sequencing { sources: SOURCES, base }, workers as usize - 1);
            let (parts, _) =
                ranks.places(epoch, order, others, (5, 7), functions).expect("all reported");
            for PartWork { tasks, runs } in parts {
                calls.extend(tasks.into_iter().map(|(tid, task)| (tid, task.call)));
                let of_runs = runs.iter().flat_map(|run| run.tasks(functions));
                let of_runs: Vec<(Tid, Call)> =
                    of_runs.map(|(tid, task)| (tid, task.call)).collect();
                columns.extend(of_runs.iter().map(|(tid, _)| *tid));
                calls.extend(of_runs);
            }
        }
        calls.sort_by_key(|(tid, _)| *tid);
        epochs.push(calls);
        if epoch == again {
            let waiting = Some(ranks.iter().flat_map(Ranks::first).collect());
            let manifest = Manifest { times: cut.times.clone(), waiting, ..Manifest::default() };
            for (worker, ranks) in ranks.iter_mut().enumerate() {
                let before = ranks.buffered().events;
                *ranks = Ranks::after(of.clone(), &manifest);
                for nth in (worker..SOURCES as usize).step_by(workers as usize) {
                    for (offset, record) in records[nth].clone() {
                        Read::items((nth as u32, offset, record), 0, &of, functions, |item| {
                            ranks.restore(item, 0..u64::MAX, functions);
                        });
                    }
                }
                assert_eq!(ranks.buffered().events, before);
            }
        }
    }
    columns.sort_unstable();
    (epochs, columns)
}

proptest! {
    #[test]
    fn events_by_column_have_the_same_places(
        all in timeds(), step in 1..4usize, again in 0..8u64,
    ) {
        let (one_by_one, _) = run(&Timed::new(false), 1, &all, (step, 0));
        for workers in 1..=3 {
            let (by_column, columns) = run(&Timed::new(true), workers, &all, (step, again));
            prop_assert_eq!(by_column, one_by_one.clone(), "{} workers", workers);
            // A recovery executes the same events by column, because outputs have other numbers.
            let (_, before) = run(&Timed::new(true), workers, &all, (step, 0));
            prop_assert_eq!(columns, before, "{} workers", workers);
        }
    }
}
