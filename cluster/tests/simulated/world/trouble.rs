//! The faults of a run.

use std::cmp::Reverse;

use tidemill_cluster::{Input, Record};
use tidemill_core::TableId;

use super::{Machine, Process, Step, World, MS};

/// The rates of faults in a run, each in occurrences in ten seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultRates {
    /// A worker dies, and another process replaces it.
    pub kills: u64,
    /// A process freezes for up to half a second.
    pub freezes: u64,
    /// The coordinator dies, or is replaced while it is frozen.
    pub coordinators: u64,
    /// A connection breaks, and the messages on it are lost.
    pub breaks: u64,
    /// The log is slow or fails for a while.
    pub logs: u64,
    /// The store is slow or fails for a while.
    pub stores: u64,
    /// A wall clock jumps.
    pub jumps: u64,
    /// Two workers can't reach each other for up to some seconds, or for ever.
    pub cuts: u64,
    /// A worker leaves in order, and another process replaces it.
    pub leaves: u64,
}

/// The duration of a cut, as a multiple of other faults.
const CUT_TIMES: u64 = 5;

impl World {
    /// Corrects the function, if a coordinator has ended because it failed.
    pub(super) fn correct(&mut self, by: Process) {
        let is_stopped = self.processes.get(&by).is_some_and(|process| match &process.machine {
            Machine::Coordinator(machine) => machine.fault().is_some(),
            Machine::Worker(_) => false,
        });
        if is_stopped {
            *self.functions.broken.lock().expect("nothing panics with it") = None;
        }
    }

    /// Notes a violation if work outside has left of an epoch that is withdrawn.
    pub(super) fn check_withdrawal(&mut self, record: &Record) {
        let Record::Withdrawn { epoch, .. } = record else { return };
        if self.worked.iter().any(|worked| worked >= epoch) {
            self.left_early.get_or_insert("work left of an epoch with a fault".into());
        }
    }

    /// Injects faults at random, until the time of faults is over.
    pub(super) fn trouble(&mut self) {
        if self.now_us > self.until_us {
            self.say(|| "no more trouble".into());
            let frozen: Vec<Process> = self.processes.keys().copied().collect();
            for process in frozen {
                self.processes.get_mut(&process).expect("it is there").frozen_until_us = 0;
                self.after(0, Step::Thaw(process));
            }
            if !self.processes.contains_key(&Process::Coordinator(self.coordinator)) {
                self.start_coordinator();
            }
            return;
        }
        // This runs every 10 ms, so a rate of n in ten seconds is n in a thousand.
        let w = self.weather;
        let FaultRates { kills, freezes, coordinators, breaks, logs, stores, jumps, cuts, leaves } =
            w;
        let kinds = [kills, freezes, coordinators, breaks, logs, stores, jumps, cuts, leaves];
        for (kind, rate) in kinds.into_iter().enumerate() {
            if self.dice.below(1000) < rate {
                self.strike(kind);
            }
        }
        self.after(10 * MS, Step::Trouble);
    }

    fn strike(&mut self, kind: usize) {
        let all: Vec<Process> = self.processes.keys().copied().collect();
        let workers: Vec<Process> =
            all.iter().copied().filter(|p| matches!(p, Process::Worker(_))).collect();
        if all.is_empty() {
            return;
        }
        let for_us = 10 * MS + self.dice.below(490) * MS;
        match kind {
            0 if !workers.is_empty() => {
                let victim = *self.dice.pick(&workers);
                self.kill(victim);
                self.after(for_us, Step::Start(victim));
            }
            1 => {
                let victim = *self.dice.pick(&all);
                self.freeze(victim, for_us);
            }
            2 => {
                let victim = Process::Coordinator(self.coordinator);
                if self.dice.chance(20) {
                    self.say(|| format!("{victim:?} is to end"));
                    self.give(victim, Input::Leave);
                    self.after(for_us, Step::Start(victim));
                } else if self.dice.chance(50) {
                    self.kill(victim);
                    self.after(for_us, Step::Start(victim));
                } else {
                    // The others consider it dead, but it comes back.
                    self.freeze(victim, for_us);
                    self.start_coordinator();
                }
            }
            3 if all.len() > 1 => {
                let (a, b) = (*self.dice.pick(&all), *self.dice.pick(&all));
                if a != b {
                    self.tear(a, b);
                }
            }
            4 => self.log_trouble_until_us = self.now_us + for_us,
            5 => self.store_trouble_until_us = self.now_us + for_us,
            6 => {
                let victim = *self.dice.pick(&all);
                let off_us = (self.dice.below(20_000) as i64 - 10_000) * MS as i64;
                self.processes.get_mut(&victim).expect("it is there").clock_off_us = off_us;
            }
            7 if workers.len() > 1 => {
                let (a, b) = (*self.dice.pick(&workers), *self.dice.pick(&workers));
                if a != b {
                    let is_for_ever = self.dice.chance(30);
                    let until_us = self.now_us + CUT_TIMES * for_us;
                    let until_us = if is_for_ever { u64::MAX } else { until_us };
                    self.say(|| format!("{a:?} and {b:?} can't reach each other"));
                    self.cuts.insert((a.min(b), a.max(b)), until_us);
                    self.tear(a, b);
                }
            }
            8 if !workers.is_empty() => {
                let victim = *self.dice.pick(&workers);
                self.say(|| format!("{victim:?} is to end"));
                self.give(victim, Input::Leave);
            }
            _ => {}
        }
    }

    fn freeze(&mut self, process: Process, for_us: u64) {
        self.say(|| format!("{process:?} stands still for {} ms", for_us / MS));
        let until_us = self.now_us + for_us;
        if let Some(running) = self.processes.get_mut(&process) {
            running.frozen_until_us = until_us;
            self.at(until_us, Step::Thaw(process));
        }
    }

    /// Breaks the connection between two processes: messages on it are lost, and both notice.
    fn tear(&mut self, a: Process, b: Process) {
        self.say(|| format!("the connection between {a:?} and {b:?} breaks"));
        self.happenings.retain(|_, happening| match happening {
            Step::Packet { by, to, .. } => (*by, *to) != (a, b) && (*by, *to) != (b, a),
            _ => true,
        });
        let happenings = &self.happenings;
        self.due.retain(|Reverse((_, number))| happenings.contains_key(number));
        self.broken(a, b);
        self.broken(b, a);
    }
}

impl World {
    /// Has clients of a coordinator follow some of the tables, sooner or later.
    pub(super) fn follow(&mut self, process: Process) {
        if !matches!(process, Process::Coordinator(_)) {
            return;
        }
        for table in 0..self.script.tables() as u16 {
            if self.dice.chance(50) {
                let in_us = self.dice.below(500 * MS);
                self.after(in_us, Step::Deliver(process, Input::Follow(TableId(table))));
            }
        }
    }
}
