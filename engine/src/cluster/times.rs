//! Where events of streams in event time come from: each of a stream's sources, in the order in which they are declared,
//! and of each the log's partitions. So ties between equal times go as in one process.

use tidemill_cluster::{EventSource, EventTime};
use tidemill_core::{Result, StreamId, StreamTime};
use tidemill_kafka::Followed;
use tidemill_txn::order::Groups;
use tidemill_txn::program::Origin;

use crate::spec::AppSpec;

/// The streams in event time of an app whose requests come by so many sources, behind which its topics' partitions are.
///
/// # Errors
/// When streams that share a table have times of different types.
pub(super) fn event_time(spec: &AppSpec, own: u32, topics: &[Followed]) -> Result<EventTime> {
    let program = &spec.program;
    let of = Groups::of(program)?.of;
    let mut groups: Vec<usize> = Vec::new();
    let mut sources = Vec::new();
    let mut add = |stream: StreamId, from: std::ops::Range<u32>, disorder_us, idle_us| {
        let group = of[stream.index()];
        let known = groups.iter().position(|known| *known == group);
        let group = known.unwrap_or_else(|| {
            groups.push(group);
            groups.len() - 1
        });
        let source = |source| EventSource { source, stream, group, disorder_us, idle_us };
        sources.extend(from.map(source));
    };
    let is_timed = |stream: StreamId| {
        let stream = &program.streams[stream.index()];
        stream.origin == Origin::Input && matches!(stream.spec.time, StreamTime::Event { .. })
    };
    let (mut topics, mut next) = (topics.iter(), own);
    for decl in &spec.sources {
        let from = match decl.is_pushed() {
            true => 0..own,
            false => {
                let partitions = topics.next().map_or(0, |topic| topic.partitions);
                next += partitions;
                next - partitions..next
            }
        };
        let is_it = |s: &tidemill_txn::program::Stream| *s.spec.name == *decl.stream;
        let Some(stream) = program.streams.iter().position(is_it) else { continue };
        let stream = StreamId(stream as u16);
        if is_timed(stream) {
            add(stream, from, decl.disorder_us, decl.idle_us);
        }
    }
    // Others may send into a stream that has no source of its own.
    for index in 0..program.streams.len() {
        let stream = StreamId(index as u16);
        let name = &*program.streams[index].spec.name;
        if is_timed(stream) && spec.sources.iter().all(|decl| decl.stream != name) {
            add(stream, 0..own, 0, None);
        }
    }
    Ok(EventTime::new(sources))
}
