//! Records of the log and objects of the store as bytes.

use std::sync::Arc;

use tidemill_core::wire::{
    put_batch, put_bytes, put_u128, put_u16, put_u32, put_u64, take_batch, take_bytes, take_slice,
    take_text, take_u128, take_u16, take_u32, take_u64, take_u64s as take_u64s_of, take_u8,
};
use tidemill_core::{Batch, Key, Position, SourceId, StreamId, TableId, Value};
use tidemill_function::{Bounds, Call, Counts, EventPlace, Fault, Stored, Target};
use tidemill_snapshot::{DataObject, SHARDS};
use tidemill_txn::program::{Abort, AbortKind, Take};
use tidemill_txn::reasons::{CountedReason, Reasons};

use super::{
    put_bool, put_i64, put_list, put_option, put_path, put_tid, put_value, put_values, take_bool,
    take_i64, take_list, take_option, take_path, take_tid, take_value, take_values, VERSION,
};
use crate::event_time::ENDED_US;
use crate::records::{
    CutRecord, Emitted, Events, Manifest, Output, Record, Request, Times, Waiting, Written,
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
    put_bool(cut.by_owner, out);
    put_bool(cut.stops_on_fault, out);
}

pub(super) fn take_cut(input: &mut &[u8]) -> Option<CutRecord> {
    let cut = take_third_cut(input)?;
    Some(CutRecord { stops_on_fault: take_bool(input)?, ..cut })
}

/// Takes a cut of a version in which no fault ended several processes.
fn take_third_cut(input: &mut &[u8]) -> Option<CutRecord> {
    let cut = take_first_cut(input)?;
    Some(CutRecord { by_owner: take_bool(input)?, ..cut })
}

/// Takes a cut of a version in which a sole owner executed events by column, and calls in another way.
fn take_mixed_cut(input: &mut &[u8]) -> Option<CutRecord> {
    let cut = take_third_cut(input)?;
    Some(CutRecord { by_owner: false, ..cut })
}

/// Takes a cut of a version without sole owners.
fn take_first_cut(input: &mut &[u8]) -> Option<CutRecord> {
    Some(CutRecord {
        epoch: take_u64(input)?,
        clock_us: take_i64(input)?,
        base: take_u64(input)?,
        count: take_u64(input)?,
        from: take_u64s(input)?,
        upto: take_u64s(input)?,
        times: take_times(input)?,
        by_owner: false,
        stops_on_fault: false,
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
    put_manifest_with(manifest, out, DataObject::put);
    put_option(manifest.waiting.as_ref(), out, |waiting, out| put_list(waiting, out, put_waiting));
    put_counts(&manifest.counts, out);
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    put_bytes(text.as_bytes(), out);
}

fn take_string(input: &mut &[u8]) -> Option<String> {
    take_text(input).map(str::to_owned)
}

pub(super) fn put_counts(counts: &Counts, out: &mut Vec<u8>) {
    let Counts { events, ended, refused, faults, dead, late, reasons, fault, slides, slide } =
        counts;
    for number in [events, ended, refused, faults, dead, late, slides] {
        put_u64(*number, out);
    }
    let (counted, others) = reasons.all();
    put_list(counted, out, |CountedReason { handler, reason, of_all, count, at }, out| {
        put_text(handler, out);
        put_text(reason, out);
        put_option(of_all.as_deref(), out, put_text);
        put_u64(*count, out);
        put_option(at.as_deref(), out, put_text);
    });
    put_u64(others, out);
    put_option(fault.as_ref(), out, put_fault);
    put_option(slide.as_deref(), out, put_text);
}

pub(super) fn take_counts(input: &mut &[u8]) -> Option<Counts> {
    let mut numbers = [0; 7];
    for number in &mut numbers {
        *number = take_u64(input)?;
    }
    let [events, ended, refused, faults, dead, late, slides] = numbers;
    let counted = take_list(input, |input| {
        let (handler, reason) = (take_string(input)?, take_string(input)?);
        let (of_all, count) = (take_option(input, take_string)?, take_u64(input)?);
        Some(CountedReason { handler, reason, of_all, count, at: take_option(input, take_string)? })
    })?;
    let reasons = Reasons::of(counted, take_u64(input)?);
    let fault = take_option(input, take_fault)?;
    let slide = take_option(input, take_string)?;
    Some(Counts { events, ended, refused, faults, dead, late, reasons, fault, slides, slide })
}

pub(super) fn put_fault(Fault { what, line }: &Fault, out: &mut Vec<u8>) {
    put_text(what, out);
    put_option(line.as_deref(), out, put_text);
}

pub(super) fn take_fault(input: &mut &[u8]) -> Option<Fault> {
    Some(Fault { what: take_string(input)?, line: take_option(input, take_string)? })
}

fn put_events(events: &Events, out: &mut Vec<u8>) {
    let Events { stream, from, is_run, batch } = events;
    put_u16(stream.0, out);
    put_option(from.as_ref(), out, |EventPlace { name, row }, out| {
        put_text(name, out);
        put_u64(*row, out);
    });
    put_bool(*is_run, out);
    put_batch(batch, out);
}

fn take_events(input: &mut &[u8]) -> Option<Events> {
    let stream = StreamId(take_u16(input)?);
    let from = take_option(input, |input| {
        Some(EventPlace { name: take_text(input)?.into(), row: take_u64(input)? })
    })?;
    // A record takes at least one offset.
    let (is_run, batch) = (take_bool(input)?, take_rows(input)?);
    Some(Events { stream, from, is_run, batch })
}

/// Appends a manifest as the first versions did, with its objects as `put_object` does.
pub(super) fn put_manifest_with(
    manifest: &Manifest,
    out: &mut Vec<u8>,
    put_object: fn(&DataObject, &mut Vec<u8>),
) {
    put_u128(manifest.program, out);
    put_u64(manifest.generation, out);
    put_u64(manifest.epoch, out);
    put_i64(manifest.clock_us, out);
    put_u64(manifest.base, out);
    put_u64s(&manifest.inputs, out);
    put_u64s(&manifest.buffered, out);
    put_times(&manifest.times, out);
    put_u64s(&manifest.outputs, out);
    put_list(&manifest.objects, out, put_object);
    let Written { base, outputs, note } = &*manifest.written;
    put_u64(*base, out);
    put_u64s(outputs, out);
    put_bytes(note, out);
}

pub(super) fn take_manifest(input: &mut &[u8]) -> Option<Manifest> {
    let manifest = take_third_manifest(input)?;
    Some(Manifest { counts: take_counts(input)?.into(), ..manifest })
}

/// Takes a manifest without counts.
fn take_third_manifest(input: &mut &[u8]) -> Option<Manifest> {
    let manifest = take_manifest_with(input, DataObject::take)?;
    let waiting = take_option(input, |input| take_list(input, take_waiting))?;
    Some(Manifest { waiting, ..manifest })
}

/// Takes a manifest whose parts are in the format of earlier versions, and only named.
fn take_second_manifest(input: &mut &[u8]) -> Option<Manifest> {
    let manifest = take_first_manifest(input)?;
    let waiting = take_option(input, |input| take_list(input, take_waiting))?;
    Some(Manifest { waiting, ..manifest })
}

/// Takes a manifest of even earlier versions.
fn take_first_manifest(input: &mut &[u8]) -> Option<Manifest> {
    take_manifest_with(input, |input| {
        let name = take_text(input)?.to_owned();
        Some(DataObject { name, len: 0, root: 0, level: 0, shards: [0; SHARDS] })
    })
}

fn take_manifest_with(
    input: &mut &[u8],
    take_object: fn(&mut &[u8]) -> Option<DataObject>,
) -> Option<Manifest> {
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
        objects: take_list(input, take_object)?,
        written: Arc::new(Written {
            base: take_u64(input)?,
            outputs: take_u64s(input)?,
            note: take_bytes(input)?.into(),
        }),
        counts: Arc::default(),
    })
}

/// Appends a record. Kinds 1 to 5, 7, 9, 11, 14 and 15 are those of earlier versions, of which 11,
/// 14 and 15 are still read.
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
        Record::Events(events) => {
            out.push(16);
            put_events(events, out);
        }
        Record::End => out.push(13),
        Record::Cut(cut) => {
            out.push(21);
            put_cut(cut, out);
        }
        Record::Withdrawn { epoch, base } => {
            out.push(22);
            put_u64(*epoch, out);
            put_u64(*base, out);
        }
        Record::Snapshot(manifest) => {
            out.push(17);
            put_manifest(manifest, out);
        }
        Record::Outputs(outputs) => {
            out.push(8);
            put_list(outputs, out, put_output);
        }
        Record::Emitted(emitted) => {
            out.push(18);
            put_emitted(emitted, out);
        }
        Record::Answer { tid, asked, answer } => {
            out.push(12);
            put_tid(*tid, out);
            put_u128(*asked, out);
            put_bytes(answer, out);
        }
    }
}

/// The ways of encoding the transactions of emitted events: each is at the same distance from the
/// one before, at a distance below 2^32, or anywhere.
const EVEN: u8 = 0;
const NEAR: u8 = 1;
const ANYWHERE: u8 = 2;

/// Appends the places of transactions, which mostly ascend.
pub(super) fn put_places(tids: &[u64], out: &mut Vec<u8>) {
    let first = tids.first().copied().unwrap_or_default();
    let step = tids.get(1).map_or(0, |second| second.wrapping_sub(first));
    let steps = tids.windows(2).map(|two| two[1].wrapping_sub(two[0]));
    if steps.clone().all(|of| of == step) {
        out.push(EVEN);
        put_u64(first, out);
        put_u64(step, out);
    } else if steps.clone().all(|of| u32::try_from(of).is_ok()) {
        out.push(NEAR);
        put_u64(first, out);
        steps.for_each(|of| put_u32(of as u32, out));
    } else {
        out.push(ANYWHERE);
        tids.iter().for_each(|tid| put_u64(*tid, out));
    }
}

/// Takes this many places.
pub(super) fn take_places(count: usize, input: &mut &[u8]) -> Option<Vec<u64>> {
    match take_u8(input)? {
        EVEN => {
            let (first, step) = (take_u64(input)?, take_u64(input)?);
            Some((0..count as u64).map(|nth| first.wrapping_add(step.wrapping_mul(nth))).collect())
        }
        NEAR => {
            let mut tid = take_u64(input)?;
            let mut tids = vec![tid];
            for _ in 1..count {
                tid = tid.wrapping_add(take_u32(input)?.into());
                tids.push(tid);
            }
            Some(tids)
        }
        ANYWHERE => take_u64s_of(count, input),
        _ => None,
    }
}

/// Takes a batch that has rows, and columns that bound their number.
pub(super) fn take_rows(input: &mut &[u8]) -> Option<Batch> {
    let batch = take_batch(input)?;
    (!batch.is_empty() && !batch.columns().is_empty()).then_some(batch)
}

fn put_emitted(emitted: &Emitted, out: &mut Vec<u8>) {
    let Emitted { stream, tids, ordinals, batch } = emitted;
    put_u16(stream.0, out);
    put_batch(batch, out);
    put_places(tids, out);
    let ordinal = ordinals.first().copied().unwrap_or_default();
    let is_same = ordinals.iter().all(|of| *of == ordinal);
    put_bool(is_same, out);
    match is_same {
        true => put_u32(ordinal, out),
        false => ordinals.iter().for_each(|of| put_u32(*of, out)),
    }
}

fn take_emitted(input: &mut &[u8]) -> Option<Emitted> {
    let stream = StreamId(take_u16(input)?);
    let batch = take_rows(input)?;
    let rows = batch.len();
    let tids = take_places(rows, input)?;
    let ordinals = match take_bool(input)? {
        true => vec![take_u32(input)?; rows],
        false => (0..rows).map(|_| take_u32(input)).collect::<Option<Vec<u32>>>()?,
    };
    // The first transaction has the place 1.
    let are_places = tids.iter().all(|tid| *tid > 0);
    are_places.then_some(Emitted { stream, tids, ordinals, batch })
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
        10 => Record::Cut(take_first_cut(input)?),
        19 => Record::Cut(take_mixed_cut(input)?),
        20 => Record::Cut(take_third_cut(input)?),
        21 => Record::Cut(take_cut(input)?),
        22 => Record::Withdrawn { epoch: take_u64(input)?, base: take_u64(input)? },
        11 => Record::Snapshot(Arc::new(take_first_manifest(input)?)),
        14 => Record::Snapshot(Arc::new(take_second_manifest(input)?)),
        15 => Record::Snapshot(Arc::new(take_third_manifest(input)?)),
        16 => Record::Events(take_events(input)?),
        17 => Record::Snapshot(Arc::new(take_manifest(input)?)),
        18 => Record::Emitted(take_emitted(input)?),
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

/// Appends the object of a manifest, with its version and a checksum. Kinds 0 to 3 are those of
/// earlier versions, of which 0 and 3 are still read.
pub fn put_manifest_object(manifest: &Manifest, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(MAGIC);
    put_u32(VERSION, out);
    out.push(4);
    put_manifest(manifest, out);
    let hash = tidemill_core::encode::hash128(&out[begin..]);
    out.extend_from_slice(&hash.to_le_bytes());
}

/// Returns the kind and the content of an object, or `None` if it is invalid or damaged.
fn content(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let (mut input, hash) = bytes.split_last_chunk::<16>()?;
    if tidemill_core::encode::hash128(input) != u128::from_le_bytes(*hash) {
        return None;
    }
    if take_slice(4, &mut input)? != MAGIC || take_u32(&mut input)? != VERSION {
        return None;
    }
    Some((take_u8(&mut input)?, input))
}

/// Returns the manifest of an object's bytes, or `None` if they are invalid or damaged.
pub fn take_manifest_object(bytes: &[u8]) -> Option<Manifest> {
    let (kind, mut input) = content(bytes)?;
    let manifest = match kind {
        3 => take_third_manifest(&mut input)?,
        4 => take_manifest(&mut input)?,
        _ => return None,
    };
    input.is_empty().then_some(manifest)
}

/// Rows of a part in the format of earlier versions. `None` means that the row has been removed.
pub type PartOfBefore = Vec<(TableId, Key, Stored)>;

/// Returns the rows of a part in the format of earlier versions, or `None` if the bytes are invalid
/// or damaged.
pub fn take_part_of_before(bytes: &[u8]) -> Option<PartOfBefore> {
    let (kind, mut input) = content(bytes)?;
    let rows = take_list(&mut input, |input| {
        let table = TableId(take_u16(input)?);
        Some((table, Key(take_bytes(input)?.into()), take_stored(input)?))
    })?;
    (kind == 0 && input.is_empty()).then_some(rows)
}
