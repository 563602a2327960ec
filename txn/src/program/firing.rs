//! Windows by time that slide when nobody puts a row into them.
//!
//! Time ends a window, not the row that happens to come next. So each slide is a transaction of its own, the owner's,
//! with its triggers: a *firing*. Its stamp is the time at which the window ends, before all events that have that
//! time, with a source that nothing else has. It is executed before the first event of its streams that is not
//! earlier, or at the cut whose watermark (without event time: whose clock) is not; where the input has ended, at that
//! cut, as long as the window holds rows. So it follows from events and cuts, and needs no log of its own.
//!
//! When a trigger aborts, nothing of what it did has happened, and the window has slid all the same: time goes on.

use tidemill_core::stamp::Admission;
use tidemill_core::{Position, Row, SourceId, Stamp, TableId, Value};

use super::owned::{Extent, WindowId};
use super::Program;

/// How far windows slide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Those that end no later.
    Time(i64),
    /// Those that end no later, and all that hold rows: no more will come.
    End(i64),
}

/// The first source of firings; each window has one.
const SOURCES: u32 = 1 << 31;

/// What tells a firing from all others: a source and an offset, as events have.
pub fn event_of_slide(window: WindowId, edge: i64) -> (SourceId, u64) {
    (SourceId(SOURCES + u32::from(window.0)), edge.cast_unsigned())
}

/// The firing that is told from others so: its window, and when that ended.
pub fn slide_of((source, offset): (SourceId, u64)) -> Option<(WindowId, i64)> {
    let window = u16::try_from(source.0.checked_sub(SOURCES)?).ok()?;
    Some((WindowId(window), offset.cast_signed()))
}

/// The stamp of a firing: just before all events of its time.
pub(crate) fn stamp(window: WindowId, edge: i64) -> Stamp {
    let (source, offset) = event_of_slide(window, edge);
    let at = Position { time_us: edge, source: SourceId(0), offset: 0 };
    Stamp::admitted(at, Admission { epoch: 0, source, offset })
}

/// Looks a row up.
type Lookup<'a, E> = dyn FnMut(TableId, &[Value]) -> Result<Option<Row>, E> + 'a;

/// The window, of some, that is the first to slide, and the time at which it ends. `row` looks a row up.
///
/// # Errors
/// Those of `row`.
pub(crate) fn due<E>(
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
    /// How people call an event: a row of a source, or a slide of a window.
    pub fn event_named(&self, (source, offset): (SourceId, u64)) -> String {
        match slide_of((source, offset)) {
            Some((window, edge)) => {
                let name = self.windows.get(window.index()).map_or("", |window| &window.name);
                format!("the slide of window {name} that ended at {edge}")
            }
            None => {
                let name = self.sources.get(source.index()).map_or("", |source| &source.name);
                format!("row {offset} of source {name}")
            }
        }
    }

    /// The windows by time whose owners take what comes of streams of each group.
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
