//! The meaning of the records of the two logs, to the byte. Each begins with its version.
//!
//! A *rows* record (input log) has version (1), source (u32), the offset after the rows (u64),
//! number of rows (u32), their offsets (u64 each), and their columns. The number of bad rows (u32)
//! follows, each with its offset (u64), line (u64), origin, raw text and reason.
//!
//! A *verdict* record (input log) has version (1), source (u32), offset (u64), epoch (u64), and
//! reason. The event at that offset is quarantined, from that epoch on.
//!
//! A *cut* record (cut log) has version (1 to 5), epoch (u64), clock (u64), the fingerprint (u128),
//! and the hash of all outputs after it (u128). Offsets (u32, u64 each), watermarks (u32; time,
//! source and offset each), and idle and ended sources (u32, u32 each) follow. Then come the
//! sources whose position has changed since the cut before (u32), each with its number (u32) and
//! its position as JSON.
//!
//! - Version 2 adds each opaque handler that has committed in the epoch (u32): its number (u32),
//!   and the hash of all that it wrote (u64). In version 1 there was none, or no check.
//! - Version 3 adds each call of a function that took too long (u32): source (u32) and offset (u64)
//!   of its event, which of its calls it was (u32), and reason.
//! - Version 4, of strong recovery, adds the transactions (see `put_commands`).
//! - Version 5 adds whether there are transactions (u8), the transactions, and the answers from
//!   outside (u32). Each has the hash of the question (u128), and the answer.
//!
//! A *cut behind* record (cut log) has the number of records of the input log that come before the
//! cut, and were durable before it was (u64). The fields of a cut record follow. Earlier versions
//! wrote only cut records.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_connect::{BadRow, Chunk, Place};
use tidemill_core::wire::{
    put_bytes, put_u128, put_u32, put_u64, take_bytes, take_columns, take_text, take_u128,
    take_u32, take_u64, take_u64s, take_u8,
};
use tidemill_core::{Cut, Error, Position, Result, Schema, SourceId};
use tidemill_log::Record;
use tidemill_txn::execute::Overdue;
use tidemill_txn::program::QuestionId;

/// The kinds of records.
pub(crate) const ROWS: u8 = 1;
pub(crate) const VERDICT: u8 = 2;
const CUT: u8 = 3;
pub(crate) const CUT_BEHIND: u8 = 4;

const VERSION: u8 = 1;
/// The version of a cut record with hashes of the writes of opaque handlers.
const WRITTEN_VERSION: u8 = 2;
/// The version that adds the calls of functions that took too long.
const OVERDUE_VERSION: u8 = 3;
/// The version that adds all transactions.
const COMMANDS_VERSION: u8 = 4;
/// The version that adds the answers from outside.
const ANSWERS_VERSION: u8 = 5;

/// Encodes pushed rows.
pub(crate) fn put_rows(source: SourceId, chunk: &Chunk) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + chunk.batch.bytes() + 8 * chunk.offsets.len());
    out.push(VERSION);
    put_u32(source.0, &mut out);
    put_u64(chunk.next_offset, &mut out);
    put_u32(chunk.batch.len() as u32, &mut out);
    chunk.offsets.iter().for_each(|offset| put_u64(*offset, &mut out));
    tidemill_core::wire::put_columns(&chunk.batch, &mut out);
    put_u32(chunk.bad.len() as u32, &mut out);
    for bad in &chunk.bad {
        put_u64(bad.offset, &mut out);
        put_u64(bad.line, &mut out);
        for text in [&*bad.origin, &bad.raw, &bad.reason] {
            put_bytes(text.as_bytes(), &mut out);
        }
    }
    out
}

/// The source of a rows record and the offset after it, without decoding the rest.
pub(crate) fn rows_end(bytes: &[u8]) -> Result<(SourceId, u64)> {
    let take = |mut input: &[u8]| {
        (take_u8(&mut input)? == VERSION).then_some(())?;
        Some((SourceId(take_u32(&mut input)?), take_u64(&mut input)?))
    };
    take(bytes).ok_or_else(|| unreadable("rows"))
}

/// Decodes the rows of a rows record.
pub(crate) fn take_rows(schema: &Arc<Schema>, bytes: &[u8]) -> Result<Chunk> {
    let take = |mut input: &[u8]| {
        let input = &mut input;
        (take_u8(input)? == VERSION).then_some(())?;
        take_u32(input)?;
        let next_offset = take_u64(input)?;
        let rows = take_u32(input)? as usize;
        let offsets = take_u64s(rows, input)?;
        let batch = take_columns(schema, rows, input)?;
        let mut bad = Vec::new();
        for _ in 0..take_u32(input)? {
            bad.push(BadRow {
                offset: take_u64(input)?,
                line: take_u64(input)?,
                origin: take_text(input)?.into(),
                raw: take_text(input)?.to_owned(),
                reason: take_text(input)?.to_owned(),
            });
        }
        input.is_empty().then_some(Chunk { batch, offsets, bad, next_offset })
    };
    take(bytes).ok_or_else(|| unreadable("rows"))
}

/// The record of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CutRecord {
    pub(crate) cut: Cut,
    pub(crate) fingerprint: u128,
    /// The hash of all outputs up to this cut.
    pub(crate) output_hash: u128,
    /// The changed positions of sources.
    pub(crate) places: Vec<(SourceId, Place)>,
    /// Hashes of the rows that opaque handlers have written, by their numbers.
    pub(crate) written: BTreeMap<usize, u64>,
    /// Calls of functions that took too long: a verdict of the clock, which a replay obeys.
    pub(crate) overdue: Vec<Overdue>,
    /// All transactions, where recovery is strong.
    pub(crate) commands: Option<Vec<u8>>,
    /// The answers from outside that transactions received.
    pub(crate) answers: Vec<(QuestionId, Arc<[u8]>)>,
}

impl CutRecord {
    /// Whether the written rows are the same, as far as that is known.
    pub(crate) fn has_written(&self, written: &BTreeMap<usize, u64>) -> bool {
        self.written.is_empty() || self.written == *written
    }
}

fn put_cut(record: &CutRecord) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    let CutRecord { cut, fingerprint, output_hash, places, written, overdue, commands, answers } =
        record;
    let version = match (written.is_empty(), overdue.is_empty()) {
        _ if !answers.is_empty() => ANSWERS_VERSION,
        _ if commands.is_some() => COMMANDS_VERSION,
        (_, false) => OVERDUE_VERSION,
        (false, true) => WRITTEN_VERSION,
        (true, true) => VERSION,
    };
    out.push(version);
    put_u64(cut.epoch, &mut out);
    put_u64(cut.clock_us as u64, &mut out);
    put_u128(*fingerprint, &mut out);
    put_u128(*output_hash, &mut out);
    put_u32(cut.offsets.len() as u32, &mut out);
    cut.offsets.iter().for_each(|offset| put_u64(*offset, &mut out));
    put_u32(cut.watermarks.len() as u32, &mut out);
    for at in &cut.watermarks {
        put_u64(at.time_us as u64, &mut out);
        put_u32(at.source.0, &mut out);
        put_u64(at.offset, &mut out);
    }
    for sources in [&cut.idle, &cut.ended] {
        put_u32(sources.len() as u32, &mut out);
        sources.iter().for_each(|source| put_u32(source.0, &mut out));
    }
    put_u32(places.len() as u32, &mut out);
    for (source, place) in places {
        put_u32(source.0, &mut out);
        put_bytes(&serde_json::to_vec(place).expect("a place is JSON"), &mut out);
    }
    if version > VERSION {
        put_u32(written.len() as u32, &mut out);
    }
    for (handler, hash) in written {
        put_u32(*handler as u32, &mut out);
        put_u64(*hash, &mut out);
    }
    if version >= OVERDUE_VERSION {
        put_u32(overdue.len() as u32, &mut out);
    }
    for Overdue { event: (source, offset), call, reason } in overdue {
        put_u32(source.0, &mut out);
        put_u64(*offset, &mut out);
        put_u32(*call, &mut out);
        put_bytes(reason.as_bytes(), &mut out);
    }
    if version >= ANSWERS_VERSION {
        out.push(u8::from(commands.is_some()));
    }
    commands.iter().for_each(|commands| put_bytes(commands, &mut out));
    if version >= ANSWERS_VERSION {
        put_u32(answers.len() as u32, &mut out);
    }
    for (asked, answer) in answers {
        put_u128(*asked, &mut out);
        put_bytes(answer, &mut out);
    }
    out
}

fn take_cut(bytes: &[u8]) -> Result<CutRecord> {
    let take = |mut input: &[u8]| {
        let input = &mut input;
        let version = take_u8(input).filter(|v| (VERSION..=ANSWERS_VERSION).contains(v))?;
        let (epoch, clock_us) = (take_u64(input)?, take_u64(input)? as i64);
        let (fingerprint, output_hash) = (take_u128(input)?, take_u128(input)?);
        let count = take_u32(input)? as usize;
        let offsets = take_u64s(count, input)?;
        let mut watermarks = Vec::new();
        for _ in 0..take_u32(input)? {
            watermarks.push(Position {
                time_us: take_u64(input)? as i64,
                source: SourceId(take_u32(input)?),
                offset: take_u64(input)?,
            });
        }
        let mut sources = || {
            let mut sources = Vec::new();
            for _ in 0..take_u32(input)? {
                sources.push(SourceId(take_u32(input)?));
            }
            Some(sources)
        };
        let (idle, ended) = (sources()?, sources()?);
        let mut places = Vec::new();
        for _ in 0..take_u32(input)? {
            let source = SourceId(take_u32(input)?);
            places.push((source, serde_json::from_slice(take_bytes(input)?).ok()?));
        }
        let mut written = BTreeMap::new();
        if version > VERSION {
            for _ in 0..take_u32(input)? {
                written.insert(take_u32(input)? as usize, take_u64(input)?);
            }
        }
        let mut overdue = Vec::new();
        if version >= OVERDUE_VERSION {
            for _ in 0..take_u32(input)? {
                let event = (SourceId(take_u32(input)?), take_u64(input)?);
                let call = take_u32(input)?;
                let reason = std::str::from_utf8(take_bytes(input)?).ok()?.to_string();
                overdue.push(Overdue { event, call, reason });
            }
        }
        let cut = Cut { epoch, offsets, watermarks, clock_us, idle, ended };
        let has_commands = match version {
            ANSWERS_VERSION => match take_u8(input)? {
                0 => false,
                1 => true,
                _ => return None,
            },
            _ => version == COMMANDS_VERSION,
        };
        let commands = if has_commands { Some(take_bytes(input)?.to_vec()) } else { None };
        let mut answers = Vec::new();
        if version >= ANSWERS_VERSION {
            for _ in 0..take_u32(input)? {
                answers.push((take_u128(input)?, take_bytes(input)?.into()));
            }
        }
        let record = CutRecord {
            cut,
            fingerprint,
            output_hash,
            places,
            written,
            overdue,
            commands,
            answers,
        };
        input.is_empty().then_some(record)
    };
    take(bytes).ok_or_else(|| unreadable("a cut"))
}

/// Encodes a cut after so many records of the input log.
pub(crate) fn put_cut_after(inputs: u64, record: &CutRecord) -> Vec<u8> {
    let mut out = Vec::new();
    put_u64(inputs, &mut out);
    out.extend(put_cut(record));
    out
}

/// Decodes the cut in a record of the cut log, and the number of records of the input log before
/// it, if the record has that.
pub(crate) fn cut(record: &Record) -> Result<(CutRecord, Option<u64>)> {
    let mut bytes = &record.bytes[..];
    let inputs = match record.kind {
        CUT_BEHIND => Some(take_u64(&mut bytes).ok_or_else(|| unreadable("a cut"))?),
        CUT => None,
        _ => return Err(unreadable("a cut")),
    };
    Ok((take_cut(bytes)?, inputs))
}

/// A verdict: an event that is quarantined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) source: SourceId,
    pub(crate) offset: u64,
    /// The first epoch without the event. Earlier epochs were executed with it.
    pub(crate) from_epoch: u64,
    pub(crate) reason: String,
}

pub(crate) fn put_verdict(verdict: &Verdict) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_u32(verdict.source.0, &mut out);
    put_u64(verdict.offset, &mut out);
    put_u64(verdict.from_epoch, &mut out);
    put_bytes(verdict.reason.as_bytes(), &mut out);
    out
}

pub(crate) fn take_verdict(bytes: &[u8]) -> Result<Verdict> {
    let take = |mut input: &[u8]| {
        let input = &mut input;
        (take_u8(input)? == VERSION).then_some(())?;
        let (source, offset) = (SourceId(take_u32(input)?), take_u64(input)?);
        let from_epoch = take_u64(input)?;
        let reason = take_text(input)?.to_owned();
        input.is_empty().then_some(Verdict { source, offset, from_epoch, reason })
    };
    take(bytes).ok_or_else(|| unreadable("a verdict"))
}

fn unreadable(what: &str) -> Error {
    Error::io(
        format!("a record of {what} in the data directory's logs"),
        &std::io::Error::new(std::io::ErrorKind::InvalidData, "its bytes are not such a record"),
    )
    .help("it was written by another version of tidemill, or the log is damaged: use the version that wrote it, or restore a backup")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_core::{Batch, Column, DataType, Value};

    #[test]
    fn records_come_back_and_prefixes_do_not() {
        let schema = Arc::new(Schema::new(vec![
            Column::new("i", DataType::Int),
            Column::new("s", DataType::Str),
        ]));
        let rows = [[Value::Int(1), Value::str("a")], [Value::Int(-2), Value::str("é")]];
        let bad = BadRow {
            offset: 8,
            origin: "push".into(),
            line: 0,
            raw: "?".into(),
            reason: "no int".into(),
        };
        let chunk = Chunk {
            batch: Batch::from_rows(schema.clone(), rows.iter().map(|r| &r[..])),
            offsets: vec![7, 9],
            bad: vec![bad.clone()],
            next_offset: 10,
        };
        let bytes = put_rows(SourceId(3), &chunk);
        assert_eq!(rows_end(&bytes).unwrap(), (SourceId(3), 10));
        let back = take_rows(&schema, &bytes).unwrap();
        assert_eq!(back.batch.rows().collect::<Vec<_>>(), chunk.batch.rows().collect::<Vec<_>>());
        assert_eq!((back.offsets, back.bad, back.next_offset), (vec![7, 9], vec![bad], 10));
        (0..bytes.len()).for_each(|cut| assert!(take_rows(&schema, &bytes[..cut]).is_err()));

        let made = Cut {
            epoch: 5,
            offsets: vec![1, u64::MAX],
            watermarks: vec![Position::MIN, Position::MAX],
            clock_us: -4,
            idle: vec![SourceId(1)],
            ended: vec![SourceId(0)],
        };
        let places = vec![(SourceId(1), Place::start())];
        let written = BTreeMap::new();
        let (fingerprint, output_hash, overdue) = (1 << 100, 3, Vec::new());
        let (commands, answers) = (None, Vec::new());
        let mut record = CutRecord {
            cut: made,
            fingerprint,
            output_hash,
            places,
            written,
            overdue,
            commands,
            answers,
        };
        for more in 0..10 {
            let bytes = put_cut(&record);
            assert_eq!(take_cut(&bytes).unwrap(), record);
            (0..bytes.len()).for_each(|cut| assert!(take_cut(&bytes[..cut]).is_err()));
            let as_was = Record { number: 0, kind: CUT, bytes };
            assert_eq!(cut(&as_was).unwrap(), (record.clone(), None));
            let bytes = put_cut_after(more as u64, &record);
            let behind = Record { number: 0, kind: CUT_BEHIND, bytes };
            assert_eq!(cut(&behind).unwrap(), (record.clone(), Some(more as u64)));
            let short = Record { bytes: behind.bytes[..7].into(), ..behind };
            assert!(cut(&short).is_err() && cut(&Record { kind: ROWS, ..as_was }).is_err());
            if more == 3 {
                record.written.clear();
            }
            if more == 8 {
                record.commands = None;
            }
            match more {
                0 | 1 | 4 => {
                    record.written.insert(more, u64::MAX - more as u64);
                }
                6 => record.commands = Some(vec![1, 2, 3]),
                7 | 8 => record.answers.push((u128::MAX - more as u128, [1, 2][..].into())),
                _ => record.overdue.push(Overdue {
                    event: (SourceId(more as u32), 1 << 40),
                    call: 7,
                    reason: "slow".into(),
                }),
            }
        }

        let verdict =
            Verdict { source: SourceId(2), offset: 9, from_epoch: 4, reason: "it kills".into() };
        let bytes = put_verdict(&verdict);
        assert_eq!(take_verdict(&bytes).unwrap(), verdict);
        (0..bytes.len()).for_each(|cut| assert!(take_verdict(&bytes[..cut]).is_err()));
    }
}
