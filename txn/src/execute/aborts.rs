//! The aborts of an epoch, of one handler.
//!
//! An abort of an input event is that event's row with a reason. So a running transaction only
//! notes its number and that of the reason: two words, which are collected, divided and ordered
//! like all other outputs. After the epoch, the rows are taken from the input, by column.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::builder::StringBuilder;
use arrow_array::ArrayRef;
use tidemill_core::batch::{Batch, BatchBuilder};
use tidemill_core::{Schema, StreamId, Value};

use super::output::{Origin, RawRows, WordRows};
use super::segment::Reason;
use crate::order::Epoch;
use crate::pool::{Pool, SingleThread};

/// The first number of reasons that are texts. Lower numbers are reasons of compiled code.
const TEXTS: usize = 1 << 16;

/// The number of aborts below which the help of other threads does not pay.
const FEW: usize = 1000;

/// The aborts of one handler, in order.
#[derive(Debug)]
pub(crate) struct AbortRows {
    schema: Arc<Schema>,
    /// The aborts of input events: a column with the numbers of reasons.
    noted: WordRows,
    /// The reasons that compiled code does not number. A closure has few.
    texts: Vec<&'static str>,
    /// All other aborts, as whole rows.
    rows: Option<BatchBuilder>,
    origins: Vec<Origin>,
    /// The number of aborts noted before each such row.
    before: Vec<usize>,
}

impl AbortRows {
    /// Creates space for about `room` aborts.
    pub(crate) fn new(schema: Arc<Schema>, room: usize) -> AbortRows {
        AbortRows {
            noted: WordRows::new(1, room),
            texts: Vec::new(),
            rows: None,
            origins: Vec::new(),
            before: Vec::new(),
            schema,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.noted.len() + self.origins.len()
    }

    /// Notes that the transaction of an input event aborts.
    pub(crate) fn note(&mut self, origin: Origin, reason: Reason) {
        debug_assert!(origin.cause() == 0, "a derived event has a row");
        let number = match reason {
            Reason::Number(number) => usize::from(number),
            Reason::Text(text) => self.number(text),
        };
        self.noted.push(origin, 0, 1, |_| number as u64);
    }

    fn number(&mut self, text: &'static str) -> usize {
        let known = self.texts.iter().position(|of| *of == text);
        TEXTS
            + known.unwrap_or_else(|| {
                self.texts.push(text);
                self.texts.len() - 1
            })
    }

    /// Adds a transaction that aborts: its event, followed by the reason.
    pub(crate) fn push(&mut self, row: &[Value], origin: Origin) {
        let schema = &self.schema;
        self.rows.get_or_insert_with(|| BatchBuilder::new(schema.clone())).push(row);
        self.origins.push(origin);
        self.before.push(self.noted.len());
    }

    /// Takes the aborts that another instance has noted, with this instance's numbers of reasons.
    pub(crate) fn take_from(&mut self, other: &mut AbortRows) -> RawRows {
        assert!(other.origins.is_empty(), "in-place executors have no whole rows of aborts");
        let mut raw = other.noted.take();
        let own: Vec<usize> = other.texts.drain(..).map(|text| self.number(text)).collect();
        let is_same = own.iter().enumerate().all(|(of, number)| TEXTS + of == *number);
        if !is_same {
            for number in &mut raw.columns[0] {
                let text = (*number as usize).checked_sub(TEXTS);
                *number = text.map_or(*number, |text| own[text] as i64);
            }
        }
        raw
    }

    /// Returns the destination of the noted aborts.
    pub(crate) fn noted(&mut self) -> &mut WordRows {
        &mut self.noted
    }

    /// Returns all aborts. `numbered` are the reasons of compiled code.
    pub(crate) fn finish(
        &mut self,
        pool: &dyn Pool,
        epoch: &Epoch,
        numbered: &[String],
    ) -> (Batch, Vec<Origin>) {
        let RawRows { columns, origins: of } = self.noted.take();
        let texts = std::mem::take(&mut self.texts);
        let text = |number: i64| match (number as usize).checked_sub(TEXTS) {
            None => &numbered[number as usize][..],
            Some(text) => texts[text],
        };
        let noted = rows(pool, &self.schema, epoch, &of, |at| text(columns[0][at]));
        let before = std::mem::take(&mut self.before);
        let whole_of = std::mem::take(&mut self.origins);
        let Some(whole) = self.rows.as_mut().map(BatchBuilder::finish).filter(|w| !w.is_empty())
        else {
            return (noted, of);
        };
        if noted.is_empty() {
            return (whole, whole_of);
        }
        let (mut rows, mut origins, mut from) = (Vec::new(), Vec::new(), 0);
        for (at, before) in before.into_iter().chain([of.len()]).enumerate() {
            rows.extend((from..before).map(|row| (0, row as u32)));
            origins.extend_from_slice(&of[from..before]);
            from = before;
            if let Some(origin) = whole_of.get(at) {
                rows.push((1, at as u32));
                origins.push(*origin);
            }
        }
        (Batch::interleave(&[&noted, &whole], &rows), origins)
    }
}

/// Returns the input events of these transactions, all of one stream, each with a reason.
fn rows<'t>(
    pool: &dyn Pool,
    schema: &Arc<Schema>,
    epoch: &Epoch,
    of: &[Origin],
    reason: impl Fn(usize) -> &'t str + Sync,
) -> Batch {
    let ranked = |origin: &Origin| epoch.order[origin.root() as usize];
    let run = |lane: u32| epoch.lanes[lane as usize].run as usize;
    let Some(first) = of.first() else {
        return BatchBuilder::new(schema.clone()).finish();
    };
    let stream: StreamId = epoch.runs[run(ranked(first).lane)].stream;
    // The number of a run among those of the stream.
    let (mut batches, mut numbers) = (Vec::new(), vec![0; epoch.runs.len()]);
    for (number, run) in numbers.iter_mut().zip(&epoch.runs) {
        *number = batches.len();
        batches.extend((run.stream == stream).then_some(&run.batch));
    }
    let places = of.iter().map(ranked);
    let places: Vec<(usize, usize)> =
        places.map(|ranked| (numbers[run(ranked.lane)], ranked.row as usize)).collect();
    let columns = schema.len();
    let pool = if of.len() < FEW { &SingleThread } else { pool };
    let made: Vec<Mutex<Option<ArrayRef>>> = (0..columns).map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    // The reasons take longest, so they are first.
    let take = || (columns - 1).checked_sub(next.fetch_add(1, Ordering::Relaxed));
    pool.run(&|_| {
        while let Some(column) = take() {
            let array = match column == columns - 1 {
                true => texts(of.len(), &reason),
                false => Batch::gather(&batches, column, &places),
            };
            *made[column].lock().unwrap_or_else(PoisonError::into_inner) = Some(array);
        }
    });
    let made =
        made.into_iter().map(|made| made.into_inner().unwrap_or_else(PoisonError::into_inner));
    let made = made.map(|made| made.expect("every column has been built"));
    Batch::new(schema.clone(), made.collect(), of.len())
}

fn texts<'t>(len: usize, text: impl Fn(usize) -> &'t str) -> ArrayRef {
    let bytes = (0..len).map(|at| text(at).len()).sum();
    let mut texts = StringBuilder::with_capacity(len, bytes);
    (0..len).for_each(|at| texts.append_value(text(at)));
    Arc::new(texts.finish())
}

#[cfg(test)]
mod tests {
    use tidemill_core::{Column, DataType, SourceId};

    use super::*;
    use crate::order::{Lane, Ranked, Run};

    /// Creates an epoch of two runs of four events each, which alternate. One run has texts without
    /// nulls, the other with nulls.
    fn epoch() -> (Epoch, Arc<Schema>) {
        let text = Column { nullable: true, ..Column::new("text", DataType::Str) };
        let event = vec![Column::new("n", DataType::Int), text];
        let run = |source: u32| {
            let schema = Arc::new(Schema::new(event.clone()));
            let row = |n: i64| match n % 3 {
                0 => [Value::Int(n), Value::Null],
                _ => [Value::Int(n), Value::str(&format!("event {n}"))],
            };
            let rows: Vec<[Value; 2]> = (0..4).map(|n| row(2 * n + i64::from(source))).collect();
            Run {
                stream: StreamId(1),
                source: SourceId(source),
                batch: Batch::from_rows(schema, rows.iter().map(|row| &row[..])),
                offsets: (0..4).collect(),
                times: (0..4).map(|n| 2 * n + i64::from(source)).collect(),
                admitted: None,
            }
        };
        let runs = vec![run(0), run(1)];
        let lanes = (0..2).map(|run| Lane { run, handler: 0 }).collect();
        let order = (0..8).map(|n| Ranked { lane: n % 2, row: n / 2 }).collect();
        let aborts = event.iter().cloned().chain([Column::new("reason", DataType::Str)]);
        let aborts = Arc::new(Schema::new(aborts.collect()));
        (Epoch { runs, lanes, order, ..Epoch::default() }, aborts)
    }

    const NUMBERED: [&str; 2] = ["too little", "too late"];

    #[test]
    fn what_is_noted_and_what_is_whole_come_in_the_order_of_their_transactions() {
        let (epoch, schema) = epoch();
        let numbered = NUMBERED.map(String::from);
        let texts = ["refused", "broken"];
        // Each of eight transactions commits, is noted with a number or with a text, or is a whole
        // row.
        for kinds in 0..4u32.pow(8) {
            let mut aborts = AbortRows::new(schema.clone(), 0);
            let mut expected = Vec::new();
            for rank in 0..8u32 {
                let ranked = epoch.order[rank as usize];
                let origin = Origin::new(rank, 0, 0);
                let nth = rank as usize % 2;
                let reason = match kinds >> (2 * rank) & 3 {
                    0 => continue,
                    1 => NUMBERED[nth].to_string(),
                    2 => texts[nth].to_string(),
                    _ => format!("a function says {rank}"),
                };
                let mut row =
                    epoch.runs[ranked.lane as usize].batch.row(ranked.row as usize).to_vec();
                row.push(Value::str(&reason));
                match kinds >> (2 * rank) & 3 {
                    1 => aborts.note(origin, Reason::Number(nth as u16)),
                    2 => aborts.note(origin, Reason::Text(texts[nth])),
                    _ => aborts.push(&row, origin),
                }
                expected.push((origin, row));
            }
            assert_eq!(aborts.len(), expected.len());
            let (batch, origins) = aborts.finish(&SingleThread, &epoch, &numbered);
            let rows = origins.into_iter().zip(batch.rows().map(|row| row.to_vec()));
            assert_eq!(rows.collect::<Vec<_>>(), expected, "{kinds:o}");
        }
    }

    #[test]
    fn reasons_that_two_threads_number_each_in_its_own_way_stay_what_they_are() {
        let (epoch, schema) = epoch();
        let numbered = NUMBERED.map(String::from);
        let texts = ["refused", "broken", "empty"];
        let mut all = AbortRows::new(schema.clone(), 0);
        let mut expected = Vec::new();
        for thread in 0..2 {
            let mut own = AbortRows::new(schema.clone(), 0);
            for rank in 4 * thread..4 * thread + 4 {
                // The last reason of the first thread is the first reason of the second one.
                let (reason, text) = match rank % 4 {
                    3 => (Reason::Number(thread as u16), NUMBERED[thread as usize]),
                    nth => {
                        let text = texts[if thread == 0 { nth } else { 2 - nth } as usize];
                        (Reason::Text(text), text)
                    }
                };
                own.note(Origin::new(rank, 0, 0), reason);
                expected.push(Value::str(text));
            }
            let raw = all.take_from(&mut own);
            all.noted().append(4, |columns, origins| {
                columns[0].extend(&raw.columns[0]);
                origins.extend(&raw.origins);
            });
        }
        let (batch, _) = all.finish(&SingleThread, &epoch, &numbered);
        let reasons: Vec<Value> = (0..8).map(|row| batch.value(2, row)).collect();
        assert_eq!(reasons, expected);
    }
}
