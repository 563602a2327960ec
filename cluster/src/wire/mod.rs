//! Packets, records and objects as bytes, for sockets, logs and stores.
//!
//! The encoding of the parts is that of `tidemill_core::wire`. A value with several kinds begins
//! with a byte for its kind, and a list begins with its length (u32). Decoding gives `None` for
//! invalid bytes. It never panics, takes no more memory than there are bytes, and follows at most
//! [`DEPTH_MAX`] nested lists.

mod message;
mod packet;
mod record;
mod value;

pub use packet::{put_packet, take_packet};
pub use record::{
    put_manifest_object, put_record, take_manifest_object, take_part_of_before, take_record,
};

use std::sync::Arc;

use tidemill_core::wire::{put_u32, put_u64, take_u32, take_u64, take_u8};
use tidemill_core::Value;
use tidemill_function::{Path, Tid};

/// The version of records and parts of snapshots, which logs and stores record.
pub const VERSION: u32 = 7;
/// The version of messages. Processes with different versions do not communicate.
pub const MESSAGES: u32 = 20;

/// The maximum depth of nested lists.
const DEPTH_MAX: usize = 128;

fn put_bool(flag: bool, out: &mut Vec<u8>) {
    out.push(u8::from(flag));
}

fn take_bool(input: &mut &[u8]) -> Option<bool> {
    match take_u8(input)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn put_list<T>(items: &[T], out: &mut Vec<u8>, mut put: impl FnMut(&T, &mut Vec<u8>)) {
    put_u32(u32::try_from(items.len()).expect("less than 4 G items"), out);
    items.iter().for_each(|item| put(item, out));
}

/// Returns the number of items for which memory is reserved. It takes no more bytes than the input
/// has, whatever the input claims.
fn room<T>(len: usize, input: &[u8]) -> usize {
    len.min(input.len() / size_of::<T>().max(1))
}

fn take_list<T>(
    input: &mut &[u8],
    mut take: impl FnMut(&mut &[u8]) -> Option<T>,
) -> Option<Vec<T>> {
    let len = take_u32(input)? as usize;
    let mut items = Vec::with_capacity(room::<T>(len, input));
    for _ in 0..len {
        items.push(take(input)?);
    }
    Some(items)
}

fn put_option<T>(item: Option<T>, out: &mut Vec<u8>, put: impl FnOnce(T, &mut Vec<u8>)) {
    put_bool(item.is_some(), out);
    if let Some(item) = item {
        put(item, out);
    }
}

fn take_option<T>(
    input: &mut &[u8],
    take: impl FnOnce(&mut &[u8]) -> Option<T>,
) -> Option<Option<T>> {
    match take_bool(input)? {
        true => take(input).map(Some),
        false => Some(None),
    }
}

fn put_i64(number: i64, out: &mut Vec<u8>) {
    put_u64(number as u64, out);
}

fn take_i64(input: &mut &[u8]) -> Option<i64> {
    Some(take_u64(input)? as i64)
}

fn put_values(values: &[Value], out: &mut Vec<u8>) {
    put_list(values, out, value::put);
}

fn take_values(input: &mut &[u8]) -> Option<Arc<[Value]>> {
    take_list(input, |input| value::take(input, DEPTH_MAX)).map(Arc::from)
}

/// Appends a value.
pub fn put_value(of: &Value, out: &mut Vec<u8>) {
    value::put(of, out);
}

/// Takes a value off the front.
pub fn take_value(input: &mut &[u8]) -> Option<Value> {
    value::take(input, DEPTH_MAX)
}

fn put_tid(tid: Tid, out: &mut Vec<u8>) {
    put_u64(tid.0, out);
}

fn take_tid(input: &mut &[u8]) -> Option<Tid> {
    take_u64(input).map(Tid)
}

fn put_path(path: &Path, out: &mut Vec<u8>) {
    put_list(path, out, |n, out| put_u32(*n, out));
}

fn take_path(input: &mut &[u8]) -> Option<Path> {
    take_list(input, take_u32).map(Path::from_vec)
}

#[cfg(test)]
mod tests;
