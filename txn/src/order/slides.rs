//! How far windows by time slide at a cut: one rule, whoever makes it.

use tidemill_core::{Position, SourceId, StreamTime};

use super::groups::Groups;
use crate::program::{Program, Until};

/// By group of streams: until its watermark, or where it has no event time until the clock; all that hold rows where
/// its input has ended.
pub(crate) fn until(
    program: &Program,
    groups: &Groups,
    watermarks: &[Position],
    clock_us: i64,
    ended: &dyn Fn(SourceId) -> bool,
) -> Vec<Until> {
    let of = |group: usize| {
        let is_timed = groups.event_time[group];
        let sources = program.sources.iter().enumerate().filter(|(_, source)| {
            let by_arrival =
                program.streams[source.stream.index()].spec.time == StreamTime::Arrival;
            groups.of[source.stream.index()] == group && !(by_arrival && is_timed)
        });
        let mut sources = sources.map(|(id, _)| SourceId(id as u32)).peekable();
        match () {
            () if sources.peek().is_some() && sources.all(ended) => Until::End,
            () if is_timed => Until::Time(watermarks[group].time_us),
            () => Until::Time(clock_us),
        }
    };
    (0..groups.len).map(of).collect()
}
