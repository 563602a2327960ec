//! Records of the log and objects of the store as bytes.

use std::sync::Arc;

use tidemill_core::wire::{
    put_bytes, put_u128, put_u16, put_u32, put_u64, take_bytes, take_slice, take_text, take_u128,
    take_u16, take_u32, take_u64, take_u8,
};
use tidemill_core::{Key, Position, SourceId, StreamId, TableId, Value};
use tidemill_function::{Bounds, Call, Stored, Target};
use tidemill_txn::program::{Abort, AbortKind, Take};

use super::{
    put_i64, put_list, put_option, put_path, put_tid, put_value, put_values, take_i64, take_list,
    take_option, take_path, take_tid, take_value, take_values, VERSION,
};
use crate::event_time::ENDED_US;
use crate::records::{
    CutRecord, Manifest, Object, Output, Record, Request, Times, Waiting, Written,
};

pub(super) fn put_call(call: &Call, out: &mut Vec<u8>) {
    match call.target {
        Target::Function(number) => {
            out.push(0);
            put_u32(number, out);
        }
        Target::Get => out.push(1),
        Target::Put => out.push(2),
        Target::Delete => out.push(3),
        Target::Find(bounds, take) => {
            out.push(4);
            put_bounds(bounds, take, out);
        }
        Target::Gather(bounds, take) => {
            out.push(5);
            put_bounds(bounds, take, out);
        }
        Target::Write => out.push(6),
        Target::Remove => out.push(7),
    }
    put_u16(call.table.0, out);
    put_values(&call.key, out);
    put_values(&call.args, out);
}

fn put_bounds(bounds: Bounds, take: Take, out: &mut Vec<u8>) {
    let (order, limit) = match take {
        Take::First(limit) => (0, limit),
        Take::Last(limit) => (2, limit),
    };
    out.push(match bounds {
        Bounds::Leading => order,
        Bounds::Between => order + 1,
    });
    put_u32(limit, out);
}

fn take_bounds(input: &mut &[u8]) -> Option<(Bounds, Take)> {
    let (bounds, order): (Bounds, fn(u32) -> Take) = match take_u8(input)? {
        0 => (Bounds::Leading, Take::First),
        1 => (Bounds::Between, Take::First),
        2 => (Bounds::Leading, Take::Last),
        3 => (Bounds::Between, Take::Last),
        _ => return None,
    };
    Some((bounds, order(take_u32(input)?)))
}

pub(super) fn take_call(input: &mut &[u8]) -> Option<Call> {
    let target = match take_u8(input)? {
        0 => Target::Function(take_u32(input)?),
        1 => Target::Get,
        2 => Target::Put,
        3 => Target::Delete,
        4 => {
            let (bounds, take) = take_bounds(input)?;
            Target::Find(bounds, take)
        }
        5 => {
            let (bounds, take) = take_bounds(input)?;
            Target::Gather(bounds, take)
        }
        6 => Target::Write,
        7 => Target::Remove,
        _ => return None,
    };
    let table = TableId(take_u16(input)?);
    Some(Call { target, table, key: take_values(input)?, args: take_values(input)? })
}

pub(super) fn put_abort(abort: &Abort, out: &mut Vec<u8>) {
    out.push(match abort.kind {
        AbortKind::Refused => 0,
        AbortKind::Fault => 1,
        AbortKind::Raised => 2,
        AbortKind::Overdue => 3,
    });
    put_bytes(abort.reason.as_bytes(), out);
}

pub(super) fn take_abort(input: &mut &[u8]) -> Option<Abort> {
    let kind = match take_u8(input)? {
        0 => AbortKind::Refused,
        1 => AbortKind::Fault,
        2 => AbortKind::Raised,
        3 => AbortKind::Overdue,
        _ => return None,
    };
    Some(Abort { kind, reason: take_text(input)?.into() })
}

pub(super) fn put_stored(row: &Stored, out: &mut Vec<u8>) {
    put_option(row.as_ref(), out, |row, out| put_values(row, out));
}

pub(super) fn take_stored(input: &mut &[u8]) -> Option<Stored> {
    take_option(input, take_values)
}

pub(super) fn put_outcome(outcome: &Result<Value, Abort>, out: &mut Vec<u8>) {
    match outcome {
        Ok(value) => {
            out.push(0);
            put_value(value, out);
        }
        Err(abort) => {
            out.push(1);
            put_abort(abort, out);
        }
    }
}

pub(super) fn take_outcome(input: &mut &[u8]) -> Option<Result<Value, Abort>> {
    match take_u8(input)? {
        0 => take_value(input).map(Ok),
        1 => take_abort(input).map(Err),
        _ => None,
    }
}

fn put_u64s(numbers: &[u64], out: &mut Vec<u8>) {
    put_list(numbers, out, |number, out| put_u64(*number, out));
}

fn take_u64s(input: &mut &[u8]) -> Option<Vec<u64>> {
    take_list(input, take_u64)
}

/// An event source that has ended is marked beside its newest time (2, or 3 if it had none).
/// Earlier versions stored [`ENDED_US`] as the newest time, so the real one is lost.
fn put_times(times: &Times, out: &mut Vec<u8>) {
    let newest: Vec<(u32, Option<i64>)> = (0..).zip(times.newest.iter().copied()).collect();
    put_list(&newest, out, |(nth, newest), out| match (times.ended.contains(nth), newest) {
        (false, newest) => put_option(*newest, out, put_i64),
        (true, Some(newest)) => {
            out.push(2);
            put_i64(*newest, out);
        }
        (true, None) => out.push(3),
    });
    put_list(&times.watermarks, out, |at, out| {
        put_i64(at.time_us, out);
        put_u32(at.source.0, out);
        put_u64(at.offset, out);
    });
    put_list(&times.idle, out, |source, out| put_u32(*source, out));
    put_u64(times.late, out);
}

fn take_times(input: &mut &[u8]) -> Option<Times> {
    let position = |input: &mut &[u8]| {
        let (time_us, source) = (take_i64(input)?, SourceId(take_u32(input)?));
        Some(Position { time_us, source, offset: take_u64(input)? })
    };
    let newest = take_list(input, |input| {
        Some(match take_u8(input)? {
            0 => (None, false),
            1 => match take_i64(input)? {
                ENDED_US => (None, true),
                newest => (Some(newest), false),
            },
            2 => (Some(take_i64(input)?), true),
            3 => (None, true),
            _ => return None,
        })
    })?;
    let ended = (0..).zip(&newest).filter(|(_, (_, has_ended))| *has_ended);
    Some(Times {
        ended: ended.map(|(nth, _)| nth).collect(),
        newest: newest.iter().map(|(newest, _)| *newest).collect(),
        watermarks: take_list(input, position)?,
        idle: take_list(input, take_u32)?,
        late: take_u64(input)?,
    })
}

pub(super) fn put_cut(cut: &CutRecord, out: &mut Vec<u8>) {
    put_u64(cut.epoch, out);
    put_i64(cut.clock_us, out);
    put_u64(cut.base, out);
    put_u64(cut.count, out);
    put_u64s(&cut.from, out);
    put_u64s(&cut.upto, out);
    put_times(&cut.times, out);
}

pub(super) fn take_cut(input: &mut &[u8]) -> Option<CutRecord> {
    Some(CutRecord {
        epoch: take_u64(input)?,
        clock_us: take_i64(input)?,
        base: take_u64(input)?,
        count: take_u64(input)?,
        from: take_u64s(input)?,
        upto: take_u64s(input)?,
        times: take_times(input)?,
    })
}

pub(super) fn put_waiting(of: &Waiting, out: &mut Vec<u8>) {
    put_u32(of.event_source, out);
    put_u64(of.record, out);
    put_option(of.newest_us, out, put_i64);
}

pub(super) fn take_waiting(input: &mut &[u8]) -> Option<Waiting> {
    let (event_source, record) = (take_u32(input)?, take_u64(input)?);
    Some(Waiting { event_source, record, newest_us: take_option(input, take_i64)? })
}

pub(super) fn put_manifest(manifest: &Manifest, out: &mut Vec<u8>) {
    put_first_manifest(manifest, out);
    put_option(manifest.waiting.as_ref(), out, |waiting, out| put_list(waiting, out, put_waiting));
}

pub(super) fn take_manifest(input: &mut &[u8]) -> Option<Manifest> {
    let manifest = take_first_manifest(input)?;
    let waiting = take_option(input, |input| take_list(input, take_waiting))?;
    Some(Manifest { waiting, ..manifest })
}

/// Appends a manifest in the encoding of earlier versions.
pub(super) fn put_first_manifest(manifest: &Manifest, out: &mut Vec<u8>) {
    put_u128(manifest.program, out);
    put_u64(manifest.generation, out);
    put_u64(manifest.epoch, out);
    put_i64(manifest.clock_us, out);
    put_u64(manifest.base, out);
    put_u64s(&manifest.inputs, out);
    put_u64s(&manifest.buffered, out);
    put_times(&manifest.times, out);
    put_u64s(&manifest.outputs, out);
    put_list(&manifest.objects, out, |name, out| put_bytes(name.as_bytes(), out));
    let Written { base, outputs, note } = &*manifest.written;
    put_u64(*base, out);
    put_u64s(outputs, out);
    put_bytes(note, out);
}

/// Takes a manifest in the encoding of [`put_first_manifest`].
fn take_first_manifest(input: &mut &[u8]) -> Option<Manifest> {
    Some(Manifest {
        program: take_u128(input)?,
        generation: take_u64(input)?,
        epoch: take_u64(input)?,
        clock_us: take_i64(input)?,
        base: take_u64(input)?,
        inputs: take_u64s(input)?,
        buffered: take_u64s(input)?,
        waiting: None,
        times: take_times(input)?,
        outputs: take_u64s(input)?,
        objects: take_list(input, |input| take_text(input).map(String::from))?,
        written: Arc::new(Written {
            base: take_u64(input)?,
            outputs: take_u64s(input)?,
            note: take_bytes(input)?.into(),
        }),
    })
}

/// Appends a record. Kinds 1 to 5, 7, 9 and 11 are those of earlier versions, of which 11 is still
/// read.
pub fn put_record(record: &Record, out: &mut Vec<u8>) {
    match record {
        Record::Generation { generation } => {
            out.push(0);
            put_u64(*generation, out);
        }
        Record::Requests(requests) => {
            out.push(6);
            put_list(requests, out, |Request { id, call }, out| {
                put_bytes(id, out);
                put_call(call, out);
            });
        }
        Record::End => out.push(13),
        Record::Cut(cut) => {
            out.push(10);
            put_cut(cut, out);
        }
        Record::Snapshot(manifest) => {
            out.push(14);
            put_manifest(manifest, out);
        }
        Record::Outputs(outputs) => {
            out.push(8);
            put_list(outputs, out, put_output);
        }
        Record::Answer { tid, asked, answer } => {
            out.push(12);
            put_tid(*tid, out);
            put_u128(*asked, out);
            put_bytes(answer, out);
        }
    }
}

fn put_output(output: &Output, out: &mut Vec<u8>) {
    match output {
        Output::Reply { tid, id, outcome } => {
            out.push(0);
            put_tid(*tid, out);
            put_bytes(id, out);
            put_outcome(outcome, out);
        }
        Output::Event { tid, path, stream, row } => {
            out.push(1);
            put_tid(*tid, out);
            put_path(path, out);
            put_u16(stream.0, out);
            put_values(row, out);
        }
    }
}

fn take_output(input: &mut &[u8]) -> Option<Output> {
    Some(match take_u8(input)? {
        0 => Output::Reply {
            tid: take_tid(input)?,
            id: take_bytes(input)?.into(),
            outcome: take_outcome(input)?,
        },
        1 => Output::Event {
            tid: take_tid(input)?,
            path: take_path(input)?,
            stream: StreamId(take_u16(input)?),
            row: take_values(input)?.to_vec().into(),
        },
        _ => return None,
    })
}

/// Takes a record off the front.
pub fn take_record(input: &mut &[u8]) -> Option<Record> {
    Some(match take_u8(input)? {
        0 => Record::Generation { generation: take_u64(input)? },
        6 => Record::Requests(take_list(input, |input| {
            Some(Request { id: take_bytes(input)?.into(), call: take_call(input)? })
        })?),
        13 => Record::End,
        10 => Record::Cut(take_cut(input)?),
        11 => Record::Snapshot(Arc::new(take_first_manifest(input)?)),
        14 => Record::Snapshot(Arc::new(take_manifest(input)?)),
        8 => Record::Outputs(take_list(input, take_output)?),
        12 => Record::Answer {
            tid: take_tid(input)?,
            asked: take_u128(input)?,
            answer: take_bytes(input)?.into(),
        },
        _ => return None,
    })
}

/// The first bytes of an object.
const MAGIC: &[u8; 4] = b"TMob";

/// Appends an object with its version and a checksum.
pub fn put_object(object: &Object, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(MAGIC);
    put_u32(VERSION, out);
    match object {
        Object::Part(rows) => {
            out.push(0);
            put_list(rows, out, |(table, key, row), out| {
                put_u16(table.0, out);
                put_bytes(&key.0, out);
                put_stored(row, out);
            });
        }
        Object::Manifest(manifest) => {
            out.push(2);
            put_manifest(manifest, out);
        }
    }
    let hash = tidemill_core::encode::hash128(&out[begin..]);
    out.extend_from_slice(&hash.to_le_bytes());
}

/// Returns the object of these bytes, or `None` if they are invalid or damaged.
pub fn take_object(bytes: &[u8]) -> Option<Object> {
    let (mut input, hash) = bytes.split_last_chunk::<16>()?;
    if tidemill_core::encode::hash128(input) != u128::from_le_bytes(*hash) {
        return None;
    }
    let input = &mut input;
    if take_slice(4, input)? != MAGIC || take_u32(input)? != VERSION {
        return None;
    }
    let object = match take_u8(input)? {
        0 => {
            let rows = take_list(input, |input| {
                let table = TableId(take_u16(input)?);
                Some((table, Key(take_bytes(input)?.into()), take_stored(input)?))
            })?;
            Object::Part(Arc::new(rows))
        }
        1 => Object::Manifest(Arc::new(take_first_manifest(input)?)),
        2 => Object::Manifest(Arc::new(take_manifest(input)?)),
        _ => return None,
    };
    input.is_empty().then_some(object)
}
