//! What one thread does: reserve, look, execute, settle; round after round.

use std::ops::Range;

use tidemill_table::{Opened, Seq};

use super::progress::Progress;
use super::reserve::{Reserved, Taken};
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
    /// Per thread: of rounds of even and of odd number.
    pub(super) reserved: &'s [[Reserved; 2]],
    /// The same of what is put off.
    pub(super) put_off: &'s [[Reserved; 2]],
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

/// What a thread keeps to itself.
#[derive(Debug, Default)]
pub(super) struct Own {
    taken: Taken,
    /// By lane: its events in the share.
    lanes: Vec<Events>,
    /// Of each event of the share by lane, of each of its rows.
    bits: Vec<u32>,
    /// Ranks of what is put off.
    off: Vec<usize>,
    /// The bits of its rows, in rounds of even and of odd number: by these they are freed.
    off_bits: [Vec<u32>; 2],
    /// By round: how many outputs there were by stream after its share, and after what of it was put
    /// off.
    pub(super) ends: Vec<[Vec<usize>; 2]>,
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
        own.reserve::<READS>(shared, member, thread, 0);
    }
    for number in 0..rounds {
        Events::stage(&own.lanes, member);
        if !shared.wait(&mut own.wait_ns, || progress.may_execute(thread, number)) {
            return;
        }
        let share = round.of(thread, number);
        own.look::<READS>(shared, member, thread, number);
        own.executed += share.len() as u64;
        let mut at = share.start;
        for stop in own.off.iter().copied().chain([share.end]) {
            let waited = &mut own.wait_ns;
            let settled = beside::<READS>(shared, member, waited, [thread, number], at..stop);
            let Some(settled) = settled else { return };
            if !execute(shared, member, settled..stop) {
                return shared.halt.set();
            }
            at = stop + 1;
        }
        progress.executed(thread, number);
        let ends = own.ends_of(member);
        // Where others are not done yet, the next round can be reserved meanwhile.
        if number + 1 < rounds {
            own.reserve::<READS>(shared, member, thread, number + 1);
        }
        if thread > 0 {
            if !shared.wait(&mut own.wait_ns, || progress.may_settle(thread, number)) {
                return;
            }
            own.ask_for_off(shared, member);
            for rank in &own.off {
                let Ranked { lane, row } = round.order[*rank];
                member.lanes[lane as usize].stage_only(row as usize..row as usize + 1);
                if !execute(shared, member, *rank..rank + 1) {
                    return shared.halt.set();
                }
            }
        }
        progress.settled(thread, number);
        own.put_off += own.off.len() as u64;
        own.off.clear();
        let late = own.ends_of(member);
        own.ends.push([ends, late]);
    }
    own.busy_ns = (pool.now_ns() - all_begun).saturating_sub(own.wait_ns);
}

/// Executes a stretch of the order; whether it could.
fn execute(shared: &Shared<'_>, member: &mut Member<'_>, ranks: Range<usize>) -> bool {
    let seq = shared.before + (ranks.start - shared.round.first) as Seq;
    let order = &shared.round.order[..ranks.end];
    let mut turns = Turns::InOrder(InOrder { order, at: ranks.start, seq, prefetch: true });
    // SAFETY: whoever uses a row of these transactions in this round is before them in their own
    // share, or is put off, and begins when they are done; or these are put off, and all others are
    // done. Rounds before are done but for what later threads have put off, which does not use their rows
    // or is done, too; of later ones nobody begins what uses a row of what is put off.
    unsafe { member.walk(shared.codes, &mut turns) }
}

/// Executes those of a stretch of the share that do not meet what later threads have put off in the
/// round before, as long as these are not done with it; then waits for them. Where it stands then; nothing
/// when all have stopped.
fn beside<const READS: bool>(
    shared: &Shared<'_>,
    member: &mut Member<'_>,
    wait_ns: &mut u64,
    [thread, number]: [usize; 2],
    ranks: Range<usize>,
) -> Option<usize> {
    /// How many transactions are looked at before the others are.
    const LOOK_AHEAD: usize = 32;
    let mut at = ranks.start;
    while at < ranks.end && !shared.progress.are_settled(number) {
        let ahead = at..ranks.end.min(at + LOOK_AHEAD);
        let late = shared.put_off[thread + 1..].iter().map(|of| &of[(number + 1) % 2]);
        let free =
            ahead.clone().position(|rank| meets::<READS>(shared, member, rank, late.clone()));
        let until = free.map_or(ahead.end, |free| at + free);
        if !execute(shared, member, at..until) {
            shared.halt.set();
            return None;
        }
        at = until;
        if until < ahead.end && !shared.wait(wait_ns, || shared.progress.are_settled(number)) {
            return None;
        }
    }
    Some(at)
}

/// Whether a transaction uses a row of what is put off.
fn meets<'p, const READS: bool>(
    shared: &Shared<'_>,
    member: &Member<'_>,
    rank: usize,
    mut put_off: impl Iterator<Item = &'p Reserved>,
) -> bool {
    let Ranked { lane, row } = shared.round.order[rank];
    let lane = &member.lanes[lane as usize];
    let mask = (shared.reserved[0][0].words() * 64 - 1) as u64;
    put_off.any(|put_off| {
        let mut meets = false;
        for (of, writes) in shared.writes[lane.handler].iter().enumerate() {
            lane.homes_of(of, row as usize..row as usize + 1, |_, hash| {
                meets |= put_off.meets::<READS>((hash & mask) as u32, *writes);
            });
        }
        meets
    })
}

impl Own {
    fn ends_of(&self, member: &Member<'_>) -> Vec<usize> {
        member.outputs().collect()
    }

    /// Reserves what the share of a round uses, and notes it to be looked at later.
    #[inline(never)]
    fn reserve<const READS: bool>(
        &mut self,
        shared: &Shared<'_>,
        member: &Member<'_>,
        thread: usize,
        number: usize,
    ) {
        let begun = shared.pool.now_ns();
        let share = shared.round.of(thread, number);
        Events::find(&mut self.lanes, member, &shared.round.order[share.clone()]);
        let reserved = &shared.reserved[thread][number % 2];
        let (is_first, is_last) = (thread == 0, thread + 1 == shared.round.ends.len());
        let mask = (reserved.words() * 64 - 1) as u64;
        if !is_last {
            reserved.clear();
        }
        self.bits.clear();
        for (events, lane) in self.lanes.iter_mut().zip(&member.lanes) {
            if events.is_empty() {
                continue;
            }
            let Events { range, rows, first: bits } = events;
            *bits = self.bits.len();
            if !is_first {
                self.bits.resize(*bits + range.len() * *rows, 0);
            }
            for (of, writes) in shared.writes[lane.handler].iter().enumerate() {
                let (mut at, rows) = (*bits + of, *rows);
                lane.homes_of(of, range.clone(), |_, hash| {
                    let bit = (hash & mask) as u32;
                    if !is_last {
                        reserved.reserve::<READS>(bit, *writes);
                    }
                    if !is_first {
                        self.bits[at] = bit;
                        at += rows;
                    }
                });
            }
            // About where the share of the next round has its events of this lane.
            let after = range.len() * shared.round.len / share.len().max(1);
            lane.ask_for(range.start + after..range.end + after);
        }
        shared.progress.reserved(thread, number);
        self.reserve_ns += shared.pool.now_ns() - begun;
    }

    /// Looks which transactions of the share meet what is taken; these are put off.
    #[inline(never)]
    fn look<const READS: bool>(
        &mut self,
        shared: &Shared<'_>,
        member: &Member<'_>,
        thread: usize,
        number: usize,
    ) {
        if thread == 0 {
            return;
        }
        let begun = shared.pool.now_ns();
        let put_off = &shared.put_off[thread][number % 2];
        let off_bits = &mut self.off_bits[number % 2];
        off_bits.drain(..).for_each(|bit| put_off.free(bit));
        let before = shared.reserved[..thread].iter();
        self.taken.gather(before.map(|reserved| &reserved[number % 2]));
        let share = shared.round.of(thread, number);
        for (ranked, rank) in shared.round.order[share.clone()].iter().zip(share) {
            let Events { range, rows, first: bits } = &self.lanes[ranked.lane as usize];
            let from = bits + (ranked.row as usize - range.start) * rows;
            let bits = &self.bits[from..from + rows];
            let meets = match READS {
                false => {
                    bits.iter().fold(0, |any, bit| any | self.taken.meets::<false>(*bit, true))
                }
                true => {
                    let writes = &shared.writes[member.lanes[ranked.lane as usize].handler];
                    let rows = bits.iter().zip(writes);
                    rows.fold(0, |any, (bit, writes)| any | self.taken.meets::<true>(*bit, *writes))
                }
            };
            if meets & 1 == 1 {
                let writes = &shared.writes[member.lanes[ranked.lane as usize].handler];
                for (bit, writes) in bits.iter().zip(writes) {
                    put_off.reserve::<READS>(*bit, *writes);
                    self.taken.take::<READS>(*bit, *writes);
                }
                off_bits.extend_from_slice(bits);
                self.off.push(rank);
            }
        }
        self.reserve_ns += shared.pool.now_ns() - begun;
    }

    /// Asks for the rows of what is put off.
    fn ask_for_off(&self, shared: &Shared<'_>, member: &Member<'_>) {
        for rank in &self.off {
            let Ranked { lane, row } = shared.round.order[*rank];
            let (lane, row) = (&member.lanes[lane as usize], row as usize);
            for of in 0..lane.rows() {
                lane.homes_of(of, row..row + 1, |home, _| Opened::prefetch_to_write(home));
            }
        }
    }
}
