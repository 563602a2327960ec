//! The state after an epoch beside the tables, as the bytes of a snapshot: positions of sources and
//! sinks, the state of sequencer and executor, buffered events, counters.
//!
//! The bytes are a version (u16), the length (u32) and JSON of everything but buffered events, and
//! then the buffered events. These are the number of runs (u32) and the runs. A run has stream
//! (u16), source (u32), and whether it was admitted (u8), and if so watermark (time, source,
//! offset) and epoch. Then follow number of events (u32), offsets, times and columns.
//!
//! Since version 2 the last rows of dead-letter and late streams follow, and since version 3 those
//! of outputs. They are the number of streams (u32), each with its name, the number after its last
//! row (u64), and number of batches (u32). A batch has number of rows (u32) and columns.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidemill_connect::{Place, SinkPlace};
use tidemill_core::wire::{
    put_bytes, put_columns, put_u16, put_u32, put_u64, take_bytes, take_columns, take_text,
    take_u16, take_u32, take_u64, take_u64s, take_u8,
};
use tidemill_core::{Batch, Error, Position, Result, SourceId, StreamId};
use tidemill_txn::order::{ends_of, Groups, Run, SequencerState};
use tidemill_txn::program::{Body, Handler, Program};

use crate::counts::Counts;
use crate::outlets::dead_schema;
use tidemill_txn::reasons::Reasons;

const VERSION: u16 = 3;

/// The state of an engine after a cut, without its tables.
#[derive(Clone, Debug)]
pub(crate) struct Internal {
    pub(crate) facts: Facts,
    pub(crate) buffered: Vec<Run>,
    /// The last rows of dead-letter and late streams, and of outputs.
    pub(crate) rings: Vec<RingFacts>,
}

/// The retained last rows of a stream.
#[derive(Clone, Debug)]
pub(crate) struct RingFacts {
    pub(crate) stream: String,
    /// The number after its last row.
    pub(crate) next: u64,
    pub(crate) batches: Vec<Batch>,
}

/// The small parts of the state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Facts {
    pub(crate) epoch: u64,
    pub(crate) clock_us: i64,
    pub(crate) watermarks: Vec<Position>,
    /// The number of the last transaction.
    pub(crate) seq: u64,
    pub(crate) sources: Vec<SourceFacts>,
    /// The rows of each table, to reserve memory at once.
    pub(crate) tables: Vec<u64>,
    /// For each table, the time before which no event reaches it any more, in microseconds.
    #[serde(default)]
    pub(crate) frontiers_us: Vec<i64>,
    pub(crate) counts: Counts,
    /// The counts of each output stream.
    pub(crate) outlets: BTreeMap<String, OutletFacts>,
    /// The positions of sinks, in the order of their declaration.
    pub(crate) sinks: Vec<SinkFacts>,
    /// The reasons of aborts.
    #[serde(default)]
    pub(crate) reasons: Reasons,
    /// The salt of random numbers. A state that comes from several processes has one, because its
    /// pushed events are numbered from 0.
    #[serde(default)]
    pub(crate) salt: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SourceFacts {
    pub(crate) name: String,
    pub(crate) next_offset: u64,
    pub(crate) time_max: Option<i64>,
    pub(crate) ended: bool,
    pub(crate) place: Place,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutletFacts {
    pub(crate) rows: u64,
    /// The hash, in hexadecimal.
    pub(crate) hash: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SinkFacts {
    pub(crate) stream: String,
    pub(crate) path: String,
    pub(crate) place: SinkPlace,
}

impl Facts {
    /// Corrects the watermarks of an earlier version. When everything had ended, it left them after
    /// all possible events. They belong where the sources ended. This is skipped for a program from
    /// a directory without its closures, which no run continues.
    fn ended(&mut self, program: &Program) -> Result<()> {
        let is_over = |mark: &Position| *mark == Position::MAX;
        let has_places = self.sources.len() == program.sources.len();
        let has_body = |handler: &Handler| match handler.body {
            Body::Native(native) => native < program.natives.len(),
            Body::Declared(_) | Body::Opaque(_) => true,
        };
        let goes_on = has_places && program.handlers.iter().all(has_body);
        if !goes_on || !self.watermarks.iter().any(is_over) {
            return Ok(());
        }
        let ends = self.sources.iter().map(|source| (source.time_max, source.next_offset));
        let ends = ends_of(program, ends)?;
        for (mark, end) in self.watermarks.iter_mut().zip(ends) {
            if let (true, Some(end)) = (is_over(mark), end) {
                *mark = end;
            }
        }
        let frontiers_us = Groups::of(program)?.frontiers_us(&self.watermarks, self.clock_us);
        for (frontier_us, now_us) in self.frontiers_us.iter_mut().zip(frontiers_us) {
            *frontier_us = (*frontier_us).min(now_us);
        }
        Ok(())
    }

    /// The time before which no event reaches a table any more, in microseconds.
    pub(crate) fn frontier_us(&self, table: usize) -> i64 {
        self.frontiers_us.get(table).copied().unwrap_or(i64::MIN)
    }
}

impl Internal {
    pub(crate) fn sequencer(&self) -> SequencerState {
        SequencerState {
            epoch: self.facts.epoch,
            clock_us: self.facts.clock_us,
            watermarks: self.facts.watermarks.clone(),
            buffered: self.buffered.clone(),
            salt: self.facts.salt,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_u16(VERSION, &mut out);
        put_bytes(&serde_json::to_vec(&self.facts).expect("facts are JSON"), &mut out);
        put_u32(self.buffered.len() as u32, &mut out);
        for run in &self.buffered {
            put_u16(run.stream.0, &mut out);
            put_u32(run.source.0, &mut out);
            out.push(u8::from(run.admitted.is_some()));
            if let Some((at, epoch)) = run.admitted {
                put_u64(at.time_us as u64, &mut out);
                put_u32(at.source.0, &mut out);
                put_u64(at.offset, &mut out);
                put_u64(epoch, &mut out);
            }
            put_u32(run.offsets.len() as u32, &mut out);
            run.offsets.iter().for_each(|offset| put_u64(*offset, &mut out));
            run.times.iter().for_each(|time| put_u64(*time as u64, &mut out));
            put_columns(&run.batch, &mut out);
        }
        put_u32(self.rings.len() as u32, &mut out);
        for RingFacts { stream, next, batches } in &self.rings {
            put_bytes(stream.as_bytes(), &mut out);
            put_u64(*next, &mut out);
            put_u32(batches.len() as u32, &mut out);
            for batch in batches {
                put_u32(batch.len() as u32, &mut out);
                put_columns(batch, &mut out);
            }
        }
        out
    }

    /// Decodes the state of an engine that runs this program.
    pub(crate) fn decode(program: &Program, bytes: &[u8]) -> Result<Internal> {
        let damaged = || {
            Error::io(
                "the internal state of a snapshot",
                &std::io::Error::new(std::io::ErrorKind::InvalidData, "its bytes can't be decoded"),
            )
            .help(
                "it was written by another version of tidemill, or it is damaged: restore a backup",
            )
        };
        let mut input = bytes;
        let version = take_u16(&mut input).filter(|v| (1..=VERSION).contains(v));
        let version = version.ok_or_else(damaged)?;
        let facts = take_bytes(&mut input).ok_or_else(damaged)?;
        let mut facts: Facts = serde_json::from_slice(facts).map_err(|_| damaged())?;
        facts.ended(program)?;
        let buffered = take_buffered(program, &mut input).ok_or_else(damaged)?;
        let rings = match version {
            1 => Some(Vec::new()),
            _ => take_rings(program, &mut input),
        };
        let rings = rings.filter(|_| input.is_empty()).ok_or_else(damaged)?;
        Ok(Internal { facts, buffered, rings })
    }
}

fn take_buffered(program: &Program, input: &mut &[u8]) -> Option<Vec<Run>> {
    let mut buffered = Vec::new();
    for _ in 0..take_u32(input)? {
        let (stream, source) = (StreamId(take_u16(input)?), SourceId(take_u32(input)?));
        let admitted = match take_u8(input)? {
            0 => None,
            _ => {
                let time_us = take_u64(input)? as i64;
                let (source, offset) = (SourceId(take_u32(input)?), take_u64(input)?);
                Some((Position { time_us, source, offset }, take_u64(input)?))
            }
        };
        let rows = take_u32(input)? as usize;
        let offsets = take_u64s(rows, input)?;
        let times = take_u64s(rows, input)?.into_iter().map(|time| time as i64).collect();
        let schema = &program.streams.get(stream.index())?.spec.schema;
        let batch = take_columns(schema, rows, input)?;
        buffered.push(Run { stream, source, batch, offsets, times, admitted });
    }
    Some(buffered)
}

fn take_rings(program: &Program, input: &mut &[u8]) -> Option<Vec<RingFacts>> {
    let mut rings = Vec::new();
    for _ in 0..take_u32(input)? {
        let (stream, next) = (take_text(input)?.to_owned(), take_u64(input)?);
        let named = |name: &str| program.streams.iter().find(|s| &*s.spec.name == name);
        let schema = match (
            named(&stream).filter(|stream| stream.is_output()),
            stream.strip_suffix(".late"),
        ) {
            (Some(output), _) => output.spec.schema.clone(),
            (None, Some(name)) => named(name)?.spec.schema.clone(),
            (None, None) => dead_schema(),
        };
        let mut batches = Vec::new();
        let mut held = 0u64;
        for _ in 0..take_u32(input)? {
            let rows = take_u32(input)? as usize;
            batches.push(take_columns(&schema, rows, input)?);
            held += rows as u64;
        }
        (held <= next).then_some(())?;
        rings.push(RingFacts { stream, next, batches });
    }
    Some(rings)
}

#[cfg(test)]
mod tests {
    use tidemill_core::{Column, DataType, Late};
    use tidemill_txn::program::Builder;

    use super::*;

    /// In earlier versions, rows that a file got after its end were late.
    #[test]
    fn what_had_ended_in_an_earlier_version_goes_on() {
        let mut b = Builder::new("ended");
        let columns = ["id", "at"].map(|name| Column::new(name, DataType::Int)).to_vec();
        let table = b.table("t", &["id"], columns.clone());
        for (name, ends) in [("left", 2), ("right", 1), ("other", 1)] {
            let stream = b.stream(name, columns.clone());
            if name != "other" {
                b.event_time(stream, "at", Late::Side);
            }
            for nth in 0..ends {
                b.source(&format!("{name}/{nth}"), stream, 5);
            }
            if name != "other" {
                let mut h = b.handler(&format!("on {name}"), stream);
                let id = h.column("id");
                let row = h.row(table, &[id]);
                h.set(row, "at", id);
                h.done();
            }
        }
        let program = b.finish().unwrap();
        let source = |name: &str, time_max| SourceFacts {
            name: name.into(),
            next_offset: 7,
            time_max,
            ended: true,
            place: Place::start(),
        };
        let sources = vec![
            source("left/0", Some(30)),
            source("left/1", None),
            source("right/0", Some(40)),
            source("other/0", None),
        ];
        let watermarks = vec![Position::MAX; program.streams.len()];
        let facts = Facts {
            watermarks,
            sources,
            frontiers_us: vec![i64::MAX],
            counts: Counts::none(&program),
            ..Facts::default()
        };
        let before = Internal { facts, buffered: Vec::new(), rings: Vec::new() };
        let Internal { facts, .. } = Internal::decode(&program, &before.encode()).unwrap();
        let end = Position { time_us: 40, source: SourceId(2), offset: 7 };
        let index = |name: &str| program.streams.iter().position(|of| &*of.spec.name == name);
        let mark = |name: &str| facts.watermarks[index(name).unwrap()];
        assert_eq!(["left", "right", "other"].map(mark), [end, end, Position::MAX]);
        assert_eq!(facts.frontiers_us, [40]);
    }
}
