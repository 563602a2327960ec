//! The sources of events of streams with event time. They are in the order of the declarations, and
//! of each source in the order of the log's partitions. So ties between equal times are resolved as
//! in one process.

use tidemill_cluster::{EventSource, EventTime, Interval};
use tidemill_core::{Result, StreamId, StreamTime};
use tidemill_txn::order::Groups;
use tidemill_txn::program::Origin;

use super::topics::ReadTopic;
use crate::spec::AppSpec;

/// Returns the streams with event time of an app. Its requests come by `own` sources, and the
/// partitions of its topics follow.
///
/// # Errors
/// When streams that share a table have times of different types.
pub(super) fn event_time(spec: &AppSpec, own: u32, topics: &[ReadTopic]) -> Result<EventTime> {
    let program = &spec.program;
    let of = Groups::of(program)?.of;
    let mut groups: Vec<usize> = Vec::new();
    let mut sources = Vec::new();
    let mut add = |stream: StreamId, from: std::ops::Range<u32>, out_of_orderness_us, idle_us| {
        let group = of[stream.index()];
        let known = groups.iter().position(|known| *known == group);
        let group = known.unwrap_or_else(|| {
            groups.push(group);
            groups.len() - 1
        });
        let spec = &program.streams[stream.index()].spec;
        let source = |source| EventSource {
            source,
            stream,
            group,
            out_of_orderness_us,
            idle_us,
            late: spec.late,
        };
        sources.extend(from.map(source));
    };
    let is_timed = |stream: StreamId| {
        let stream = &program.streams[stream.index()];
        stream.origin == Origin::Input && matches!(stream.spec.time, StreamTime::Event { .. })
    };
    // Files follow the topics.
    let mut feed = own + super::topics::sources(topics);
    let (mut topics, mut next) = (topics.iter(), own);
    for decl in &spec.sources {
        let from = if decl.is_pushed() {
            0..own
        } else if decl.files.is_some() {
            feed += 1;
            feed - 1..feed
        } else {
            let partitions = topics.next().map_or(0, ReadTopic::sources);
            next += partitions;
            next - partitions..next
        };
        let is_it = |s: &tidemill_txn::program::Stream| *s.spec.name == *decl.stream;
        let Some(stream) = program.streams.iter().position(is_it) else { continue };
        let stream = StreamId(stream as u16);
        if is_timed(stream) {
            add(stream, from, decl.out_of_orderness_us, decl.idle_us);
        }
    }
    // Clients may send into a stream without a source of its own.
    for index in 0..program.streams.len() {
        let stream = StreamId(index as u16);
        let name = &*program.streams[index].spec.name;
        if is_timed(stream) && spec.sources.iter().all(|decl| decl.stream != name) {
            add(stream, 0..own, 0, None);
        }
    }
    // The order of the bits by which functions say on which of them an event is.
    let interval = |(stream, us): (StreamId, i64)| {
        let group = groups.iter().position(|group| *group == of[stream.index()]);
        Interval { group: group.expect("its events come from somewhere"), us }
    };
    let intervals = program.batches_by_event_time().map(interval).collect();
    Ok(EventTime::new(sources, intervals))
}

#[cfg(test)]
mod tests {
    use tidemill_core::{Column, DataType, Late};
    use tidemill_txn::program::Builder;

    use super::*;
    use crate::settings::Settings;
    use crate::spec::SourceDecl;

    #[test]
    fn sources_are_in_the_order_in_which_they_are_declared() {
        let mut b = Builder::new("times");
        let columns = ["id", "at"].map(|name| Column::new(name, DataType::Int)).to_vec();
        let mut streams = Vec::new();
        for (nth, name) in ["votes", "clicks", "bids", "calls"].into_iter().enumerate() {
            let table = b.table(&format!("t{nth}"), &["id"], columns.clone());
            let stream = b.stream(name, columns.clone());
            if name != "calls" {
                b.event_time(stream, "at", Late::Side);
            }
            let mut h = b.handler(&format!("on {name}"), stream);
            let id = h.column("id");
            let row = h.row(table, &[id]);
            h.set(row, "at", id);
            h.done();
            streams.push(stream);
        }
        let topic = |stream: &str| SourceDecl {
            kafka: Some(serde_json::json!({})),
            out_of_orderness_us: 3,
            ..SourceDecl::pushed(stream)
        };
        let file = |stream: &str| SourceDecl {
            files: Some(serde_json::json!({})),
            ..SourceDecl::pushed(stream)
        };
        let (pushed, votes) = (SourceDecl::pushed("votes"), topic("votes"));
        let sources =
            vec![topic("bids"), pushed, file("bids"), topic("calls"), votes, file("calls")];
        let spec = AppSpec::new(b.finish().unwrap(), sources, Settings::default());
        let read = |name: &str, partitions| {
            let begins = (0..partitions).map(|partition| (partition, 0)).collect();
            ReadTopic { name: name.into(), begins }
        };
        let topics = [read("bids", 2), read("calls", 1), read("votes", 1)];
        let of = event_time(&spec, 2, &topics).unwrap();
        let found: Vec<_> = of
            .sources()
            .iter()
            .map(|of| (of.source, of.stream, of.group, of.out_of_orderness_us))
            .collect();
        let [votes, clicks, bids, _] = streams[..] else { unreachable!("there are four") };
        let wanted = [
            (2, bids, 0, 3),
            (3, bids, 0, 3),
            (0, votes, 1, 0),
            (1, votes, 1, 0),
            (6, bids, 0, 0),
            (5, votes, 1, 3),
            // The stream has no declared source.
            (0, clicks, 2, 0),
            (1, clicks, 2, 0),
        ];
        assert_eq!(found, wanted);
    }
}
