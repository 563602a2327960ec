//! Topics as bytes.

use tidemill_cluster::Topic;
use tidemill_core::wire::{put_u32, take_u32, take_u8};

pub(crate) fn put_topic(topic: Topic, out: &mut Vec<u8>) {
    let (tag, source) = match topic {
        Topic::Cuts => (0, 0),
        Topic::Input(source) => (1, source),
        Topic::Output(source) => (2, source),
    };
    out.push(tag);
    put_u32(source, out);
}

pub(crate) fn take_topic(input: &mut &[u8]) -> Option<Topic> {
    let (tag, source) = (take_u8(input)?, take_u32(input)?);
    match tag {
        0 => Some(Topic::Cuts),
        1 => Some(Topic::Input(source)),
        2 => Some(Topic::Output(source)),
        _ => None,
    }
}
