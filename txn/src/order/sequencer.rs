//! The sequencer: makes cuts, buffers events until the watermark passes them, and finds late
//! events.

use std::sync::Arc;

use tidemill_core::{
    Cut, Error, Late, LateRow, Position, Result, SourceId, SourceSpec, StreamId, StreamTime,
};

use super::batches::{self, Cutting};
use super::epoch::{Epoch, Run};
use super::groups::Groups;
use super::slides;
use super::watermark::{at, over, watermarks, SourceProgress, WatermarkEffect};
use crate::pool::Pool;
use crate::program::{Batching, Program};

/// The input of a cut: the events received since the last cut, and the state of sources and clock.
#[derive(Debug, Default)]
pub struct CutInput {
    /// New events. Those of streams without event time need no times.
    pub runs: Vec<Run>,
    /// Per source: the offset of the first row that has not arrived.
    pub offsets: Vec<u64>,
    /// Per source: the newest event time among all its rows so far, including filtered rows.
    pub times_max: Vec<Option<i64>>,
    /// The rows that are late by earlier rows of their own source ([`Newest`](super::Newest)),
    /// including filtered rows.
    pub late: Vec<(SourceId, LateRow)>,
    /// The clock, in microseconds since 1970.
    pub clock_us: i64,
    /// Sources that have been silent too long to hold the watermark back.
    pub idle: Vec<SourceId>,
    /// Sources that have ended.
    pub ended: Vec<SourceId>,
    /// Per stream in a replay: the recorded watermark, which is an upper bound. `None` lets the
    /// sequencer decide.
    pub watermarks_max: Option<Vec<Position>>,
}

/// The result of a cut.
#[derive(Debug)]
pub struct Sequenced {
    /// The cut, to be recorded.
    pub cut: Cut,
    /// The ready events, ranked.
    pub epoch: Epoch,
    /// The late events for the side stream of their input stream, by stream, source and row.
    pub late: Vec<Run>,
    /// Whether the bound on slides holds a watermark back. The next cut then continues without
    /// waiting for rows.
    pub is_held: bool,
}

/// The approximate maximum of slides of a window by time in an epoch. Each slide is a transaction.
/// So this bounds an epoch's duration and memory when rows are far apart in event time.
const SLIDES_MAX: i64 = 65_536;

/// Makes cuts. Its state (buffered events, watermarks) is a function of the events and cuts so far.
#[derive(Debug)]
pub struct Sequencer {
    program: Arc<Program>,
    groups: Groups,
    /// Per stream: the input stream from which it derives.
    roots: Vec<StreamId>,
    /// Per group: the unit, in microseconds, at whose multiples the watermark stops; 0 for none.
    units_us: Vec<i64>,
    epoch: u64,
    clock_us: i64,
    /// The watermark of each group.
    watermarks: Vec<Position>,
    /// Buffered runs, each in stamp order, because every cut looks for their ready events.
    buffered: Vec<Run>,
    /// The salt of random numbers.
    salt: u64,
    slides_max: i64,
}

/// The state with which a new sequencer continues where another one stopped.
#[derive(Clone, Debug)]
pub struct SequencerState {
    /// The number of the last cut.
    pub epoch: u64,
    /// The clock of the last cut, in microseconds since 1970.
    pub clock_us: i64,
    /// The watermark of each stream.
    pub watermarks: Vec<Position>,
    /// The buffered events.
    pub buffered: Vec<Run>,
    /// The [salt](crate::program::Moment::salt) of random numbers.
    pub salt: u64,
}

const LATE_HELP: &str =
    "give the source a larger out_of_orderness, or the stream late=\"side\" or late=\"admit\"";

/// Returns those of the late rows, sorted by source and offset, that can be in a run.
fn late_of<'a>(late: &'a [(SourceId, LateRow)], run: &Run) -> &'a [(SourceId, LateRow)] {
    let (Some(first), Some(last)) = (run.offsets.first(), run.offsets.last()) else { return &[] };
    let from = late.partition_point(|(source, row)| (*source, row.offset) < (run.source, *first));
    let upto = late.partition_point(|(source, row)| (*source, row.offset) <= (run.source, *last));
    &late[from..upto]
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Returns, per stream, the watermark after the end of all sources, given each source's newest time
/// and number of rows. `None` for streams whose group has no source in event time.
///
/// # Errors
/// If the program mixes units of time.
pub fn ends_of(
    program: &Program,
    sources: impl Iterator<Item = (Option<i64>, u64)>,
) -> Result<Vec<Option<Position>>> {
    let groups = Groups::of(program)?;
    let units_us = batches::units_us(program, &groups.of, groups.len);
    let come =
        |(index, ((newest_us, offset), source)): (usize, ((Option<i64>, u64), &SourceSpec))| {
            let stream = source.stream.index();
            let is_timed = matches!(program.streams[stream].spec.time, StreamTime::Event { .. });
            is_timed.then(|| SourceProgress {
                source: SourceId(index as u32),
                group: groups.of[stream],
                newest_us,
                offset,
                out_of_orderness_us: source.out_of_orderness_us,
                holds: WatermarkEffect::Ended,
            })
        };
    let come = sources.zip(&program.sources).enumerate().filter_map(come);
    let marks = watermarks(&units_us, come);
    Ok(groups.of.iter().map(|group| marks[*group]).collect())
}

impl Sequencer {
    /// Makes a sequencer before its first cut.
    pub fn new(program: Arc<Program>) -> Result<Sequencer> {
        let groups = Groups::of(&program)?;
        let roots =
            (0..program.streams.len() as u16).map(|s| program.root_stream(StreamId(s))).collect();
        Ok(Sequencer {
            watermarks: vec![Position::MIN; groups.len],
            units_us: batches::units_us(&program, &groups.of, groups.len),
            groups,
            roots,
            program,
            epoch: 0,
            clock_us: i64::MIN,
            buffered: Vec::new(),
            salt: 0,
            slides_max: SLIDES_MAX,
        })
    }

    /// Sets another bound on the slides of an epoch. It decides where cuts fall, and never the
    /// results.
    pub fn with_slides_max(self, slides_max: i64) -> Sequencer {
        Sequencer { slides_max, ..self }
    }

    /// Returns the state after the last cut.
    pub fn state(&self) -> SequencerState {
        SequencerState {
            epoch: self.epoch,
            clock_us: self.clock_us,
            watermarks: self.groups.of.iter().map(|g| self.watermarks[*g]).collect(),
            buffered: self.buffered.clone(),
            salt: self.salt,
        }
    }

    /// Makes a sequencer that continues after a cut, from a state of the same program.
    ///
    /// # Errors
    /// If the program is invalid, or the state belongs to another program.
    pub fn restore(program: Arc<Program>, state: SequencerState) -> Result<Sequencer> {
        let mut sequencer = Sequencer::new(program)?;
        if state.watermarks.len() != sequencer.groups.of.len() {
            return Err(Error::internal("the sequencer's state belongs to another program"));
        }
        for (stream, watermark) in state.watermarks.into_iter().enumerate() {
            sequencer.watermarks[sequencer.groups.of[stream]] = watermark;
        }
        sequencer.epoch = state.epoch;
        sequencer.clock_us = state.clock_us;
        sequencer.salt = state.salt;
        sequencer.buffered = state.buffered;
        sequencer.buffered.iter_mut().for_each(Run::put_in_order);
        Ok(sequencer)
    }

    /// Returns the groups of streams that share a watermark.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Returns the bytes of buffered events.
    pub fn buffered_bytes(&self) -> usize {
        self.buffered.iter().map(|r| r.batch.bytes() + r.offsets.len() * 16).sum()
    }

    /// Returns the number of buffered events.
    pub fn buffered_rows(&self) -> usize {
        self.buffered.iter().map(|r| r.offsets.len()).sum()
    }

    /// Returns the progress of each source of a stream in event time, at a cut.
    fn sources_at<'a>(&'a self, input: &'a CutInput) -> impl Iterator<Item = SourceProgress> + 'a {
        let come = |(index, source): (usize, &SourceSpec)| {
            let spec = &self.program.streams[source.stream.index()].spec;
            let id = SourceId(index as u32);
            matches!(spec.time, StreamTime::Event { .. }).then(|| SourceProgress {
                source: id,
                group: self.groups.of[source.stream.index()],
                newest_us: input.times_max[index],
                offset: input.offsets[index],
                out_of_orderness_us: source.out_of_orderness_us,
                holds: match input.ended.contains(&id) {
                    true => WatermarkEffect::Ended,
                    false if input.idle.contains(&id) => WatermarkEffect::Idle,
                    false => WatermarkEffect::Back,
                },
            })
        };
        self.program.sources.iter().enumerate().filter_map(come)
    }

    /// Whether this input, without further rows, allows a watermark to advance.
    pub fn is_held(&self, input: &CutInput) -> bool {
        self.new_watermarks(input).iter().zip(&self.watermarks).any(|(new, now)| new > now)
    }

    /// Limits watermarks: they never go back, and never pass more slides than an epoch may have.
    fn held_back(&self, input: &CutInput, marks: &[Position]) -> Vec<Position> {
        if let Some(max) = &input.watermarks_max {
            let of_stream = self.groups.of.iter().zip(max);
            let mut held = marks.to_vec();
            for (group, max) in of_stream {
                held[*group] = held[*group].min(*max).max(self.watermarks[*group]);
            }
            return held;
        }
        let mut held = marks.to_vec();
        for (group, slide_us) in slides::shortest_us(&self.program, &self.groups) {
            let (before, mark) = (self.watermarks[group], marks[group]);
            let is_of =
                |run: &&Run| self.groups.of[run.stream.index()] == group && run.admitted.is_none();
            let is_ready = |time_us: &i64| (before.time_us..=mark.time_us).contains(time_us);
            // Buffered runs are in order and not late.
            let waiting = self.buffered.iter().filter(is_of).filter_map(|run| run.times.first());
            let new = input.runs.iter().filter(is_of).flat_map(|run| &run.times);
            let first = waiting.chain(new).copied().filter(is_ready).min();
            // Without rows, windows become empty and no longer slide.
            let Some(first_us) = first else { continue };
            let span_us = slide_us.saturating_mul(self.slides_max);
            held[group] =
                mark.min(over(at(first_us.saturating_add(span_us)), self.units_us[group]));
        }
        held
    }

    /// Returns the new watermark of each group. All events before it have arrived.
    fn new_watermarks(&self, input: &CutInput) -> Vec<Position> {
        let mut has_source = vec![false; self.groups.len];
        self.sources_at(input).for_each(|come| has_source[come.group] = true);
        let marks = watermarks(&self.units_us, self.sources_at(input));
        let mark = |(group, mark): (usize, Option<Position>)| {
            let none = if has_source[group] { Position::MIN } else { Position::MAX };
            mark.unwrap_or(none).max(self.watermarks[group])
        };
        marks.into_iter().enumerate().map(mark).collect()
    }

    /// Makes a cut. Each event of `input` joins this epoch, is buffered for a later one, or is
    /// late. A late event is an error if its stream has `late="error"`. The pool's threads put
    /// events in order.
    pub fn cut(&mut self, pool: &dyn Pool, mut input: CutInput) -> Result<Sequenced> {
        assert_eq!(input.offsets.len(), self.program.sources.len());
        assert_eq!(input.times_max.len(), self.program.sources.len());
        input.late.sort_unstable_by_key(|(source, row)| (*source, row.offset));
        self.refuse_late(&input.late)?;
        let ends = self.ends(&input);
        let come = self.new_watermarks(&input);
        let marks = self.held_back(&input, &come);
        let is_held = |group: usize| marks[group] < come[group];
        self.epoch += 1;
        // Strictly increasing, so that arrivals of two cuts never have the same time.
        self.clock_us = input.clock_us.max(self.clock_us.saturating_add(1));
        let (mut ready, mut buffered, mut late) = (Vec::new(), Vec::new(), Vec::new());
        let waiting = std::mem::take(&mut self.buffered);
        for (run, is_new) in
            waiting.into_iter().map(|r| (r, false)).chain(input.runs.into_iter().map(|r| (r, true)))
        {
            let root = &self.program.streams[self.roots[run.stream.index()].index()].spec;
            let group = self.groups.of[run.stream.index()];
            let (before, now) = (self.watermarks[group], marks[group]);
            if !matches!(root.time, StreamTime::Event { .. }) {
                let batch = self.program.streams[run.stream.index()].batch;
                ready.push(match batch {
                    None => self.arrived(run, group),
                    Some(_) if is_new => self.take(run),
                    Some(_) => run,
                });
                continue;
            }
            if run.admitted.is_some() {
                // It was ready before, and waits for its batch.
                ready.push(run);
                continue;
            }
            let mut run = run;
            let own = if is_new { late_of(&input.late, &run) } else { &[] };
            if !is_new || (own.is_empty() && run.is_in_order_by(pool)) {
                // The usual case: only the end of the run is buffered, and only that is copied.
                let first = run.first_from(before);
                if !is_new || first == 0 {
                    match run.first_from(now) {
                        0 if run.offsets.is_empty() => {}
                        0 => buffered.push(run),
                        rows => {
                            if rows < run.offsets.len() {
                                buffered.push(run.split_off(rows));
                            }
                            ready.push(run);
                        }
                    }
                    continue;
                }
            }
            let (mut on_time, mut waits, mut too_late) = (Vec::new(), Vec::new(), Vec::new());
            let mut own = own.iter().map(|(_, row)| row).peekable();
            for row in 0..run.times.len() {
                // These include rows that a filter has removed.
                while own.next_if(|own| own.offset < run.offsets[row]).is_some() {}
                if let Some(own) = own.next_if(|own| own.offset == run.offsets[row]) {
                    if root.late == Late::Side {
                        too_late.push(row as u32);
                        continue;
                    }
                    // The bound of its source, which no watermark has passed yet.
                    run.times[row] = own.bound_us;
                }
                let at = run.position(row);
                let rows = if is_new && at < before {
                    &mut too_late
                } else if at < now {
                    &mut on_time
                } else {
                    &mut waits
                };
                rows.push(row as u32);
            }
            if let Some(&first) = too_late.first() {
                match root.late {
                    Late::Side => late.push(run.take(&too_late)),
                    Late::Admit => {
                        let mut admitted = run.take(&too_late);
                        admitted.times.fill(before.time_us);
                        admitted.admitted = Some((before, self.epoch));
                        admitted.put_in_order();
                        ready.push(admitted);
                    }
                    Late::Error => {
                        let row = first as usize;
                        let source = &self.program.sources[run.source.index()].name;
                        return Err(Error::input(format!(
                            "stream {}: row {} of source {source} (counted from 0) is late: its time is {}, and \
                             the watermark was at {} already",
                            root.name, run.offsets[row], run.times[row], before.time_us
                        ))
                        .help(LATE_HELP));
                    }
                }
            }
            for (mut rows, runs) in [(on_time, &mut ready), (waits, &mut buffered)] {
                if !rows.is_empty() {
                    run.sort_rows(&mut rows);
                    runs.push(run.take(&rows));
                }
            }
        }
        // Runs of different sources arrive in any order.
        late.sort_by_key(|run| (run.stream, run.source, run.offsets[0]));
        let ended = |stream: StreamId| {
            let root = self.roots[stream.index()];
            let mut sources = self.program.sources.iter().enumerate();
            sources.all(|(id, s)| s.stream != root || input.ended.contains(&SourceId(id as u32)))
        };
        let cutting = Cutting {
            program: &self.program,
            epoch: self.epoch,
            clock_us: self.clock_us,
            ended: &ended,
            ends: &|stream| {
                let group = self.groups.of[stream.index()];
                let end = ends[self.roots[stream.index()].index()];
                // Time may have advanced while the stream was idle.
                end.filter(|end| *end <= marks[group]).map(|end| end.max(self.watermarks[group]))
            },
            arrived: &|run| {
                let group = self.groups.of[run.stream.index()];
                self.arrived(run, group)
            },
        };
        let closings = cutting.batches(&mut ready, &mut buffered);
        self.buffered = buffered;
        self.watermarks.clone_from(&marks);
        ready.retain(|run| !run.offsets.is_empty());
        let mut epoch = Epoch::rank_in_order(pool, &self.program, ready);
        (epoch.clock_us, epoch.closings, epoch.salt) = (self.clock_us, closings, self.salt);
        let ended = |source| input.ended.contains(&source);
        let newest_us = |source: SourceId| input.times_max[source.index()];
        let times = (self.clock_us, &newest_us as &dyn Fn(SourceId) -> Option<i64>);
        let is_over = |group, source| ended(source) && !is_held(group);
        epoch.slides = slides::until(&self.program, &self.groups, &marks, times, &is_over);
        let watermarks = self.groups.of.iter().map(|g| self.watermarks[*g]).collect();
        let cut = Cut {
            epoch: self.epoch,
            offsets: input.offsets,
            watermarks,
            clock_us: self.clock_us,
            idle: input.idle,
            ended: input.ended,
        };
        Ok(Sequenced { cut, epoch, late, is_held: (0..marks.len()).any(is_held) })
    }

    /// Returns, per stream in event time, the place after all of its rows, once all of its sources
    /// have ended.
    fn ends(&self, input: &CutInput) -> Vec<Option<Position>> {
        let mut ends = vec![None; self.program.streams.len()];
        let mut goes_on = vec![false; ends.len()];
        for come in self.sources_at(input) {
            let stream = self.program.sources[come.source.index()].stream.index();
            ends[stream] = ends[stream].max(come.end());
            goes_on[stream] |= come.holds != WatermarkEffect::Ended;
        }
        let ends = ends.into_iter().zip(goes_on);
        ends.map(|(end, goes_on)| end.filter(|_| !goes_on)).collect()
    }

    /// Returns an error for the first late row of a stream with `late="error"`, even if a filter
    /// removes it.
    fn refuse_late(&self, late: &[(SourceId, LateRow)]) -> Result<()> {
        let stream = |source: &SourceId| {
            let stream = self.program.sources[source.index()].stream;
            &self.program.streams[stream.index()].spec
        };
        let first = late.iter().find(|(source, _)| stream(source).late == Late::Error);
        let Some((source, LateRow { offset, time_us, bound_us })) = first else { return Ok(()) };
        Err(Error::input(format!(
            "stream {}: row {offset} of source {} (counted from 0) is late: its time is {time_us}, and it may not be before \
             {bound_us}, the newest time of the rows before it less the out-of-orderness",
            stream(source).name,
            self.program.sources[source.index()].name,
        ))
        .help(LATE_HELP))
    }

    /// Gives events without event time, which may wait for their batch, the time of their arrival.
    fn take(&self, mut run: Run) -> Run {
        run.times = vec![self.clock_us; run.offsets.len()];
        run.put_in_order();
        run
    }

    /// Returns the clock time at which the first batch by arrival time is due.
    pub fn due_us(&self) -> Option<i64> {
        let due = |run: &Run| {
            let root = self.roots[run.stream.index()];
            match (self.program.streams[run.stream.index()].batch, run.times.first()) {
                (Some(Batching::TimeUs(us)), Some(first))
                    if self.program.streams[root.index()].spec.time == StreamTime::Arrival =>
                {
                    Some(first.saturating_add(us))
                }
                _ => None,
            }
        };
        self.buffered.iter().filter_map(due).min()
    }

    /// Places events without event time: at the clock or, beside streams with event time, at the
    /// watermark of the cut before.
    fn arrived(&self, mut run: Run, group: usize) -> Run {
        if self.groups.event_time[group] {
            let before = self.watermarks[group];
            run.times = vec![before.time_us; run.offsets.len()];
            run.admitted = Some((before, self.epoch));
        } else {
            run.times = vec![self.clock_us; run.offsets.len()];
        }
        run.put_in_order();
        run
    }

    /// Whether no events are buffered.
    pub fn is_drained(&self) -> bool {
        self.buffered.is_empty()
    }

    /// Returns the sources that a source is ahead of in time: those of its group that may still
    /// send. The source furthest behind is never ahead. So pausing only sources that are ahead
    /// can't stop a group.
    pub fn after<'a>(
        &'a self,
        source: SourceId,
        times_max: &'a [Option<i64>],
        ended: &'a [bool],
    ) -> impl Iterator<Item = SourceId> + 'a {
        let group = |s: usize| self.groups.of[self.program.sources[s].stream.index()];
        let is_behind = move |other: &usize| {
            *other != source.index()
                && !ended[*other]
                && group(*other) == group(source.index())
                && times_max[*other] < times_max[source.index()]
        };
        (0..times_max.len()).filter(is_behind).map(|other| SourceId(other as u32))
    }

    /// Returns the source to pause when buffered events need too much memory. It is the source
    /// furthest ahead among those that have buffered events and are ahead of others.
    pub fn farthest_ahead(&self, times_max: &[Option<i64>], ended: &[bool]) -> Option<SourceId> {
        let mut held: Vec<SourceId> = self.buffered.iter().map(|r| r.source).collect();
        held.sort();
        held.dedup();
        held.into_iter()
            .filter(|s| self.after(*s, times_max, ended).next().is_some())
            .max_by_key(|s| times_max[s.index()])
    }
}
