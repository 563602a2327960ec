//! Firings: slides of windows by time, independent of new rows.
//!
//! Time ends a window, not the next row. So each slide is a transaction of its own, with the
//! triggers: a *firing*. It belongs to the window's owner. Its stamp is the time at which the
//! window ends, before all events of that time, with a source of its own. It runs before the first
//! event of its streams that is not earlier. If no such event comes, it runs at the first cut whose
//! watermark (without event time, whose clock) has reached that time. When the input has ended, it
//! runs at that cut as long as the window holds rows. So firings follow from events and cuts, and
//! need no log of their own.
//!
//! If a trigger aborts, its effects are undone, but the window still slides: time goes on.

use tidemill_core::stamp::Admission;
use tidemill_core::{Position, Row, SourceId, Stamp, TableId, Value};

use super::owned::{Extent, WindowId};
use super::Program;

/// The limit up to which windows slide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Windows that end at this time or earlier.
    Time(i64),
    /// Windows that end at this time or earlier, and all that hold rows, because no more will
    /// arrive.
    End(i64),
}

/// The source number of the first window's firings. Each window has its own source.
const SOURCES: u32 = 1 << 31;

/// Returns the identity of a firing: a source and an offset, as for events.
pub fn event_of_slide(window: WindowId, edge: i64) -> (SourceId, u64) {
    (SourceId(SOURCES + u32::from(window.0)), edge.cast_unsigned())
}

/// Returns the firing with this identity: its window, and the time at which that ended.
pub fn slide_of((source, offset): (SourceId, u64)) -> Option<(WindowId, i64)> {
    let window = u16::try_from(source.0.checked_sub(SOURCES)?).ok()?;
    Some((WindowId(window), offset.cast_signed()))
}

/// Returns the stamp of a firing, just before all events of its time.
pub fn stamp(window: WindowId, edge: i64) -> Stamp {
    let (source, offset) = event_of_slide(window, edge);
    let at = Position { time_us: edge, source: SourceId(0), offset: 0 };
    Stamp::admitted(at, Admission { epoch: 0, source, offset })
}

/// A function that looks up a row.
type Lookup<'a, E> = dyn FnMut(TableId, &[Value]) -> Result<Option<Row>, E> + 'a;

/// Returns the first of these windows to slide, and the time at which it ends. `row` looks up a
/// row.
///
/// # Errors
/// Errors of `row`.
pub fn due<E>(
    program: &Program,
    windows: &[WindowId],
    until: Until,
    row: &mut Lookup<'_, E>,
) -> Result<Option<(WindowId, i64)>, E> {
    let mut first: Option<(WindowId, i64)> = None;
    for id in windows {
        let window = &program.windows[id.index()];
        let Extent::Time { size_us, .. } = window.extent else { continue };
        let Some(state) = row(window.state, &[Value::Int(0)])? else { continue };
        let (Value::Int(next), Value::Int(edge)) = (&state[3], &state[4]) else { continue };
        let is_due = match until {
            Until::Time(time_us) => *edge <= time_us,
            Until::End(time_us) if *edge <= time_us => true,
            Until::End(_) => {
                let last = row(window.rows, &[Value::Int(next - 1)])?;
                last.is_some_and(|last| match last[1] {
                    Value::Int(at) => at >= edge.saturating_sub(size_us),
                    _ => false,
                })
            }
        };
        if is_due && first.is_none_or(|(_, before)| *edge < before) {
            first = Some((*id, *edge));
        }
    }
    Ok(first)
}

impl Program {
    /// Returns the name of an event for users: a row of a source, or a slide of a window.
    pub fn event_named(&self, (source, offset): (SourceId, u64)) -> String {
        match slide_of((source, offset)) {
            Some((window, edge)) => {
                let name = self.windows.get(window.index()).map_or("", |window| &window.name);
                format!("the slide of window {name} that ended at {edge}")
            }
            None => {
                let name = self.sources.get(source.index()).map_or("", |source| &source.name);
                format!("row {offset} of source {name} (counted from 0)")
            }
        }
    }

    /// Returns the windows by time whose owners take streams of each group.
    pub fn timed_windows(&self, groups: &crate::order::Groups) -> Vec<Vec<WindowId>> {
        let mut of = vec![Vec::new(); groups.len];
        for (id, window) in self.windows.iter().enumerate() {
            if let Extent::Time { .. } = window.extent {
                let input = self.handlers[window.owner.index()].input;
                of[groups.of[input.index()]].push(WindowId(id as u16));
            }
        }
        of
    }
}
