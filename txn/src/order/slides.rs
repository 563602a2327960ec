//! How far windows by time slide at a cut: one rule, whoever makes it.

use tidemill_core::{Position, SourceId, StreamTime};

use super::groups::Groups;
use crate::program::{Extent, Program, Until, WindowId};

/// By group of streams: until its watermark, or where it has no event time until the clock. Where its input has ended, until
/// the newest time of all its rows, and all that hold rows. `ended` says whether nothing more comes to a group by a source.
pub(crate) fn until(
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

/// Of the groups in event time whose owners have windows by time: the shortest slide of these.
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
