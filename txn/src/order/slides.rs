//! The slides of windows by time at a cut. One rule, on one process and on several.

use tidemill_core::{Position, SourceId, StreamTime};

use super::groups::Groups;
use crate::program::{Extent, Program, Until, WindowId};

/// Returns, per group of streams, the limit of its windows' slides. It is the group's watermark or,
/// without event time, the clock. When the group's input has ended, the limit is the newest time of
/// all its rows, and windows that hold rows slide beyond it. `ended` says whether a source sends
/// nothing more to a group.
pub fn until(
    program: &Program,
    groups: &Groups,
    watermarks: &[Position],
    (clock_us, newest_us): (i64, &dyn Fn(SourceId) -> Option<i64>),
    ended: &dyn Fn(usize, SourceId) -> bool,
) -> Vec<Until> {
    let of = |group: usize| {
        let is_timed = groups.event_time[group];
        let sources = program.sources.iter().enumerate().filter(|(_, source)| {
            let by_arrival =
                program.streams[source.stream.index()].spec.time == StreamTime::Arrival;
            groups.of[source.stream.index()] == group && !(by_arrival && is_timed)
        });
        let sources: Vec<SourceId> = sources.map(|(id, _)| SourceId(id as u32)).collect();
        match () {
            () if !sources.is_empty() && sources.iter().all(|source| ended(group, *source)) => {
                let newest_us = sources.iter().filter_map(|source| newest_us(*source)).max();
                Until::End(if is_timed { newest_us.unwrap_or(i64::MIN) } else { clock_us })
            }
            () if is_timed => Until::Time(watermarks[group].time_us),
            () => Until::Time(clock_us),
        }
    };
    (0..groups.len).map(of).collect()
}

/// Returns the shortest slide of windows by time, for each group in event time that has such
/// windows.
pub(super) fn shortest_us<'a>(
    program: &'a Program,
    groups: &'a Groups,
) -> impl Iterator<Item = (usize, i64)> + 'a {
    let shortest = move |(group, windows): (usize, Vec<WindowId>)| {
        let slide_us = |window: &WindowId| match program.windows[window.index()].extent {
            Extent::Time { slide_us, .. } => Some(slide_us),
            Extent::Rows { .. } => None,
        };
        Some((group, windows.iter().filter_map(slide_us).min()?))
            .filter(|_| groups.event_time[group])
    };
    program.timed_windows(groups).into_iter().enumerate().filter_map(shortest)
}
