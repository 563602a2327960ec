//! Messages between nodes as bytes.

use tidemill_core::wire::{
    put_batch, put_bytes, put_u16, put_u32, put_u64, take_bytes, take_u16, take_u32, take_u64,
    take_u8,
};
use tidemill_core::{Key, TableId};
use tidemill_function::{
    Body, Cost, GivenRows, HandlerEvents, LentRows, Message, Mode, NodeId, Verdict, Wanted,
};

use super::record::{
    put_abort, put_call, put_outcome, put_places, put_stored, take_abort, take_call, take_outcome,
    take_places, take_rows, take_stored,
};
use super::{
    put_bool, put_list, put_option, put_path, put_tid, put_value, take_bool, take_list,
    take_option, take_path, take_tid, take_value,
};

fn put_mode(mode: Mode, out: &mut Vec<u8>) {
    out.push(match mode {
        Mode::Cached => 0,
        Mode::Fresh => 1,
        Mode::Sequential => 2,
    });
}

fn take_mode(input: &mut &[u8]) -> Option<Mode> {
    match take_u8(input)? {
        0 => Some(Mode::Cached),
        1 => Some(Mode::Fresh),
        2 => Some(Mode::Sequential),
        _ => None,
    }
}

fn put_spent(spent: Cost, out: &mut Vec<u8>) {
    put_u32(spent.calls, out);
    put_u32(spent.uses, out);
}

fn take_spent(input: &mut &[u8]) -> Option<Cost> {
    Some(Cost { calls: take_u32(input)?, uses: take_u32(input)? })
}

pub(super) fn put_node(node: NodeId, out: &mut Vec<u8>) {
    put_u16(node.0, out);
}

pub(super) fn take_node(input: &mut &[u8]) -> Option<NodeId> {
    take_u16(input).map(NodeId)
}

pub(super) fn put_message(message: &Message, out: &mut Vec<u8>) {
    put_u64(message.epoch, out);
    put_u32(message.round, out);
    put_body(&message.body, out);
}

pub(super) fn take_message(input: &mut &[u8]) -> Option<Message> {
    Some(Message { epoch: take_u64(input)?, round: take_u32(input)?, body: take_body(input)? })
}

fn put_events(events: &[HandlerEvents], out: &mut Vec<u8>) {
    put_list(events, out, |HandlerEvents { handler, tids, batch }, out| {
        put_u32(*handler as u32, out);
        put_batch(batch, out);
        put_places(tids, out);
    });
}

fn take_events(input: &mut &[u8]) -> Option<Vec<HandlerEvents>> {
    take_list(input, |input| {
        let (handler, batch) = (take_u32(input)? as usize, take_rows(input)?);
        Some(HandlerEvents { handler, tids: take_places(batch.len(), input)?, batch })
    })
}

fn put_body(body: &Body, out: &mut Vec<u8>) {
    match body {
        Body::Events { events, others } => {
            out.push(20);
            put_bool(*others, out);
            put_events(events, out);
        }
        Body::Work { events, calls, is_last } => {
            out.push(24);
            put_bool(*is_last, out);
            put_events(events, out);
            put_list(calls, out, |(tid, call), out| {
                put_tid(*tid, out);
                put_call(call, out);
            });
        }
        Body::Results { results, is_last } => {
            out.push(25);
            put_bool(*is_last, out);
            put_list(results, out, |(tid, outcome), out| {
                put_tid(*tid, out);
                put_outcome(outcome, out);
            });
        }
        Body::Rows { rows } => {
            out.push(21);
            put_list(rows, out, |GivenRows { table, tids, batch }, out| {
                put_u16(table.0, out);
                put_batch(batch, out);
                put_places(tids, out);
            });
        }
        Body::Wanted(Wanted { last, keys }) => {
            out.push(22);
            put_u64(*last, out);
            put_list(keys, out, |(table, keys), out| {
                put_u16(table.0, out);
                put_batch(keys, out);
            });
        }
        Body::Lent { last, rows } => {
            out.push(23);
            put_u64(*last, out);
            put_list(rows, out, |LentRows { table, batch }, out| {
                put_u16(table.0, out);
                put_batch(batch, out);
            });
        }
        Body::Call { tid, path, call, share, home, caller, mode, before } => {
            out.push(0);
            put_tid(*tid, out);
            put_path(path, out);
            put_call(call, out);
            put_u32(*share, out);
            put_node(*home, out);
            put_option(*caller, out, put_node);
            put_mode(*mode, out);
            put_spent(*before, out);
        }
        Body::Reply { tid, path, value, spent } => {
            out.push(1);
            put_tid(*tid, out);
            put_path(path, out);
            put_option(value.as_ref(), out, put_value);
            put_spent(*spent, out);
        }
        Body::Ended { tid, share, calls, spent, failure, missed, judged } => {
            out.push(2);
            put_tid(*tid, out);
            put_u32(*share, out);
            put_u32(*calls, out);
            put_spent(*spent, out);
            put_option(failure.as_ref(), out, |(path, abort), out| {
                put_path(path, out);
                put_abort(abort, out);
            });
            put_option(*missed, out, put_mode);
            put_bool(*judged, out);
        }
        Body::Finished { tid, verdict } => {
            out.push(3);
            put_tid(*tid, out);
            match verdict {
                Verdict::Commit => out.push(0),
                Verdict::Abort => out.push(1),
                Verdict::Missed(mode) => {
                    out.push(2);
                    put_mode(*mode, out);
                }
            }
        }
        Body::Declared { tid, call } => {
            out.push(4);
            put_tid(*tid, out);
            put_call(call, out);
        }
        Body::Values { tid, rows } => {
            out.push(5);
            put_tid(*tid, out);
            put_list(rows, out, |(at, row), out| {
                put_u32(*at, out);
                put_stored(row, out);
            });
        }
        Body::Done => out.push(6),
        Body::Conflicts { again, reads, judged } => {
            out.push(7);
            put_list(again, out, |(tid, mode), out| {
                put_tid(*tid, out);
                put_mode(*mode, out);
            });
            put_list(reads, out, |(reader, writer, mode), out| {
                put_tid(*reader, out);
                put_tid(*writer, out);
                put_mode(*mode, out);
            });
            put_u32(*judged, out);
        }
        Body::AllDeclared { others } => {
            out.push(8);
            put_bool(*others, out);
        }
        Body::Outcome { tid, outcome } => {
            out.push(9);
            put_tid(*tid, out);
            put_outcome(outcome, out);
        }
        Body::Prefetch { tid, path, rows } => {
            out.push(10);
            put_tid(*tid, out);
            put_path(path, out);
            put_list(rows, out, |(table, key), out| {
                put_u16(table.0, out);
                put_bytes(&key.0, out);
            });
        }
        Body::Prefetched { tid, path, rows } => {
            out.push(11);
            put_tid(*tid, out);
            put_path(path, out);
            put_list(rows, out, |(table, key, row), out| {
                put_u16(table.0, out);
                put_bytes(&key.0, out);
                put_stored(row, out);
            });
        }
    }
}

fn take_row(input: &mut &[u8]) -> Option<(TableId, Key)> {
    Some((TableId(take_u16(input)?), Key(take_bytes(input)?.into())))
}

fn take_body(input: &mut &[u8]) -> Option<Body> {
    Some(match take_u8(input)? {
        20 => Body::Events { others: take_bool(input)?, events: take_events(input)? },
        24 => Body::Work {
            is_last: take_bool(input)?,
            events: take_events(input)?,
            calls: take_list(input, |input| Some((take_tid(input)?, take_call(input)?)))?,
        },
        25 => Body::Results {
            is_last: take_bool(input)?,
            results: take_list(input, |input| Some((take_tid(input)?, take_outcome(input)?)))?,
        },
        21 => Body::Rows {
            rows: take_list(input, |input| {
                let (table, batch) = (TableId(take_u16(input)?), take_rows(input)?);
                Some(GivenRows { table, tids: take_places(batch.len(), input)?, batch })
            })?,
        },
        22 => {
            let last = take_u64(input)?;
            let keys = |input: &mut &[u8]| Some((TableId(take_u16(input)?), take_rows(input)?));
            Body::Wanted(Wanted { last, keys: take_list(input, keys)? })
        }
        23 => Body::Lent {
            last: take_u64(input)?,
            rows: take_list(input, |input| {
                Some(LentRows { table: TableId(take_u16(input)?), batch: take_rows(input)? })
            })?,
        },
        0 => Body::Call {
            tid: take_tid(input)?,
            path: take_path(input)?,
            call: take_call(input)?,
            share: take_u32(input)?,
            home: take_node(input)?,
            caller: take_option(input, take_node)?,
            mode: take_mode(input)?,
            before: take_spent(input)?,
        },
        1 => Body::Reply {
            tid: take_tid(input)?,
            path: take_path(input)?,
            value: take_option(input, take_value)?,
            spent: take_spent(input)?,
        },
        2 => Body::Ended {
            tid: take_tid(input)?,
            share: take_u32(input)?,
            calls: take_u32(input)?,
            spent: take_spent(input)?,
            failure: take_option(input, |input| Some((take_path(input)?, take_abort(input)?)))?,
            missed: take_option(input, take_mode)?,
            judged: take_bool(input)?,
        },
        3 => Body::Finished {
            tid: take_tid(input)?,
            verdict: match take_u8(input)? {
                0 => Verdict::Commit,
                1 => Verdict::Abort,
                2 => Verdict::Missed(take_mode(input)?),
                _ => return None,
            },
        },
        4 => Body::Declared { tid: take_tid(input)?, call: take_call(input)? },
        5 => Body::Values {
            tid: take_tid(input)?,
            rows: take_list(input, |input| Some((take_u32(input)?, take_stored(input)?)))?,
        },
        6 => Body::Done,
        7 => Body::Conflicts {
            again: take_list(input, |input| Some((take_tid(input)?, take_mode(input)?)))?,
            reads: take_list(input, |input| {
                Some((take_tid(input)?, take_tid(input)?, take_mode(input)?))
            })?,
            judged: take_u32(input)?,
        },
        8 => Body::AllDeclared { others: take_bool(input)? },
        9 => Body::Outcome { tid: take_tid(input)?, outcome: take_outcome(input)? },
        10 => Body::Prefetch {
            tid: take_tid(input)?,
            path: take_path(input)?,
            rows: take_list(input, take_row)?,
        },
        11 => Body::Prefetched {
            tid: take_tid(input)?,
            path: take_path(input)?,
            rows: take_list(input, |input| {
                let (table, key) = take_row(input)?;
                Some((table, key, take_stored(input)?))
            })?,
        },
        _ => return None,
    })
}
