//! The walks of the graph (MorphStream, section V-A), and TStream's walk.

use super::gang::Gang;
use super::ready::Ready;
use super::strategy::{Aborts, Explore};
use super::sync::{AtomicU32, AtomicU64, Ordering};
use super::units::{Groups, Units};
use crate::plan::graph::{share, Graph};

/// The work of a walk on operations.
pub(crate) trait Walk: Sync {
    /// The state of a thread.
    type Hand;

    /// Executes an operation.
    fn execute(&self, vertex: u32, hand: &mut Self::Hand);

    /// Prefetches the memory of an operation that is soon executed.
    fn prefetch(&self, vertex: u32);

    /// Whether an operation has been executed. Its effects are visible then.
    fn is_executed(&self, vertex: u32) -> bool;

    /// Executes again the operations that a thread has deferred because of aborts, with all
    /// consequences.
    fn redo(&self, hand: &mut Self::Hand);

    /// Returns the number of operations that a thread has deferred.
    fn aside(&self, hand: &Self::Hand) -> usize;
}

/// The order in which a graph is walked.
pub(crate) struct Course {
    pub(crate) units: Units,
    kind: Kind,
    /// Whether aborts are handled at each barrier.
    at_barriers: bool,
    /// The number of deferred operations of all threads, by the parity of the barrier.
    aside: [AtomicU64; 2],
}

/// How many units ahead memory is prefetched.
const AHEAD: usize = 8;

enum Kind {
    /// Stratum by stratum, with a barrier between.
    Sbfs(Groups),
    /// Equal shares of every stratum. Each unit runs as soon as its dependencies are executed.
    Sdfs(Groups),
    /// Any ready unit, with the number of unresolved dependencies per unit.
    Ns(Ready, Vec<AtomicU32>),
    /// Each chain on one thread, which switches to its next chain instead of waiting.
    TStream,
}

impl Course {
    /// Makes the course of a strategy.
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
        Course { units, kind, at_barriers, aside: [AtomicU64::new(0), AtomicU64::new(0)] }
    }

    /// Makes TStream's course.
    pub(crate) fn tstream(units: Units) -> Course {
        let aside = [AtomicU64::new(0), AtomicU64::new(0)];
        Course { units, kind: Kind::TStream, at_barriers: false, aside }
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
        // The graph has been walked. Deferred operations run now.
        gang.meet();
        work.redo(hand);
        guard.done();
    }

    /// Prefetches the unit at `at`, if there is one.
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
            // No thread adds to this counter until all have passed the next barrier.
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
        // A dependency of a unit is resolved only after the unit's dependencies have been counted.
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
            // This thread executes one of the units that become ready. The first free thread takes
            // each of the others.
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

    /// Returns the number of a unit's dependencies on other units.
    fn count_before(&self, graph: &Graph, unit: u32) -> u32 {
        let mut count = 0;
        self.units.each(unit, |vertex| {
            let others = graph.before(vertex).filter(|before| self.units.of(*before) != unit);
            count += others.count() as u32;
        });
        count
    }

    /// Resolves the dependencies on a unit. `each` gets the units that have no other dependencies
    /// left.
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
                // The work for the last dependency happens before the unit is executed.
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
        // Each chain with its progress.
        let mut chains: Vec<(u32, usize)> = own.map(|chain| (chain as u32, 0)).collect();
        let mut turns = 0;
        while !chains.is_empty() {
            let mut has_advanced = false;
            chains.retain_mut(|(chain, at)| {
                let members = self.units.get(*chain);
                while let Some(vertex) = members.get(*at) {
                    if !graph.before(*vertex).all(|before| work.is_executed(before)) {
                        return true;
                    }
                    work.execute(*vertex, hand);
                    has_advanced = true;
                    *at += 1;
                }
                false
            });
            if !has_advanced {
                gang.pause(&mut turns);
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::super::gang::loom_tests::Two;
    use super::super::strategy::Unit;
    use super::super::sync::Place;
    use super::*;
    use crate::plan::graph::fixture::graph;

    /// Each operation adds up the sums of its dependencies. Loom detects a read and a write of a
    /// sum at the same time.
    struct Sums {
        graph: Graph,
        sums: Vec<Place<u32>>,
        executed: Vec<AtomicU32>,
        redone: AtomicU32,
    }

    // SAFETY: loom checks which thread accesses which place, and when.
    unsafe impl Sync for Sums {}

    impl Sums {
        fn sum(&self, vertex: u32, of: impl Fn(u32) -> u32) -> u32 {
            1 + vertex + self.graph.before(vertex).map(of).sum::<u32>()
        }
    }

    impl Walk for Sums {
        type Hand = ();

        fn execute(&self, vertex: u32, (): &mut ()) {
            // SAFETY: the course promises the order, and loom checks it.
            let sum = self.sum(vertex, |before| unsafe { self.sums[before as usize].get() });
            // SAFETY: as above.
            unsafe { self.sums[vertex as usize].set(sum) };
            let before = self.executed[vertex as usize].fetch_add(1, Ordering::Release);
            assert_eq!(before, 0, "each operation is executed once");
        }

        fn prefetch(&self, _: u32) {}

        fn is_executed(&self, vertex: u32) -> bool {
            self.executed[vertex as usize].load(Ordering::Acquire) > 0
        }

        fn redo(&self, (): &mut ()) {
            // All effects of execution are visible before deferred operations run.
            assert!((0..self.graph.len() as u32).all(|vertex| self.is_executed(vertex)));
            self.redone.fetch_add(1, Ordering::Relaxed);
        }

        fn aside(&self, (): &()) -> usize {
            0
        }
    }

    /// Walks the graph of these transactions with two threads, in every order with at most this
    /// many preemptions.
    fn walk(text: &'static str, course: fn(&Graph) -> Course, preemptions: usize) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.check(move || {
            let graph = graph(text);
            let course = course(&graph);
            let sums = (0..graph.len()).map(|_| Place::new(0)).collect();
            let executed = (0..graph.len()).map(|_| AtomicU32::new(0)).collect();
            let sums = Sums { graph, sums, executed, redone: AtomicU32::new(0) };
            let shared = Arc::new((sums, course, Gang::new(&Two)));
            let other = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    let (sums, course, gang) = &*shared;
                    course.walk(&sums.graph, sums, &mut (), gang, 1);
                })
            };
            let (sums, course, gang) = &*shared;
            course.walk(&sums.graph, sums, &mut (), gang, 0);
            other.join().unwrap();
            let mut wanted: Vec<u32> = Vec::new();
            for vertex in 0..sums.graph.len() as u32 {
                let sum = sums.sum(vertex, |before| wanted[before as usize]);
                wanted.push(sum);
                // SAFETY: no other thread is left.
                assert_eq!(unsafe { sums.sums[vertex as usize].get() }, sum);
            }
            assert_eq!(sums.redone.load(Ordering::Relaxed), 2);
        });
    }

    /// Each thread begins with one row, and the last transaction needs both.
    const SOME: &str = "t1: write A\nt2: write A\nt3: write B\nt4: write C from A B";

    fn by_operations(graph: &Graph) -> Units {
        Units::new(graph, Unit::Op, &[], 0)
    }

    #[test]
    fn what_is_ready_finds_what_it_needs() {
        let course =
            |graph: &Graph| Course::new(graph, by_operations(graph), Explore::Ns, Aborts::Lazy);
        walk(SOME, course, 6);
    }

    #[test]
    fn strata_come_one_after_the_other() {
        let course =
            |graph: &Graph| Course::new(graph, by_operations(graph), Explore::Sbfs, Aborts::Eager);
        walk(SOME, course, 6);
    }

    #[test]
    fn shares_of_strata_wait_for_what_they_need() {
        let course =
            |graph: &Graph| Course::new(graph, by_operations(graph), Explore::Sdfs, Aborts::Lazy);
        walk(SOME, course, 6);
    }

    #[test]
    fn chains_wait_for_each_other() {
        let course = |_: &Graph| Course::tstream(Units::chains(vec![0, 0, 1, 2], 3));
        walk(SOME, course, 6);
    }
}
