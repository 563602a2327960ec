//! Packets between processes as bytes.

use std::sync::Arc;

use tidemill_core::wire::{
    put_bytes, put_u16, put_u32, put_u64, take_bytes, take_text, take_u16, take_u32, take_u64,
    take_u8,
};
use tidemill_core::{Key, LateRow, TableId};
use tidemill_function::{NodeId, Owners, TableChanges, Tid};
use tidemill_place::PARTITIONS;
use tidemill_snapshot::{DataObject, Work};

use super::message::{put_message, put_node, take_message, take_node};
use super::record::{
    put_counts, put_cut, put_fault, put_manifest, put_stored, put_waiting, take_counts, take_cut,
    take_fault, take_manifest, take_stored, take_waiting,
};
use super::{
    put_bool, put_i64, put_list, put_option, put_tid, take_bool, take_i64, take_list, take_option,
    take_tid,
};
use crate::effect::{CutPlan, Packet, Piece, Span, StoredPart};
use crate::event_time::{Rank, RankReport, Ranked};
use crate::records::{Assignment, Buffered, Form, Member};

fn put_form(form: &Form, out: &mut Vec<u8>) {
    let Form { generation, assignment, manifest } = form;
    put_u64(*generation, out);
    put_list(&assignment.members, out, |member, out| put_u32(member.0, out));
    for partition in 0..PARTITIONS {
        put_node(assignment.owners.of(tidemill_place::Partition(partition)), out);
    }
    put_manifest(manifest, out);
}

fn take_form(input: &mut &[u8]) -> Option<Form> {
    let generation = take_u64(input)?;
    let members = take_list(input, |input| take_u32(input).map(Member))?;
    let nodes = u16::try_from(members.len()).ok()?;
    let owner = |input: &mut &[u8]| take_node(input).filter(|NodeId(node)| *node < nodes);
    let owners = (0..PARTITIONS).map(|_| owner(input)).collect::<Option<Arc<[NodeId]>>>()?;
    let assignment = Assignment { members, owners: Owners::new(nodes, owners) };
    Some(Form { generation, assignment, manifest: Arc::new(take_manifest(input)?) })
}

fn put_part(part: &StoredPart, out: &mut Vec<u8>) {
    put_option(part.as_ref(), out, DataObject::put);
}

fn take_part(input: &mut &[u8]) -> Option<StoredPart> {
    take_option(input, DataObject::take)
}

fn put_buffered(buffered: &Buffered, out: &mut Vec<u8>) {
    put_u64(buffered.events, out);
    put_u64(buffered.bytes, out);
    put_u64(buffered.late, out);
    put_u64(buffered.tables, out);
}

fn take_buffered(input: &mut &[u8]) -> Option<Buffered> {
    let (events, bytes) = (take_u64(input)?, take_u64(input)?);
    Some(Buffered { events, bytes, late: take_u64(input)?, tables: take_u64(input)? })
}

fn put_rank(rank: Rank, out: &mut Vec<u8>) {
    match rank {
        Rank::Arrival(source) => {
            out.push(0);
            put_u32(source, out);
        }
        Rank::Late(source) => {
            out.push(1);
            put_u32(source, out);
        }
        Rank::OnTime(time_us, source) => {
            out.push(2);
            put_i64(time_us, out);
            put_u32(source, out);
        }
    }
}

fn take_rank(input: &mut &[u8]) -> Option<Rank> {
    Some(match take_u8(input)? {
        0 => Rank::Arrival(take_u32(input)?),
        1 => Rank::Late(take_u32(input)?),
        2 => Rank::OnTime(take_i64(input)?, take_u32(input)?),
        _ => return None,
    })
}

/// Appends a packet.
pub fn put_packet(packet: &Packet, out: &mut Vec<u8>) {
    match packet {
        Packet::Beat { generation } => {
            out.push(0);
            put_u64(*generation, out);
        }
        Packet::Form(form) => {
            out.push(1);
            put_form(form, out);
        }
        Packet::Formed { generation, buffered } => {
            out.push(2);
            put_u64(*generation, out);
            put_buffered(buffered, out);
        }
        Packet::Available { generation, source, from, pieces } => {
            out.push(3);
            put_u64(*generation, out);
            put_u32(*source, out);
            put_u64(*from, out);
            put_list(pieces, out, |Piece { end, requests, by_column, times }, out| {
                put_u64(*end, out);
                put_u64(*requests, out);
                put_bool(*by_column, out);
                put_list(times, out, |Span { event_source, oldest_us, newest_us, late }, out| {
                    put_u32(*event_source, out);
                    put_i64(*oldest_us, out);
                    put_i64(*newest_us, out);
                    put_option(late.as_ref(), out, |late, out| {
                        put_u64(late.offset, out);
                        put_i64(late.time_us, out);
                        put_i64(late.bound_us, out);
                    });
                });
            });
        }
        Packet::Cut { generation, cut, plan } => {
            out.push(4);
            put_u64(*generation, out);
            put_cut(cut, out);
            let CutPlan { takes_snapshot, executes, parts } = plan;
            put_bool(*takes_snapshot, out);
            put_option(*executes, out, put_node);
            put_list(parts, out, |place, out| put_u64(*place, out));
        }
        Packet::Durable { generation, epoch, released } => {
            out.push(5);
            [*generation, *epoch, *released].iter().for_each(|n| put_u64(*n, out));
        }
        Packet::Executed { generation, epoch, buffered, counts, fault, unstable } => {
            out.push(6);
            put_u64(*generation, out);
            put_u64(*epoch, out);
            put_buffered(buffered, out);
            put_counts(counts, out);
            put_option(fault.as_ref(), out, |(tid, fault), out| {
                put_tid(*tid, out);
                put_fault(fault, out);
            });
            put_list(unstable, out, |(function, times), out| {
                put_bytes(function.as_bytes(), out);
                put_u64(*times, out);
            });
        }
        Packet::Part { generation, epoch, part, outputs, waiting } => {
            out.push(7);
            put_u64(*generation, out);
            put_u64(*epoch, out);
            put_option(part.as_ref(), out, put_part);
            put_list(outputs, out, |offset, out| put_u64(*offset, out));
            put_list(waiting, out, put_waiting);
        }
        Packet::Snapshot { generation, epoch, counts } => {
            out.push(8);
            put_u64(*generation, out);
            put_u64(*epoch, out);
            put_bool(*counts, out);
        }
        Packet::Lost { generation, member } => {
            out.push(9);
            put_u64(*generation, out);
            put_u32(member.0, out);
        }
        Packet::LeftOut { generation, from } => {
            out.push(11);
            put_u64(*generation, out);
            put_list(from, out, |member, out| put_u32(member.0, out));
        }
        Packet::Trial { generation, epoch, part, left } => {
            out.push(21);
            [*generation, *epoch, *part, left.0].iter().for_each(|n| put_u64(*n, out));
        }
        Packet::Tried { generation, epoch, part } => {
            out.push(22);
            [*generation, *epoch, *part].iter().for_each(|n| put_u64(*n, out));
        }
        Packet::Leaving => out.push(12),
        Packet::Released => out.push(13),
        Packet::Prepare(form) => {
            out.push(14);
            put_form(form, out);
        }
        Packet::Merge { generation, epoch, name, work } => {
            out.push(19);
            put_u64(*generation, out);
            put_u64(*epoch, out);
            put_bytes(name.as_bytes(), out);
            work.put(out);
        }
        Packet::Merged { generation, name, part } => {
            out.push(20);
            put_u64(*generation, out);
            put_bytes(name.as_bytes(), out);
            put_option(part.as_ref(), out, put_part);
        }
        Packet::Prepared => out.push(15),
        Packet::Outside { generation, epoch, rows } => {
            out.push(18);
            put_u64(*generation, out);
            put_u64(*epoch, out);
            put_u64(*rows, out);
        }
        Packet::Follow { generation, tables, passed } => {
            out.push(23);
            put_u64(*generation, out);
            put_u64(passed.0, out);
            put_list(tables, out, |table, out| put_u16(table.0, out));
        }
        Packet::Changed { generation, epoch, changes } => {
            out.push(24);
            put_u64(*generation, out);
            put_u64(*epoch, out);
            put_list(changes, out, |TableChanges { table, rows }, out| {
                put_u16(table.0, out);
                put_option(rows.as_ref(), out, |rows, out| {
                    put_list(rows, out, |(key, row), out| {
                        put_bytes(&key.0, out);
                        put_stored(row, out);
                    });
                });
            });
        }
        Packet::Left { generation, base, ends } => {
            out.push(16);
            put_u64(*generation, out);
            put_u64(*base, out);
            put_list(ends, out, |offset, out| put_u64(*offset, out));
        }
        Packet::Ranks { generation, from, epoch, ranks } => {
            out.push(17);
            put_u64(*generation, out);
            put_node(*from, out);
            put_u64(*epoch, out);
            put_list(&ranks.ranks, out, |Ranked { rank, count, on }, out| {
                put_rank(*rank, out);
                put_u32(*count, out);
                put_u64(*on, out);
            });
            put_bool(ranks.by_column, out);
        }
        Packet::Node { generation, from, message } => {
            out.push(10);
            put_u64(*generation, out);
            put_u16(from.0, out);
            put_message(message, out);
        }
    }
}

/// Refuses a piece that ends before the one before it, because the receiver subtracts offsets.
fn take_pieces(from: u64, input: &mut &[u8]) -> Option<Vec<Piece>> {
    let mut at = from;
    take_list(input, |input| {
        let piece = Piece {
            end: take_u64(input)?,
            requests: take_u64(input)?,
            by_column: take_bool(input)?,
            times: take_list(input, |input| {
                Some(Span {
                    event_source: take_u32(input)?,
                    oldest_us: take_i64(input)?,
                    newest_us: take_i64(input)?,
                    late: take_option(input, |input| {
                        let (offset, time_us) = (take_u64(input)?, take_i64(input)?);
                        Some(LateRow { offset, time_us, bound_us: take_i64(input)? })
                    })?,
                })
            })?
            .into(),
        };
        let begins = std::mem::replace(&mut at, piece.end);
        (begins < piece.end).then_some(piece)
    })
}

/// Takes a packet off the front.
pub fn take_packet(input: &mut &[u8]) -> Option<Packet> {
    Some(match take_u8(input)? {
        0 => Packet::Beat { generation: take_u64(input)? },
        1 => Packet::Form(Arc::new(take_form(input)?)),
        2 => Packet::Formed { generation: take_u64(input)?, buffered: take_buffered(input)? },
        3 => {
            let (generation, source) = (take_u64(input)?, take_u32(input)?);
            let from = take_u64(input)?;
            Packet::Available { generation, source, from, pieces: take_pieces(from, input)? }
        }
        4 => Packet::Cut {
            generation: take_u64(input)?,
            cut: Arc::new(take_cut(input)?),
            plan: CutPlan {
                takes_snapshot: take_bool(input)?,
                executes: take_option(input, take_node)?,
                parts: take_list(input, take_u64)?.into(),
            },
        },
        5 => Packet::Durable {
            generation: take_u64(input)?,
            epoch: take_u64(input)?,
            released: take_u64(input)?,
        },
        6 => Packet::Executed {
            generation: take_u64(input)?,
            epoch: take_u64(input)?,
            buffered: take_buffered(input)?,
            counts: take_counts(input)?,
            fault: take_option(input, |input| Some((take_tid(input)?, take_fault(input)?)))?,
            unstable: take_list(input, |input| Some((take_text(input)?.into(), take_u64(input)?)))?,
        },
        7 => Packet::Part {
            generation: take_u64(input)?,
            epoch: take_u64(input)?,
            part: take_option(input, take_part)?,
            outputs: take_list(input, take_u64)?,
            waiting: take_list(input, take_waiting)?,
        },
        8 => Packet::Snapshot {
            generation: take_u64(input)?,
            epoch: take_u64(input)?,
            counts: take_bool(input)?,
        },
        9 => Packet::Lost { generation: take_u64(input)?, member: Member(take_u32(input)?) },
        17 => Packet::Ranks {
            generation: take_u64(input)?,
            from: take_node(input)?,
            epoch: take_u64(input)?,
            ranks: RankReport {
                ranks: take_list(input, |input| {
                    let (rank, count) = (take_rank(input)?, take_u32(input)?);
                    Some(Ranked { rank, count, on: take_u64(input)? })
                })?,
                by_column: take_bool(input)?,
            },
        },
        10 => Packet::Node {
            generation: take_u64(input)?,
            from: NodeId(take_u16(input)?),
            message: take_message(input)?,
        },
        11 => Packet::LeftOut {
            generation: take_u64(input)?,
            from: take_list(input, |input| take_u32(input).map(Member))?,
        },
        12 => Packet::Leaving,
        13 => Packet::Released,
        14 => Packet::Prepare(Arc::new(take_form(input)?)),
        19 => Packet::Merge {
            generation: take_u64(input)?,
            epoch: take_u64(input)?,
            name: take_text(input)?.into(),
            work: Arc::new(Work::take(input)?),
        },
        20 => Packet::Merged {
            generation: take_u64(input)?,
            name: take_text(input)?.into(),
            part: take_option(input, take_part)?,
        },
        21 => Packet::Trial {
            generation: take_u64(input)?,
            epoch: take_u64(input)?,
            part: take_u64(input)?,
            left: Tid(take_u64(input)?),
        },
        22 => Packet::Tried {
            generation: take_u64(input)?,
            epoch: take_u64(input)?,
            part: take_u64(input)?,
        },
        15 => Packet::Prepared,
        18 => Packet::Outside {
            generation: take_u64(input)?,
            epoch: take_u64(input)?,
            rows: take_u64(input)?,
        },
        23 => Packet::Follow {
            generation: take_u64(input)?,
            passed: Tid(take_u64(input)?),
            tables: take_list(input, |input| take_u16(input).map(TableId))?,
        },
        24 => Packet::Changed {
            generation: take_u64(input)?,
            epoch: take_u64(input)?,
            changes: take_list(input, |input| {
                let table = TableId(take_u16(input)?);
                let rows = take_option(input, |input| {
                    take_list(input, |input| {
                        let key = Key(take_bytes(input)?.into());
                        Some((key, take_stored(input)?))
                    })
                })?;
                Some(TableChanges { table, rows })
            })?,
        },
        16 => Packet::Left {
            generation: take_u64(input)?,
            base: take_u64(input)?,
            ends: take_list(input, take_u64)?,
        },
        _ => return None,
    })
}
