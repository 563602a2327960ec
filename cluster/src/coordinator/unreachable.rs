//! Members that can't reach each other. Two members that both reach the coordinator but not each
//! other would end every generation that includes both. So one of them is left out for a while.
//!
//! A pair is counted once in each generation in which one of the two reports that it has lost the
//! other. After some such generations, the two do not get into one generation for a while. This
//! time grows with each failed attempt. The pair is forgotten after a generation with both of them
//! that has executed something without a new report.

use std::collections::{BTreeMap, BTreeSet};

use crate::records::Member;

/// The number of generations that two members may end.
const TIMES_MAX: u32 = 3;
/// The time for which one of them is then left out, in leases.
const OUT_LEASES: u64 = 4;
/// The maximum number of times that this time doubles, each after another failed attempt.
const DOUBLED_MAX: u32 = 5;
/// The time that they must have been together before the pair is forgotten, in leases. The silence
/// of a peer is noticed later than after its own lease.
const GOOD_LEASES: u64 = 8;
/// The time without a report after which the pair is forgotten, in leases. It is longer than any
/// member is left out.
const OLD_LEASES: u64 = 4 * (OUT_LEASES << DOUBLED_MAX);
/// The maximum number of remembered pairs.
const PAIRS_MAX: usize = 4096;

/// Two members that have lost each other, the one with the smaller number first.
type Pair = (Member, Member);

/// The history of a pair.
#[derive(Clone, Copy)]
struct LostPair {
    times: u32,
    /// The last generation that they ended, and its time.
    generation: u64,
    at_us: u64,
}

/// The histories of all pairs.
#[derive(Default)]
pub(super) struct LostPairs {
    pairs: BTreeMap<Pair, LostPair>,
    /// The last generation that was formed, and its members.
    generation: u64,
    members: Vec<Member>,
}

/// A worker that is left out of the generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The worker.
    pub member: Member,
    /// The members that it can't reach.
    pub from: Vec<Member>,
    /// The time for which it is left out from now on, in microseconds.
    pub for_us: u64,
}

fn out_us(times: u32, lease_us: u64) -> u64 {
    match times.checked_sub(TIMES_MAX) {
        Some(more) => (OUT_LEASES << more.min(DOUBLED_MAX)) * lease_us,
        None => 0,
    }
}

impl LostPairs {
    /// Notes that a generation is formed of these members.
    pub fn formed(&mut self, generation: u64, members: &[Member]) {
        (self.generation, self.members) = (generation, members.to_vec());
    }

    /// Notes that a member has lost another. The generation may have been given up already because
    /// of another report. This one counts all the same.
    pub fn lost(&mut self, generation: u64, by: Member, other: Member, now_us: u64) {
        let are_members = [by, other].iter().all(|member| self.members.contains(member));
        if generation != self.generation || by == other || !are_members {
            return;
        }
        let pair = (by.min(other), by.max(other));
        let nothing = LostPair { times: 0, generation: 0, at_us: now_us };
        let lost = self.pairs.entry(pair).or_insert(nothing);
        if lost.generation != generation {
            *lost = LostPair { times: lost.times + 1, generation, at_us: now_us };
        }
        if self.pairs.len() > PAIRS_MAX {
            let oldest = self.pairs.iter().min_by_key(|(_, lost)| lost.at_us);
            let oldest = oldest.map(|(pair, _)| *pair);
            oldest.map(|pair| self.pairs.remove(&pair));
        }
    }

    /// Forgets old conflicts. `good_us` is the time for which the generation has run, if its
    /// members have executed something together.
    pub fn forget(&mut self, good_us: Option<u64>, now_us: u64, lease_us: u64) {
        let LostPairs { pairs, generation, members } = self;
        let is_good = good_us.is_some_and(|good_us| good_us > GOOD_LEASES * lease_us);
        pairs.retain(|(a, b), lost| {
            let together = members.contains(a) && members.contains(b);
            let is_over = is_good && together && lost.generation != *generation;
            !is_over && lost.at_us + OLD_LEASES * lease_us > now_us
        });
    }

    /// Returns the live members that are left out. They are as few as possible, first those that
    /// have lost the most others. Of two equal ones it is that with the larger number.
    pub fn left_out<'a>(
        &self,
        alive: impl Iterator<Item = &'a Member>,
        now_us: u64,
        lease_us: u64,
    ) -> Vec<LeftOut> {
        if self.pairs.is_empty() {
            return Vec::new();
        }
        let mut alive: BTreeSet<Member> = alive.copied().collect();
        let mut left_out = Vec::new();
        loop {
            let are_alive = |(a, b): &Pair| alive.contains(a) && alive.contains(b);
            let until_us = |lost: &LostPair| lost.at_us + out_us(lost.times, lease_us);
            let (mut apart, mut times) =
                (BTreeMap::<Member, (Vec<Member>, u64)>::new(), BTreeMap::new());
            for (&(a, b), lost) in self.pairs.iter().filter(|(pair, _)| are_alive(pair)) {
                for (one, other) in [(a, b), (b, a)] {
                    *times.entry(one).or_insert(0) += lost.times;
                    if until_us(lost) > now_us {
                        let (from, until) = apart.entry(one).or_default();
                        from.push(other);
                        *until = until_us(lost).max(*until);
                    }
                }
            }
            let worst = |(member, (from, _)): &(Member, (Vec<Member>, u64))| {
                (from.len(), times[member], *member)
            };
            let Some((member, (from, until))) = apart.into_iter().max_by_key(worst) else {
                return left_out;
            };
            alive.remove(&member);
            left_out.push(LeftOut { member, from, for_us: until - now_us });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE_US: u64 = 1_000;

    fn members(numbers: &[u32]) -> Vec<Member> {
        numbers.iter().copied().map(Member).collect()
    }

    /// Forms a generation of these members, in which these pairs lose each other.
    fn lose(
        lost_pairs: &mut LostPairs,
        generation: u64,
        of: &[Member],
        lost: &[(u32, u32)],
        at: u64,
    ) {
        lost_pairs.formed(generation, of);
        for (by, other) in lost {
            lost_pairs.lost(generation, Member(*by), Member(*other), at);
        }
    }

    fn out(lost_pairs: &LostPairs, of: &[Member], at: u64) -> Vec<Member> {
        let left_out = lost_pairs.left_out(of.iter(), at, LEASE_US);
        left_out.into_iter().map(|left| left.member).collect()
    }

    #[test]
    fn of_two_that_lose_each_other_again_and_again_one_is_left_out_for_longer_each_time() {
        let (mut lost_pairs, all) = (LostPairs::default(), members(&[1, 2, 3]));
        // Both report it, which counts once.
        for generation in 1..=2 {
            lose(&mut lost_pairs, generation, &all, &[(1, 2), (2, 1), (2, 1)], 0);
            assert_eq!(out(&lost_pairs, &all, 0), []);
        }
        lose(&mut lost_pairs, 3, &all, &[(2, 1)], 0);
        let until = OUT_LEASES * LEASE_US;
        assert_eq!(out(&lost_pairs, &all, until - 1), members(&[2]));
        assert_eq!(out(&lost_pairs, &members(&[2, 3]), 0), [], "the other has gone");
        assert_eq!(out(&lost_pairs, &all, until), []);
        lose(&mut lost_pairs, 4, &all, &[(2, 1)], until);
        assert_eq!(out(&lost_pairs, &all, 3 * until - 1), members(&[2]));
        assert_eq!(out(&lost_pairs, &all, 3 * until), []);
    }

    #[test]
    fn who_reaches_nobody_is_the_one_that_is_left_out() {
        let (mut lost_pairs, all) = (LostPairs::default(), members(&[1, 2, 3, 4]));
        for generation in 1..=3 {
            lose(&mut lost_pairs, generation, &all, &[(2, 1), (3, 1), (1, 4)], 0);
        }
        assert_eq!(out(&lost_pairs, &all, 0), members(&[1]));
        let left = &lost_pairs.left_out(all.iter(), 0, LEASE_US)[0];
        assert_eq!((&left.from, left.for_us), (&members(&[2, 3, 4]), OUT_LEASES * LEASE_US));
    }

    #[test]
    fn only_what_members_of_the_generation_say_counts() {
        let (mut lost_pairs, all) = (LostPairs::default(), members(&[1, 2]));
        for generation in 1..10 {
            lost_pairs.formed(generation, &all);
            lost_pairs.lost(generation, Member(1), Member(3), 0);
            lost_pairs.lost(generation, Member(3), Member(1), 0);
            lost_pairs.lost(generation + 1, Member(1), Member(2), 0);
            lost_pairs.lost(generation, Member(1), Member(1), 0);
        }
        assert!(lost_pairs.pairs.is_empty());
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let (mut lost_pairs, all) = (LostPairs::default(), members(&[1, 2]));
        lose(&mut lost_pairs, 1, &all, &[(1, 2)], 0);
        lost_pairs.formed(2, &all);
        let good = GOOD_LEASES * LEASE_US + 1;
        lost_pairs.forget(None, good, LEASE_US);
        assert_eq!(lost_pairs.pairs.len(), 1, "they have not executed anything");
        lost_pairs.forget(Some(good), good, LEASE_US);
        assert!(lost_pairs.pairs.is_empty());
        lose(&mut lost_pairs, 3, &all, &[(1, 2)], good);
        lost_pairs.formed(4, &all[..1]);
        lost_pairs.forget(Some(good), 3 * good, LEASE_US);
        assert_eq!(lost_pairs.pairs.len(), 1, "they were not together");
        lost_pairs.forget(None, good + OLD_LEASES * LEASE_US, LEASE_US);
        assert!(lost_pairs.pairs.is_empty());
    }

    #[test]
    fn there_is_an_end_to_what_is_remembered() {
        let mut lost_pairs = LostPairs::default();
        for n in 0..PAIRS_MAX as u32 + 10 {
            let pair = [n, n + 1];
            lose(&mut lost_pairs, n.into(), &members(&pair), &[(n, n + 1)], n.into());
        }
        assert_eq!(lost_pairs.pairs.len(), PAIRS_MAX);
    }
}
