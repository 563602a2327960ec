//! What one thread does: reserve, look, execute, settle; round after round.

use std::ops::Range;

use tidemill_table::Seq;

use super::progress::Progress;
use super::reserve::{mark, Filter, Mark, Marks};
use crate::execute::codes::Codes;
use crate::execute::in_place::{Events, Halt, Member};
use crate::execute::segment::{InOrder, Turns};
use crate::order::Ranked;
use crate::pool::{self, Pool};

/// How transactions are cut: into rounds, and these into shares.
#[derive(Clone, Copy)]
pub(super) struct Round<'r> {
    /// The epoch's order, up to the last one.
    pub(super) order: &'r [Ranked],
    /// The rank of the first one.
    pub(super) first: usize,
    /// Transactions of one, but of the last.
    pub(super) len: usize,
    /// Where each thread's share ends, as a part of the round.
    pub(super) ends: &'r [f64],
}

impl Round<'_> {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        (self.order.len() - self.first).div_ceil(self.len)
    }

    /// A thread's share of one.
    fn of(&self, thread: usize, round: usize) -> Range<usize> {
        let begin = self.first + round * self.len;
        let len = self.len.min(self.order.len() - begin);
        let end = |thread: usize| begin + (len as f64 * self.ends[thread]) as usize;
        let first = if thread == 0 { begin } else { end(thread - 1) };
        first..if thread + 1 == self.ends.len() { begin + len } else { end(thread) }
    }
}

/// What all threads see.
pub(super) struct Shared<'s> {
    pub(super) codes: &'s Codes,
    /// Per handler: whether each of its rows is written.
    pub(super) writes: &'s [Vec<bool>],
    pub(super) round: Round<'s>,
    pub(super) progress: Progress,
    /// Per thread: the rows of its share, in rounds of even and of odd number.
    pub(super) reserved: &'s [[Marks; 2]],
    /// The same of what it puts off of it.
    pub(super) put_off: &'s [[Marks; 2]],
    pub(super) pool: &'s dyn Pool,
    /// The number of the transaction before the first one.
    pub(super) before: Seq,
    pub(super) halt: Halt,
}

impl Shared<'_> {
    /// Waits; whether to go on. Nanoseconds that it took are added.
    fn wait(&self, wait_ns: &mut u64, mut holds: impl FnMut() -> bool) -> bool {
        if holds() {
            return !self.halt.is_set();
        }
        let begun = self.pool.now_ns();
        pool::wait(self.pool, || self.halt.is_set() || holds());
        *wait_ns += self.pool.now_ns() - begun;
        !self.halt.is_set()
    }
}

/// The parts of a share, in the order in which they are executed; each is in stamp order. What is executed beside what later
/// threads have put off in the round before; what waits for that; the rest, but for what is put off; and that.
pub(super) const PARTS: usize = 4;
const BESIDE: usize = 0;
const BEHIND: usize = 1;
const REST: usize = 2;
const LATE: usize = 3;

/// What a thread keeps to itself.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// What earlier shares of the round use, and what it has put off itself.
    taken: Filter,
    /// What later threads have put off in the round before, and what waits for that.
    late: Filter,
    /// By lane: its events in the share, and in the rest of it.
    lanes: Vec<Events>,
    rest: Vec<Events>,
    /// Ranks of what is put off, of what waits, and of both in a stretch.
    off: Vec<usize>,
    waiting: Vec<usize>,
    left_out: Vec<usize>,
    /// By round: how many outputs there were by stream after [each part](PARTS) of its share.
    pub(super) ends: Vec<[Vec<usize>; PARTS]>,
    pub(super) put_off: u64,
    pub(super) executed: u64,
    pub(super) reserve_ns: u64,
    pub(super) wait_ns: u64,
    /// In all, but for waiting.
    pub(super) busy_ns: u64,
}

/// What a thread does in an epoch. `READS` when any transaction reads rows that it does not write.
pub(super) fn walk<const READS: bool>(
    shared: &Shared<'_>,
    member: &mut Member<'_>,
    own: &mut Own,
    thread: usize,
) {
    let Shared { round, progress, pool, .. } = shared;
    let all_begun = pool.now_ns();
    own.ends.clear();
    own.off.clear();
    (own.put_off, own.executed, own.reserve_ns, own.wait_ns) = (0, 0, 0, 0);
    let rounds = round.count();
    if rounds > 0 {
        own.reserve(shared, member, thread, 0);
    }
    for number in 0..rounds {
        Events::stage(&own.lanes, member);
        if !shared.wait(&mut own.wait_ns, || progress.may_execute(thread, number)) {
            return;
        }
        own.look::<READS>(shared, thread, number);
        own.ends.push(Default::default());
        if !own.execute::<READS>(shared, member, thread, number) {
            return;
        }
        progress.executed(thread, number);
        own.executed += round.of(thread, number).len() as u64;
        own.ends(member, REST);
        // Where others are not done yet, the next round can be reserved meanwhile.
        if number + 1 < rounds {
            own.reserve(shared, member, thread, number + 1);
        }
        if thread > 0 {
            if !shared.wait(&mut own.wait_ns, || progress.may_settle(thread, number)) {
                return;
            }
            if !each_alone(shared, member, &own.off) {
                return shared.halt.set();
            }
        }
        own.ends(member, LATE);
        progress.settled(thread, number);
        own.put_off += own.off.len() as u64;
        own.off.clear();
    }
    own.busy_ns = (pool.now_ns() - all_begun).saturating_sub(own.wait_ns);
}

/// The marks of a transaction, among those of the share.
#[inline(always)]
fn marks_of<'m>(lanes: &[Events], marks: &'m [Mark], ranked: Ranked) -> &'m [Mark] {
    let Events { range, rows, first } = &lanes[ranked.lane as usize];
    &marks[first + (ranked.row as usize - range.start) * rows..][..*rows]
}

/// Executes a stretch of the order but for these; whether it could.
fn all_but(
    shared: &Shared<'_>,
    member: &mut Member<'_>,
    ranks: Range<usize>,
    left_out: &[usize],
) -> bool {
    let mut at = ranks.start;
    for stop in left_out.iter().copied().chain([ranks.end]) {
        if at < stop && !execute(shared, member, at..stop) {
            shared.halt.set();
            return false;
        }
        at = stop + 1;
    }
    true
}

/// Executes transactions that do not follow one another; whether it could.
fn each_alone(shared: &Shared<'_>, member: &mut Member<'_>, ranks: &[usize]) -> bool {
    let event = |rank: &usize| {
        let Ranked { lane, row } = shared.round.order[*rank];
        (lane as usize, row as usize..row as usize + 1)
    };
    for (lane, event) in ranks.iter().map(event) {
        member.lanes[lane].ask_for_rows(event);
    }
    ranks.iter().all(|rank| {
        let (lane, event) = event(rank);
        member.lanes[lane].stage_only(event);
        execute(shared, member, *rank..rank + 1)
    })
}

/// Executes a stretch of the order; whether it could.
fn execute(shared: &Shared<'_>, member: &mut Member<'_>, ranks: Range<usize>) -> bool {
    let seq = shared.before + (ranks.start - shared.round.first) as Seq;
    let order = &shared.round.order[..ranks.end];
    let mut turns = Turns::InOrder(InOrder { order, at: ranks.start, seq, prefetch: true });
    // SAFETY: whoever uses a row of these transactions in this round is before them in their own
    // share, or is put off, and begins when they are done; or these are put off, and all others are
    // done. Rounds before are done but for what later threads have put off, which does not use their rows
    // or is done, too; of later ones nobody begins what uses a row of what is put off. What is left out of a share for
    // that meets none of those behind it that are executed before it.
    unsafe { member.walk(shared.codes, &mut turns) }
}

impl Own {
    /// A part of the share has been executed.
    fn ends(&mut self, member: &Member<'_>, part: usize) {
        if let Some(ends) = self.ends.last_mut() {
            ends[part].extend(member.outputs());
        }
    }

    /// Reserves what the share of a round uses: of each event by lane, of each of its rows.
    #[inline(never)]
    fn reserve(&mut self, shared: &Shared<'_>, member: &Member<'_>, thread: usize, number: usize) {
        let begun = shared.pool.now_ns();
        let share = shared.round.of(thread, number);
        Events::find(&mut self.lanes, member, &shared.round.order[share.clone()]);
        let mut len = 0;
        for Events { range, rows, first } in self.lanes.iter_mut() {
            *first = len;
            len += range.len() * *rows;
        }
        let lanes = self.lanes.iter().zip(&member.lanes).filter(|(events, _)| !events.is_empty());
        let write = |marks: &mut Vec<Mark>| {
            marks.resize(len, 0);
            for (Events { range, rows, first }, lane) in lanes.clone() {
                for (of, writes) in shared.writes[lane.handler].iter().enumerate() {
                    let mut marks = marks[*first..][..range.len() * rows].chunks_exact_mut(*rows);
                    lane.homes_of(of, range.clone(), |_, hash| {
                        if let Some(marks) = marks.next() {
                            marks[of] = mark(hash, *writes);
                        }
                    });
                }
            }
        };
        // SAFETY: it is this thread's, and others look at it between the calls of `reserved` and `executed` only: those of two
        // rounds ago all have been executed.
        unsafe { shared.reserved[thread][number % 2].with_mut(write) };
        for (Events { range, .. }, lane) in lanes {
            // About where the share of the next round has its events of this lane.
            let after = range.len() * shared.round.len / share.len().max(1);
            lane.ask_for(range.start + after..range.end + after);
        }
        shared.progress.reserved(thread, number);
        self.reserve_ns += shared.pool.now_ns() - begun;
    }

    /// Looks which transactions of the share meet what earlier shares use, or what is put off: these are put off.
    #[inline(never)]
    fn look<const READS: bool>(&mut self, shared: &Shared<'_>, thread: usize, number: usize) {
        if thread == 0 {
            return;
        }
        let begun = shared.pool.now_ns();
        let even = number % 2;
        // SAFETY: earlier threads have reserved their rows of this round, and write others when it is executed by all.
        unsafe { self.taken.take_all::<READS>(&shared.reserved[..thread], even) };
        let share = shared.round.of(thread, number);
        let mut look = |marks: &[Mark], put_off: &mut Vec<Mark>| {
            put_off.clear();
            for (ranked, rank) in shared.round.order[share.clone()].iter().zip(share.clone()) {
                let marks = marks_of(&self.lanes, marks, *ranked);
                if self.taken.meets_any::<READS>(marks) {
                    marks.iter().for_each(|mark| self.taken.take::<READS>(*mark));
                    put_off.extend_from_slice(marks);
                    self.off.push(rank);
                }
            }
        };
        // SAFETY: both are this thread's. It has written the first for this round, which others may look at, too; at the second
        // nobody does before this round is executed, and what is in it, of two rounds ago, nobody has looked at since the round
        // after that was executed by all.
        unsafe {
            let (marks, put_off) = (&shared.reserved[thread][even], &shared.put_off[thread][even]);
            marks.with(|marks| put_off.with_mut(|put_off| look(marks, put_off)));
        }
        self.reserve_ns += shared.pool.now_ns() - begun;
    }

    /// Executes the share but for what is put off; whether it could. As long as later threads are not done with what they
    /// have put off in the round before, what meets that is left out, and what meets what is left out; it follows when
    /// they are.
    fn execute<const READS: bool>(
        &mut self,
        shared: &Shared<'_>,
        member: &mut Member<'_>,
        thread: usize,
        number: usize,
    ) -> bool {
        /// How many transactions are looked at before the others are.
        const LOOK_AHEAD: usize = 64;
        let Shared { round, progress, .. } = shared;
        let (share, is_settled) = (round.of(thread, number), || progress.are_settled(number));
        let (mut at, mut off) = (share.start, 0);
        self.waiting.clear();
        if !is_settled() {
            let later = &shared.put_off[thread + 1..];
            // SAFETY: later threads have executed the round before, and so put off what they do of it; they write there again
            // when this one is executed by all.
            unsafe { self.late.take_all::<READS>(later, (number + 1) % 2) };
        }
        while at < share.end && !is_settled() {
            let ahead = at..share.end.min(at + LOOK_AHEAD);
            self.left_out.clear();
            let look = |marks: &[Mark]| {
                for (ranked, rank) in round.order[ahead.clone()].iter().zip(ahead.clone()) {
                    let marks = marks_of(&self.lanes, marks, *ranked);
                    if self.off.get(off) == Some(&rank) {
                        off += 1;
                    } else if self.late.meets_any::<READS>(marks) {
                        marks.iter().for_each(|mark| self.late.take::<READS>(*mark));
                        self.waiting.push(rank);
                    } else {
                        continue;
                    }
                    self.left_out.push(rank);
                }
            };
            // SAFETY: this thread has written them, and others but look at them.
            unsafe { shared.reserved[thread][number % 2].with(look) };
            if !all_but(shared, member, ahead.clone(), &self.left_out) {
                return false;
            }
            at = ahead.end;
        }
        self.ends(member, BESIDE);
        if !self.waiting.is_empty() {
            if !shared.wait(&mut self.wait_ns, is_settled) {
                return false;
            }
            if !each_alone(shared, member, &self.waiting) {
                shared.halt.set();
                return false;
            }
            Events::find(&mut self.rest, member, &round.order[at..share.end]);
            Events::stage(&self.rest, member);
        }
        self.ends(member, BEHIND);
        all_but(shared, member, at..share.end, &self.off[off..])
    }
}
