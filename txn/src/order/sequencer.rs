//! The sequencer: makes cuts, keeps what waits for the watermark, finds what is late.

use std::sync::Arc;

use tidemill_core::{
    Cut, Error, Late, LateRow, Position, Result, SourceId, SourceSpec, StreamId, StreamTime,
};

use super::batches::{self, Cutting};
use super::epoch::{Epoch, Run};
use super::groups::Groups;
use super::slides;
use super::watermark::{at, come_to, over, Come, Holds};
use crate::pool::Pool;
use crate::program::{Batching, Program};

/// What has come since the last cut, and what the sequencer is told about the world.
#[derive(Debug, Default)]
pub struct CutInput {
    /// New events. Those of streams without event time need no times.
    pub runs: Vec<Run>,
    /// Per source: the offset of the first row that has not come yet.
    pub offsets: Vec<u64>,
    /// Per source: the newest event time so far among all its rows, whatever a filter did to them.
    pub times_max: Vec<Option<i64>>,
    /// The rows that are late by the earlier ones of their sources ([`Newest`](super::Newest)), whatever
    /// a filter did to them.
    pub late: Vec<(SourceId, LateRow)>,
    /// The clock, in microseconds since 1970.
    pub clock_us: i64,
    /// Sources that have been silent too long to hold the watermark back.
    pub idle: Vec<SourceId>,
    /// Sources that have ended.
    pub ended: Vec<SourceId>,
    /// Per stream: how far event time came, where this cut was made before. None where the sequencer decides.
    pub watermarks_max: Option<Vec<Position>>,
}

/// What a cut decided.
#[derive(Debug)]
pub struct Sequenced {
    /// The cut, to be recorded.
    pub cut: Cut,
    /// What is ready, ranked.
    pub epoch: Epoch,
    /// What came too late, for the side stream of its input stream: by stream, source and row.
    pub late: Vec<Run>,
    /// Whether a watermark could be further, but the epoch would have too many slides of windows: the next
    /// cut goes on, without waiting for rows.
    pub is_held: bool,
}

/// A window by time slides about so often in an epoch at most. A slide is a transaction, so this bounds how long an
/// epoch takes, and what it holds in memory, where rows are far apart in event time.
const SLIDES_MAX: i64 = 65_536;

/// Makes cuts. Its state (what waits, the watermarks) is a function of the events and the cuts so
/// far.
#[derive(Debug)]
pub struct Sequencer {
    program: Arc<Program>,
    groups: Groups,
    /// Per stream: the input stream it comes from.
    roots: Vec<StreamId>,
    /// Per group: the unit at whose multiples its watermarks stop; 0 where they need not.
    units_us: Vec<i64>,
    epoch: u64,
    clock_us: i64,
    /// Per group.
    watermarks: Vec<Position>,
    /// Each in stamp order: it is looked at at every cut until its events are ready.
    parked: Vec<Run>,
    slides_max: i64,
}

/// What a sequencer must be given back to go on where another one stopped.
#[derive(Clone, Debug)]
pub struct SequencerState {
    /// Number of the last cut.
    pub epoch: u64,
    /// Its clock.
    pub clock_us: i64,
    /// Its watermarks, per stream.
    pub watermarks: Vec<Position>,
    /// What waits.
    pub parked: Vec<Run>,
}

const LATE_HELP: &str =
    "give the source a larger disorder, or the stream late=\"side\" or late=\"admit\"";

/// Of the late rows by source and offset those that may be of a run.
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

/// Per stream: the watermark behind the end of all sources, when the newest time of each and its number of rows are known.
/// Nothing where no source in event time says so.
///
/// # Errors
/// When the program mixes units of time.
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
            is_timed.then(|| Come {
                source: SourceId(index as u32),
                group: groups.of[stream],
                newest_us,
                offset,
                disorder_us: source.disorder_us,
                holds: Holds::Ended,
            })
        };
    let come = sources.zip(&program.sources).enumerate().filter_map(come);
    let marks = come_to(&units_us, come);
    Ok(groups.of.iter().map(|group| marks[*group]).collect())
}

impl Sequencer {
    /// A sequencer before its first cut.
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
            parked: Vec::new(),
            slides_max: SLIDES_MAX,
        })
    }

    /// The same with another bound on the slides of an epoch, which decides where cuts are, and not what they come to.
    pub fn with_slides_max(self, slides_max: i64) -> Sequencer {
        Sequencer { slides_max, ..self }
    }

    /// Its state after the last cut.
    pub fn state(&self) -> SequencerState {
        SequencerState {
            epoch: self.epoch,
            clock_us: self.clock_us,
            watermarks: self.groups.of.iter().map(|g| self.watermarks[*g]).collect(),
            parked: self.parked.clone(),
        }
    }

    /// A sequencer that goes on behind a cut. The state is one of the same program.
    ///
    /// # Errors
    /// When the program is wrong, or the state is not one of it.
    pub fn restore(program: Arc<Program>, state: SequencerState) -> Result<Sequencer> {
        let mut sequencer = Sequencer::new(program)?;
        if state.watermarks.len() != sequencer.groups.of.len() {
            return Err(Error::internal("a sequencer's state is of another program"));
        }
        for (stream, watermark) in state.watermarks.into_iter().enumerate() {
            sequencer.watermarks[sequencer.groups.of[stream]] = watermark;
        }
        sequencer.epoch = state.epoch;
        sequencer.clock_us = state.clock_us;
        sequencer.parked = state.parked;
        sequencer.parked.iter_mut().for_each(Run::put_in_order);
        Ok(sequencer)
    }

    /// Which streams share a watermark.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Bytes of events that wait for their watermark.
    pub fn parked_bytes(&self) -> usize {
        self.parked.iter().map(|r| r.batch.bytes() + r.offsets.len() * 16).sum()
    }

    /// Number of events that wait for their watermark.
    pub fn parked_rows(&self) -> usize {
        self.parked.iter().map(|r| r.offsets.len()).sum()
    }

    /// The sources of streams in event time, as they are at a cut.
    fn sources_at<'a>(&'a self, input: &'a CutInput) -> impl Iterator<Item = Come> + 'a {
        let come = |(index, source): (usize, &SourceSpec)| {
            let spec = &self.program.streams[source.stream.index()].spec;
            let id = SourceId(index as u32);
            matches!(spec.time, StreamTime::Event { .. }).then(|| Come {
                source: id,
                group: self.groups.of[source.stream.index()],
                newest_us: input.times_max[index],
                offset: input.offsets[index],
                disorder_us: source.disorder_us,
                holds: match input.ended.contains(&id) {
                    true => Holds::Ended,
                    false if input.idle.contains(&id) => Holds::Idle,
                    false => Holds::Back,
                },
            })
        };
        self.program.sources.iter().enumerate().filter_map(come)
    }

    /// Whether a watermark could be further than it is, where no more has come than this.
    pub fn is_held(&self, input: &CutInput) -> bool {
        self.new_watermarks(input).iter().zip(&self.watermarks).any(|(new, now)| new > now)
    }

    /// The same watermarks, but no further than they were before, or than an epoch may have slides.
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
            // What waits is in order, and not late.
            let waiting = self.parked.iter().filter(is_of).filter_map(|run| run.times.first());
            let new = input.runs.iter().filter(is_of).flat_map(|run| &run.times);
            let first = waiting.chain(new).copied().filter(is_ready).min();
            // Without rows windows run empty, and then no longer slide.
            let Some(first_us) = first else { continue };
            let span_us = slide_us.saturating_mul(self.slides_max);
            held[group] =
                mark.min(over(at(first_us.saturating_add(span_us)), self.units_us[group]));
        }
        held
    }

    /// The new watermark of each group: everything before it has come.
    fn new_watermarks(&self, input: &CutInput) -> Vec<Position> {
        let mut has_source = vec![false; self.groups.len];
        self.sources_at(input).for_each(|come| has_source[come.group] = true);
        let marks = come_to(&self.units_us, self.sources_at(input));
        let mark = |(group, mark): (usize, Option<Position>)| {
            let none = if has_source[group] { Position::MIN } else { Position::MAX };
            mark.unwrap_or(none).max(self.watermarks[group])
        };
        marks.into_iter().enumerate().map(mark).collect()
    }

    /// Makes a cut: everything in `input` belongs to this epoch or waits for a later one. An error
    /// for a late event of a stream that wants one. The threads of a pool put events in order.
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
        // Strictly rising, so that arrivals of two cuts can never have one time.
        self.clock_us = input.clock_us.max(self.clock_us.saturating_add(1));
        let (mut ready, mut parked, mut late) = (Vec::new(), Vec::new(), Vec::new());
        let waiting = std::mem::take(&mut self.parked);
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
                    Some(_) if is_new => self.come(run),
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
                // The usual case: what waits is the end of the run, and nothing is copied but that.
                let first = run.first_from(before);
                if !is_new || first == 0 {
                    match run.first_from(now) {
                        0 if run.offsets.is_empty() => {}
                        0 => parked.push(run),
                        rows => {
                            if rows < run.offsets.len() {
                                parked.push(run.split_off(rows));
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
                // Rows that a filter has taken away are among them.
                while own.next_if(|own| own.offset < run.offsets[row]).is_some() {}
                if let Some(own) = own.next_if(|own| own.offset == run.offsets[row]) {
                    if root.late == Late::Side {
                        too_late.push(row as u32);
                        continue;
                    }
                    // Where its source stood, which nobody has passed yet.
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
                            "stream {}: row {} of source {source} is late: its time is {}, and \
                             the watermark was at {} already",
                            root.name, run.offsets[row], run.times[row], before.time_us
                        ))
                        .help(LATE_HELP));
                    }
                }
            }
            for (mut rows, runs) in [(on_time, &mut ready), (waits, &mut parked)] {
                if !rows.is_empty() {
                    run.sort_rows(&mut rows);
                    runs.push(run.take(&rows));
                }
            }
        }
        // Runs of different sources come in any order.
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
                // Where it was idle, time may have gone on without it.
                end.filter(|end| *end <= marks[group]).map(|end| end.max(self.watermarks[group]))
            },
            arrived: &|run| {
                let group = self.groups.of[run.stream.index()];
                self.arrived(run, group)
            },
        };
        let closings = cutting.batches(&mut ready, &mut parked);
        self.parked = parked;
        self.watermarks.clone_from(&marks);
        ready.retain(|run| !run.offsets.is_empty());
        let mut epoch = Epoch::rank_in_order(pool, &self.program, ready);
        (epoch.clock_us, epoch.closings) = (self.clock_us, closings);
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

    /// Per stream in event time: the place behind all of its rows, once all of its sources have ended.
    fn ends(&self, input: &CutInput) -> Vec<Option<Position>> {
        let mut ends = vec![None; self.program.streams.len()];
        let mut goes_on = vec![false; ends.len()];
        for come in self.sources_at(input) {
            let stream = self.program.sources[come.source.index()].stream.index();
            ends[stream] = ends[stream].max(come.end());
            goes_on[stream] |= come.holds != Holds::Ended;
        }
        let ends = ends.into_iter().zip(goes_on);
        ends.map(|(end, goes_on)| end.filter(|_| !goes_on)).collect()
    }

    /// An error for the first late row of a stream that wants one, be it that a filter takes it away.
    fn refuse_late(&self, late: &[(SourceId, LateRow)]) -> Result<()> {
        let stream = |source: &SourceId| {
            let stream = self.program.sources[source.index()].stream;
            &self.program.streams[stream.index()].spec
        };
        let first = late.iter().find(|(source, _)| stream(source).late == Late::Error);
        let Some((source, LateRow { offset, time_us, bound_us })) = first else { return Ok(()) };
        Err(Error::input(format!(
            "stream {}: row {offset} of source {} is late: its time is {time_us}, and it may not be before \
             {bound_us}, the newest time of the rows before it less the disorder",
            stream(source).name,
            self.program.sources[source.index()].name,
        ))
        .help(LATE_HELP))
    }

    /// Events without event time that may wait for their batch: they are told when they came.
    fn come(&self, mut run: Run) -> Run {
        run.times = vec![self.clock_us; run.offsets.len()];
        run.put_in_order();
        run
    }

    /// When the first batch is due that closes because time has passed, on the clock.
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
        self.parked.iter().filter_map(due).min()
    }

    /// Places events without event time: at the clock, or, beside streams with event time, at the
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

    /// Whether nothing waits.
    pub fn is_drained(&self) -> bool {
        self.parked.is_empty()
    }

    /// The sources that a source is ahead of in time: those of its group that may still send. The one
    /// that is behind all others is never ahead, so pausing only those that are can't stop a group.
    pub fn behind<'a>(
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

    /// Of the sources that feed parked events and are ahead of others, the one that is farthest
    /// ahead: the one to be paused when parked events need too much memory.
    pub fn farthest_ahead(&self, times_max: &[Option<i64>], ended: &[bool]) -> Option<SourceId> {
        let mut held: Vec<SourceId> = self.parked.iter().map(|r| r.source).collect();
        held.sort();
        held.dedup();
        held.into_iter()
            .filter(|s| self.behind(*s, times_max, ended).next().is_some())
            .max_by_key(|s| times_max[s.index()])
    }
}
