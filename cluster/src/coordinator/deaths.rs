//! Transactions that end the processes of workers: which one it is, and the verdict on it.
//!
//! A worker may die of a transaction that it executes, and so would the next one. So after a death the
//! next generation is careful with what was executed. It executes that in parts, and a worker reports
//! which part it begins before it does. Each further death leaves a smaller suspect, until it is one
//! transaction.
//!
//! Something else may kill workers, and always at the same transaction if that is slow. So before a
//! transaction is tried again alone, everything waits for as long as the last generation lived. If a
//! worker dies meanwhile, the transaction is not the cause.
//!
//! When a transaction that was tried alone has ended enough workers in a row, it is not tried again. A
//! verdict is recorded among the outputs, and the next generation does not execute the transaction.
//! There is no verdict if outputs have left that may depend on its result.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use tidemill_function::Tid;

use super::{Coordinator, Pending, Stage};
use crate::effect::{Effect, Packet};
use crate::records::{CutRecord, Member, Record, Topic, POISON};

/// The most parts of the suspect places of a cut.
const PARTS_MAX: u64 = 64;
/// The number of epochs that members may be executing at the same time.
const EPOCHS: usize = 2;
/// The longest wait before a transaction is tried again alone, in microseconds.
const WAIT_US_MAX: u64 = 10_000_000;

/// Places of transactions.
type Places = Range<u64>;

/// Places that were executed at a death, and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Suspect {
    places: Places,
    /// The deaths in a row.
    deaths: u32,
    /// How long the last generation lived before and after its own wait, in microseconds, at most
    /// [`WAIT_US_MAX`].
    lived_us: u64,
    /// Whether the last death was that of a transaction tried alone, after the wait.
    was_alone: bool,
}

impl Suspect {
    fn is_alone(&self) -> bool {
        self.places.end - self.places.start == 1
    }
}

/// The work of a generation when it ended.
struct Ended {
    members: Vec<Member>,
    lived_us: u64,
    executed: Executed,
}

enum Executed {
    Places(Places),
    Nothing,
    /// It waited to try the suspect again.
    Waited,
}

/// A suspicion, for the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspicion {
    /// The deaths in a row.
    pub deaths: u32,
    /// The number of places of transactions that one of them has died of.
    pub places: u64,
}

/// The deaths of workers in a row.
#[derive(Default)]
pub(super) struct Deaths {
    suspect: Option<Suspect>,
    ended: Option<Ended>,
    /// The last verdict, for the log.
    last: Option<(Tid, String)>,
}

/// A part that members are about to begin, each at its own time.
struct Asked {
    epoch: u64,
    part: u64,
    members: BTreeSet<Member>,
    /// The last transaction whose output had left before.
    left: Tid,
}

/// The careful execution of epochs by a generation. All members begin a part together, so that nothing
/// else is executed meanwhile.
#[derive(Default)]
pub(super) struct Trials {
    /// The places of the cuts that not all members have executed, by epoch.
    cuts: BTreeMap<u64, Places>,
    /// The places at which the parts of such an epoch begin, if it is executed carefully.
    parts: BTreeMap<u64, Arc<[u64]>>,
    /// The part that is executed.
    now: Option<(u64, u64)>,
    /// The next part, until it begins.
    asked: Option<Asked>,
    /// The time until which the suspect waits, and how long that is, in microseconds. There is one wait
    /// in a generation.
    wait: Option<(u64, u64)>,
    is_waiting: bool,
    /// Whether a verdict is being recorded.
    is_judging: bool,
}

impl Trials {
    /// Returns what is executed.
    fn executed(&self) -> Executed {
        if self.is_waiting {
            return Executed::Waited;
        }
        if let Some((epoch, part)) = self.now {
            return self.part(epoch, part).map_or(Executed::Nothing, Executed::Places);
        }
        // Those after are not begun before these are executed. Reports of that may have been lost.
        let places = self.cuts.values().take(EPOCHS).filter(|places| !places.is_empty());
        let all = places.cloned().reduce(|one, other| one.start..other.end);
        all.map_or(Executed::Nothing, Executed::Places)
    }

    /// Returns the places of a part.
    fn part(&self, epoch: u64, part: u64) -> Option<Places> {
        let (places, parts) = (self.cuts.get(&epoch)?, self.parts.get(&epoch)?);
        let part = usize::try_from(part).ok()?;
        let end = parts.get(part + 1).copied().unwrap_or(places.end);
        Some(*parts.get(part)?..end)
    }

    /// Notes that all members have executed an epoch. Returns the place after it.
    pub fn all_executed(&mut self, epoch: u64) -> u64 {
        self.now.take_if(|(of, _)| *of <= epoch);
        self.parts.retain(|of, _| *of > epoch);
        let later = self.cuts.split_off(&(epoch + 1));
        let done = std::mem::replace(&mut self.cuts, later);
        done.into_values().map(|places| places.end).max().unwrap_or(0)
    }
}

/// Returns the places at which the parts of a cut begin. Cuts before the suspect have no parts. Those
/// after it are one, because it must be known when a worker has got beyond the suspect.
fn parts(cut: &Places, suspect: &Places) -> Vec<u64> {
    if cut.is_empty() || cut.end <= suspect.start {
        return Vec::new();
    }
    let (from, to) = (cut.start.max(suspect.start), cut.end.min(suspect.end));
    if from >= to {
        return vec![cut.start];
    }
    let step = (to - from).div_ceil(PARTS_MAX) as usize;
    let before = (cut.start < from).then_some(cut.start);
    let after = (to < cut.end).then_some(to);
    before.into_iter().chain((from..to).step_by(step)).chain(after).collect()
}

impl Deaths {
    /// Notes a cut, and returns the places at which its parts begin if it must be executed carefully.
    pub fn begins(&self, trials: &mut Trials, cut: &CutRecord, sources: u32) -> Arc<[u64]> {
        let first = |base: u64| base * u64::from(sources) + 1;
        let places = first(cut.base)..first(cut.next_base());
        let suspect = self.suspect.as_ref();
        let parts: Arc<[u64]> =
            suspect.map_or_else(Vec::new, |suspect| parts(&places, &suspect.places)).into();
        trials.cuts.insert(cut.epoch, places);
        if !parts.is_empty() {
            trials.parts.insert(cut.epoch, parts.clone());
        }
        parts
    }

    /// Notes that everything up to a place has been executed.
    pub fn passed(&mut self, place: u64) {
        self.suspect.take_if(|suspect| suspect.places.end <= place);
    }

    /// Takes the death of a member, if its generation has ended with it.
    fn died(&mut self, member: Member) {
        let Some(ended) = self.ended.take_if(|ended| ended.members.contains(&member)) else {
            return;
        };
        let Ended { lived_us, executed, .. } = ended;
        let places = match executed {
            Executed::Nothing => return,
            Executed::Waited => return self.suspect = None,
            Executed::Places(places) => places,
        };
        let is_of = |before: &Suspect| {
            before.places.start <= places.start && places.end <= before.places.end
        };
        let before = self.suspect.take().filter(is_of);
        let deaths = 1 + before.as_ref().map_or(0, |before| before.deaths);
        let was_alone = before.is_some_and(|before| before.is_alone());
        let lived_us = lived_us.min(WAIT_US_MAX);
        self.suspect = Some(Suspect { places, deaths, lived_us, was_alone });
    }

    /// Returns the verdict on a suspect that is to be tried, after at least `deaths_max` deaths. Outputs
    /// of transactions up to `left` have left.
    fn judge(&self, deaths_max: u32, left: Tid) -> Option<(Tid, String)> {
        let Suspect { places, deaths, was_alone, .. } = self.suspect.as_ref()?;
        let tid = Tid(places.start);
        let is_due = *was_alone && *deaths >= deaths_max && tid > left;
        is_due.then(|| {
            let reason = format!(
                "it ended the process of a worker {deaths} times in a row, at last while nothing else was executed"
            );
            (tid, reason)
        })
    }

    /// Returns the last transaction with a verdict, and the reason.
    pub fn last(&self) -> Option<(Tid, &str)> {
        self.last.as_ref().map(|(tid, reason)| (*tid, &**reason))
    }

    /// Returns the present suspicion, if there is one.
    pub fn suspicion(&self) -> Option<Suspicion> {
        let Suspect { places, deaths, .. } = self.suspect.as_ref()?;
        Some(Suspicion { deaths: *deaths, places: places.end - places.start })
    }
}

impl Coordinator {
    /// Notes what the generation executes that ends now.
    pub(super) fn ends(&mut self) {
        let Stage::Running(running) = &self.stage else { return };
        self.deaths.ended = Some(Ended {
            members: running.form.assignment.members.clone(),
            lived_us: self.now_us.saturating_sub(
                running.since_us + running.trials.wait.map_or(0, |(_, waits_us)| waits_us),
            ),
            executed: running.trials.executed(),
        });
    }

    /// Notes that all members of the next generation have gone back to the snapshot. A later death has
    /// another cause than the work of the last generation.
    pub(super) fn has_formed(&mut self) {
        self.deaths.ended = None;
    }

    /// Takes the death of a worker.
    pub(super) fn died(&mut self, member: Member) {
        self.deaths.died(member);
    }

    /// Notes that a member is about to begin a part of an epoch.
    pub(super) fn tries(
        &mut self,
        member: Member,
        (epoch, part): (u64, u64),
        left: Tid,
        effects: &mut Vec<Effect>,
    ) {
        let Stage::Running(running) = &mut self.stage else { return };
        let asked = &mut running.trials.asked;
        if asked.as_ref().is_none_or(|of| (of.epoch, of.part) < (epoch, part)) {
            *asked = Some(Asked { epoch, part, members: BTreeSet::new(), left });
        }
        if let Some(of) = asked.as_mut().filter(|of| (of.epoch, of.part) == (epoch, part)) {
            of.members.insert(member);
            of.left = of.left.max(left);
        }
        self.begins_part(effects);
    }

    /// Lets all members begin a part once all have reported it. A transaction that is tried again alone
    /// has to wait first. If there is a verdict on it, records that.
    pub(super) fn begins_part(&mut self, effects: &mut Vec<Effect>) {
        let (now_us, suspect) = (self.now_us, self.deaths.suspect.clone());
        let Stage::Running(running) = &mut self.stage else { return };
        let members = &running.form.assignment.members;
        let Some(Asked { epoch, part, members: have, left }) = &running.trials.asked else {
            return;
        };
        if !members.iter().all(|member| have.contains(member)) {
            return;
        }
        let (generation, epoch, part, left) = (running.form.generation, *epoch, *part, *left);
        let is_durable = epoch <= running.durable;
        let trials = &mut running.trials;
        let is_it = |suspect: &Suspect| {
            suspect.is_alone() && trials.part(epoch, part) == Some(suspect.places.clone())
        };
        if let Some(suspect) = suspect.filter(is_it) {
            if let Some((tid, reason)) = self.deaths.judge(self.settings.deaths_max, left) {
                // The verdict is on a transaction of a cut that nobody makes again.
                if is_durable && !std::mem::replace(&mut trials.is_judging, true) {
                    self.record(tid, reason, effects);
                }
                return;
            }
            let wait = trials.wait.get_or_insert((now_us + suspect.lived_us, suspect.lived_us));
            trials.is_waiting = now_us < wait.0;
            if trials.is_waiting {
                return;
            }
        }
        (trials.now, trials.asked) = (Some((epoch, part)), None);
        self.send(&Packet::Tried { generation, epoch, part }, effects);
    }

    /// Appends a verdict. The next generation obeys it.
    fn record(&mut self, tid: Tid, reason: String, effects: &mut Vec<Effect>) {
        let topic = Topic::Output(((tid.0 - 1) % u64::from(self.settings.sources)) as u32);
        let record = Record::Answer { tid, asked: POISON, answer: reason.as_bytes().into() };
        self.append(Pending::Verdict(tid, reason), topic, record, effects);
    }

    /// Notes that the verdict is recorded. All members of the next generation read it.
    pub(super) fn verdict_recorded(&mut self, tid: Tid, reason: String, effects: &mut Vec<Effect>) {
        self.deaths.suspect = None;
        self.deaths.last = Some((tid, reason));
        self.begin(effects);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Member = Member(1);

    fn die(of: &mut Deaths, executed: Executed) {
        of.ended = Some(Ended { members: vec![A], lived_us: 70, executed });
        of.died(A);
    }

    fn cut(epoch: u64, base: u64, count: u64) -> CutRecord {
        CutRecord { epoch, base, count, ..CutRecord::default() }
    }

    #[test]
    fn each_death_leaves_a_smaller_suspect_and_then_there_is_a_verdict() {
        let mut of = Deaths::default();
        die(&mut of, Executed::Places(1001..2001));
        let mut trials = Trials::default();
        assert!(of.begins(&mut trials, &cut(6, 100, 25), 4).is_empty(), "it is before");
        // Of places 801 to 1400, those from 1001 on are suspect.
        let parts = of.begins(&mut trials, &cut(7, 200, 150), 4);
        assert_eq!((parts[0], parts[1], parts[2], parts.len()), (801, 1001, 1008, 59));
        trials.now = Some((7, 30));
        let executed = trials.executed();
        die(&mut of, executed);
        for deaths in 3..5 {
            let parts = of.begins(&mut trials, &cut(7, 200, 150), 4);
            let all = [801, 1204, 1205, 1206, 1207, 1208, 1209, 1210, 1211];
            assert_eq!(parts[..], if deaths == 3 { all.to_vec() } else { vec![801, 1205, 1206] });
            trials.now = Some((7, if deaths == 3 { 2 } else { 1 }));
            let executed = trials.executed();
            assert_eq!(of.judge(3, Tid(0)), None, "it was not tried alone");
            die(&mut of, executed);
            assert_eq!(of.suspicion(), Some(Suspicion { deaths, places: 1 }));
        }
        let (tid, reason) = of.judge(4, Tid(1204)).unwrap();
        assert_eq!(tid, Tid(1205));
        assert!(reason.contains("4 times"), "{reason}");
        assert_eq!(of.judge(4, Tid(1205)), None, "its output has left");
        assert_eq!(of.judge(5, Tid(0)), None, "more deaths are wanted");
    }

    #[test]
    fn other_deaths_do_not_count() {
        let mut of = Deaths::default();
        die(&mut of, Executed::Nothing);
        assert_eq!(of.suspicion(), None, "nothing was executed");
        die(&mut of, Executed::Places(10..20));
        die(&mut of, Executed::Places(30..40));
        assert_eq!(of.suspicion(), Some(Suspicion { deaths: 1, places: 10 }), "in a row only");
        of.died(A);
        die(&mut of, Executed::Places(35..36));
        assert_eq!(of.suspicion(), Some(Suspicion { deaths: 2, places: 1 }), "once each");
        of.ended = Some(Ended {
            members: vec![Member(2)],
            lived_us: 0,
            executed: Executed::Places(35..36),
        });
        of.died(A);
        assert_eq!(of.suspicion(), Some(Suspicion { deaths: 2, places: 1 }), "of members only");
        die(&mut of, Executed::Waited);
        assert_eq!(of.suspicion(), None, "it was not executed");
        die(&mut of, Executed::Places(10..20));
        of.passed(19);
        assert!(of.suspicion().is_some());
        of.passed(20);
        assert_eq!(of.suspicion(), None);
    }

    #[test]
    fn parts_cover_a_cut_and_none_is_larger_than_needed() {
        assert_eq!(parts(&(1..9), &(9..20)), [0; 0]);
        assert_eq!(parts(&(1..1), &(0..20)), [0; 0]);
        assert_eq!(parts(&(20..29), &(9..20)), [20]);
        assert_eq!(parts(&(1..4), &(0..20)), [1, 2, 3]);
        assert_eq!(parts(&(1..9), &(3..4)), [1, 3, 4]);
        let all = parts(&(1..10_001), &(5001..20_000));
        assert_eq!((all[0], all[1], all[2]), (1, 5001, 5080));
        assert!(all.len() as u64 <= PARTS_MAX + 1, "{}", all.len());
    }
}
