//! How the graph is walked (MorphStream V-A), and TStream's way.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::gang::Gang;
use super::ready::Ready;
use super::strategy::{Aborts, Explore};
use super::units::{Groups, Units};
use crate::plan::graph::{share, Graph};

/// What a walk does with operations.
pub(crate) trait Walk: Sync {
    /// What a thread works with.
    type Hand;

    /// Executes an operation whose turn has come.
    fn execute(&self, vertex: u32, hand: &mut Self::Hand);

    /// The operation's turn comes soon: asks for the memory that it needs.
    fn prefetch(&self, vertex: u32);

    /// Whether an operation has been executed; what it did is visible then.
    fn is_executed(&self, vertex: u32) -> bool;

    /// Executes again what a thread has put aside because of aborts, and what comes of that.
    fn redo(&self, hand: &mut Self::Hand);

    /// How many operations a thread has put aside.
    fn aside(&self, hand: &Self::Hand) -> usize;
}

/// The order in which a graph is walked.
pub(crate) struct Course {
    pub(crate) units: Units,
    kind: Kind,
    /// Aborts are dealt with at each barrier.
    at_barriers: bool,
    /// Operations that were put aside, all threads together: by the parity of the barrier.
    aside: [AtomicU64; 2],
}

/// Units that are asked for ahead of time.
const AHEAD: usize = 8;

enum Kind {
    /// Stratum by stratum, with a barrier between.
    Sbfs(Groups),
    /// Equal shares of every stratum, each unit as soon as what it needs is there.
    Sdfs(Groups),
    /// Whatever is ready. Per unit how many dependencies are unresolved.
    Ns(Ready, Vec<AtomicU32>),
    /// Each chain by one thread, which goes to the next when it would have to wait.
    TStream,
}

impl Course {
    /// The course of a strategy.
    pub(crate) fn new(graph: &Graph, units: Units, explore: Explore, aborts: Aborts) -> Course {
        let kind = match explore {
            Explore::Sbfs => Kind::Sbfs(units.strata(graph)),
            Explore::Sdfs => Kind::Sdfs(units.strata(graph)),
            Explore::Ns => {
                let unresolved = (0..units.len()).map(|_| AtomicU32::new(0)).collect();
                Kind::Ns(Ready::new(units.len()), unresolved)
            }
        };
        let at_barriers = matches!((explore, aborts), (Explore::Sbfs, Aborts::Eager));
        Course { units, kind, at_barriers, aside: Default::default() }
    }

    /// TStream's.
    pub(crate) fn tstream(units: Units) -> Course {
        Course { units, kind: Kind::TStream, at_barriers: false, aside: Default::default() }
    }

    /// Walks the graph as one of the gang's threads.
    pub(crate) fn walk<W: Walk>(
        &self,
        graph: &Graph,
        work: &W,
        hand: &mut W::Hand,
        gang: &Gang<'_>,
        thread: usize,
    ) {
        let guard = gang.guard();
        match &self.kind {
            Kind::Sbfs(strata) => self.sbfs(strata, work, hand, gang, thread),
            Kind::Sdfs(strata) => self.sdfs(graph, strata, work, hand, gang, thread),
            Kind::Ns(ready, unresolved) => {
                self.ns(graph, (ready, unresolved), work, hand, gang, thread);
            }
            Kind::TStream => self.tstream_walk(graph, work, hand, gang, thread),
        }
        // The graph has been walked: what is left to be dealt with is dealt with now.
        gang.meet();
        work.redo(hand);
        guard.done();
    }

    /// The unit at `at` comes soon, should there be one.
    #[inline]
    fn prefetch<W: Walk>(&self, units: &[u32], at: usize, work: &W) {
        if let Some(unit) = units.get(at) {
            self.units.first(*unit).into_iter().for_each(|vertex| work.prefetch(vertex));
        }
    }

    fn unit<W: Walk>(&self, unit: u32, work: &W, hand: &mut W::Hand) {
        self.units.each(unit, |vertex| work.execute(vertex, hand));
    }

    fn sbfs<W: Walk>(
        &self,
        strata: &Groups,
        work: &W,
        hand: &mut W::Hand,
        gang: &Gang<'_>,
        thread: usize,
    ) {
        let mut seen = [0; 2];
        for stratum in 0..strata.len() {
            let units = strata.get(stratum);
            let own = &units[share(units.len(), thread, gang.threads())];
            for (nth, unit) in own.iter().enumerate() {
                self.prefetch(own, nth + AHEAD, work);
                self.unit(*unit, work, hand);
            }
            let aside = &self.aside[stratum % 2];
            if self.at_barriers {
                aside.fetch_add(work.aside(hand) as u64, Ordering::Relaxed);
            }
            gang.meet();
            // Nobody adds to this counter until all have been at the next barrier.
            let all = aside.load(Ordering::Relaxed);
            if all != std::mem::replace(&mut seen[stratum % 2], all) {
                work.redo(hand);
                gang.meet();
            }
        }
    }

    fn sdfs<W: Walk>(
        &self,
        graph: &Graph,
        strata: &Groups,
        work: &W,
        hand: &mut W::Hand,
        gang: &Gang<'_>,
        thread: usize,
    ) {
        for stratum in 0..strata.len() {
            let units = strata.get(stratum);
            let own = &units[share(units.len(), thread, gang.threads())];
            for (nth, unit) in own.iter().enumerate() {
                self.prefetch(own, nth + AHEAD, work);
                self.units.each(*unit, |vertex| {
                    for before in graph.before(vertex) {
                        gang.wait(|| work.is_executed(before));
                    }
                    work.execute(vertex, hand);
                });
            }
        }
    }

    fn ns<W: Walk>(
        &self,
        graph: &Graph,
        (ready, unresolved): (&Ready, &[AtomicU32]),
        work: &W,
        hand: &mut W::Hand,
        gang: &Gang<'_>,
        thread: usize,
    ) {
        let own = share(self.units.len(), thread, gang.threads());
        let own = own.start as u32..own.end as u32;
        // A dependency of a unit is resolved only once the unit has been counted.
        let mut first = Vec::new();
        for unit in own.clone() {
            let count = self.count_before(graph, unit);
            unresolved[unit as usize].store(count, Ordering::Relaxed);
            if count == 0 {
                first.push(unit);
            }
        }
        gang.meet();
        let mut executed = 0;
        let mut from_here = |unit: u32, hand: &mut W::Hand| {
            // One of the units that become ready is executed at once; the others are for whoever
            // comes first.
            let mut next = Some(unit);
            while let Some(unit) = next.take() {
                self.unit(unit, work, hand);
                executed += 1;
                self.signal(graph, unit, unresolved, |unit| {
                    if let Some(other) = next.replace(unit) {
                        ready.put(other);
                    }
                });
            }
            std::mem::take(&mut executed)
        };
        let mut done = 0;
        for (nth, unit) in first.iter().enumerate() {
            self.prefetch(&first, nth + AHEAD, work);
            done += from_here(*unit, hand);
        }
        loop {
            let place = ready.draw();
            ready.executed(std::mem::take(&mut done));
            let mut turns = 0;
            let unit = loop {
                match ready.at(place) {
                    Some(unit) => break unit,
                    None if ready.is_done() => return,
                    None => gang.pause(&mut turns),
                }
            };
            done += from_here(unit, hand);
        }
    }

    /// How many dependencies a unit has on others.
    fn count_before(&self, graph: &Graph, unit: u32) -> u32 {
        let mut count = 0;
        self.units.each(unit, |vertex| {
            let others = graph.before(vertex).filter(|before| self.units.of(*before) != unit);
            count += others.count() as u32;
        });
        count
    }

    /// Tells those that depend on a unit; `each` gets those that depend on nothing else.
    fn signal(
        &self,
        graph: &Graph,
        unit: u32,
        unresolved: &[AtomicU32],
        mut each: impl FnMut(u32),
    ) {
        self.units.each(unit, |vertex| {
            graph.dependents(vertex, |dependent| {
                let dependent = self.units.of(dependent);
                // What was done for the last dependency happened before the unit is executed.
                if dependent != unit
                    && unresolved[dependent as usize].fetch_sub(1, Ordering::AcqRel) == 1
                {
                    each(dependent);
                }
            });
        });
    }

    fn tstream_walk<W: Walk>(
        &self,
        graph: &Graph,
        work: &W,
        hand: &mut W::Hand,
        gang: &Gang<'_>,
        thread: usize,
    ) {
        let own = share(self.units.len(), thread, gang.threads());
        // Each chain and how far it has come.
        let mut chains: Vec<(u32, usize)> = own.map(|chain| (chain as u32, 0)).collect();
        let mut turns = 0;
        while !chains.is_empty() {
            let mut came_on = false;
            chains.retain_mut(|(chain, at)| {
                let members = self.units.get(*chain);
                while let Some(vertex) = members.get(*at) {
                    if !graph.before(*vertex).all(|before| work.is_executed(before)) {
                        return true;
                    }
                    work.execute(*vertex, hand);
                    came_on = true;
                    *at += 1;
                }
                false
            });
            if !came_on {
                gang.pause(&mut turns);
            }
        }
    }
}
