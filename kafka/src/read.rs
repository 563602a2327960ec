//! Reads of the log. One thread goes through the partitions: it serves readers, and follows the
//! appends.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{select, Receiver, Sender};
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::TopicPartitionList;
use tidemill_cluster::{Record, Records, Refused, Then, Topic};
use tidemill_connect::Message;
use tidemill_core::Error;

use crate::append::Appends;
use crate::fence::{Answer, Judge};
use crate::log::{Core, Listener, Part};
use crate::message::{decode, encode, incoming, mark, Format, Mark, Unread};
use crate::requests::{offset, Ends, Known, Request, Why};
use crate::settings::KafkaSettings;
use crate::topics::is_missing;

/// The largest number of messages of a partition that are taken before the others have their turn.
const TURN: usize = 4096;
/// The time between two checks of deadlines, in nanoseconds.
const TICK_NS: u64 = 50_000_000;
/// The time between two checks for brokers while none can be reached, in nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;
/// The time before an unanswered request is repeated, in nanoseconds.
const AGAIN_NS: u64 = 200_000_000;
/// The number of records after which a generation repeats its beginning, so that the records before
/// can be deleted.
const SAY_AGAIN: u64 = 10_000;

/// A command to the thread.
pub(crate) enum Command {
    Read { part: usize, read: Read },
    Trim { part: usize, below: u64 },
}

/// A read without an answer yet.
pub(crate) struct Read {
    from: u64,
    limit: Option<usize>,
    asked_ns: u64,
    wait_ns: u64,
    pub(crate) then: Then<Option<Records>>,
    /// The end of the records at the start of a read without a limit.
    end: Option<u64>,
    /// Whether the cursor is placed for it.
    is_placed: bool,
    records: Vec<(u64, Record)>,
    /// The size: the records, or for those with requests the requests in them.
    size: usize,
}

impl Read {
    pub(crate) fn new(
        from: u64,
        limit: Option<usize>,
        asked_ns: u64,
        wait_ns: u64,
        then: Then<Option<Records>>,
    ) -> Read {
        let limit = limit.map(|limit| limit.max(1));
        let (end, records, size) = (None, Vec::new(), 0);
        Read { from, limit, asked_ns, wait_ns, then, end, is_placed: false, records, size }
    }

    fn push(&mut self, offset: u64, record: Record) {
        self.size += match &record {
            Record::Requests(requests) => requests.len(),
            Record::Events(events) => events.batch.len(),
            _ => 1,
        };
        self.records.push((offset, record));
    }

    fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.size >= limit)
    }
}

/// A place in a partition from which one of the consumers reads.
struct Cursor {
    queue: PartitionQueue<Listener>,
    /// All messages below this offset have been taken.
    position: u64,
    judge: Judge,
    /// Whether the broker has answered since the cursor was placed, even if only that there are no
    /// messages.
    is_live: bool,
    /// Whether the end was reached after the last taken message.
    is_at_end: bool,
}

/// The result of taking one more message.
enum Next {
    /// A message was taken.
    Taken,
    /// There is no message now.
    None,
    /// Reading has failed for now, and must begin again.
    Failed,
}

/// The two cursors of a partition, one for appends and one for reads.
#[derive(Default)]
struct Side {
    tail: Option<Cursor>,
    is_tail_asked: bool,
    ask_tail_at_ns: u64,
    read: Option<Cursor>,
    is_read_asked: bool,
    ask_read_at_ns: u64,
    /// The reads that wait. The first one is being served.
    waiting: VecDeque<Read>,
    trimmed: u64,
}

/// The thread that reads.
pub(crate) struct Driver {
    core: Arc<Core>,
    settings: KafkaSettings,
    format: Arc<dyn Format>,
    appends: Arc<Appends>,
    tails: Arc<BaseConsumer<Listener>>,
    reads: Arc<BaseConsumer<Listener>>,
    asks: Sender<Request>,
    sides: Vec<Side>,
    ticked_ns: u64,
    /// The time of the next check for brokers; nothing while a check is in progress.
    looks_at_ns: Option<u64>,
}

impl Driver {
    pub(crate) fn new(
        core: Arc<Core>,
        settings: KafkaSettings,
        format: Arc<dyn Format>,
        appends: Arc<Appends>,
        consumers: [Arc<BaseConsumer<Listener>>; 2],
        asks: Sender<Request>,
    ) -> Driver {
        let sides = core.parts.iter().map(|_| Side::default()).collect();
        let [tails, reads] = consumers;
        Driver {
            core,
            settings,
            format,
            appends,
            tails,
            reads,
            asks,
            sides,
            ticked_ns: 0,
            looks_at_ns: Some(0),
        }
    }

    /// Runs until the log is dropped.
    pub(crate) fn run(
        mut self,
        commands: &Receiver<Command>,
        ends: &Receiver<Ends>,
        wakes: &Receiver<()>,
    ) {
        while !self.core.is_ended() {
            commands.try_iter().for_each(|command| self.take(command));
            ends.try_iter().for_each(|ends| self.place(&ends));
            let mut has_more = false;
            for part in 0..self.sides.len() {
                has_more |= self.follow(part);
                has_more |= self.serve(part);
                self.answer(part);
            }
            self.tick();
            if !has_more {
                select! {
                    recv(wakes) -> _ => {}
                    default(self.patience()) => {}
                }
            }
        }
        self.end(commands);
    }

    /// Returns how long the thread may sleep if no event arrives.
    fn patience(&self) -> Duration {
        let now_ns = self.now_ns();
        let deadlines = self.sides.iter().filter_map(|side| {
            let read = side.waiting.front().filter(|read| read.is_placed)?;
            Some((read.asked_ns + read.wait_ns).saturating_sub(now_ns)).filter(|ns| *ns > 0)
        });
        Duration::from_nanos(deadlines.min().unwrap_or(TICK_NS).min(TICK_NS))
    }

    fn now_ns(&self) -> u64 {
        self.core.env.clock.monotonic_ns()
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Read { part, read } => self.sides[part].waiting.push_back(read),
            Command::Trim { part, below } => self.trim(part, below),
        }
    }

    /// Follows the appends. Returns whether there may be more.
    fn follow(&mut self, index: usize) -> bool {
        let (core, now_ns) = (&self.core, self.now_ns());
        let (part, side) = (&core.parts[index], &mut self.sides[index]);
        let is_alone = part.topic == Topic::Cuts && part.fence.lock().is_only_writer();
        if core.is_lost() || !part.is_tailed() || is_alone {
            // Otherwise the broker would go on sending unneeded messages.
            side.tail.take().into_iter().for_each(|_| unassign(&self.tails, part));
            return false;
        }
        let Some(cursor) = &mut side.tail else {
            if !side.is_tail_asked && now_ns >= side.ask_tail_at_ns {
                let why = Why::Tail { from: part.fence.lock().scanned() };
                side.is_tail_asked = self.asks.try_send(Request::Ends { part: index, why }).is_ok();
            }
            return false;
        };
        let mut seen = Vec::new();
        let mut next = Next::Taken;
        while seen.len() < TURN && matches!(next, Next::Taken) {
            next = cursor.next(core, part, |message| {
                seen.push((message.offset, mark(message)));
                Ok(())
            });
        }
        see(part, &seen);
        if matches!(next, Next::Failed) {
            unassign(&self.tails, part);
            (side.tail, side.ask_tail_at_ns) = (None, now_ns + AGAIN_NS);
        }
        matches!(next, Next::Taken)
    }

    /// Serves the first of the waiting reads. Returns whether there may be more.
    fn serve(&mut self, index: usize) -> bool {
        let now_ns = self.now_ns();
        loop {
            let part = &self.core.parts[index];
            let side = &mut self.sides[index];
            let has_others = side.waiting.len() > 1;
            let Some(read) = side.waiting.front_mut() else { return false };
            if self.core.is_lost() {
                // The answer is delayed, so that a caller in a loop has time to look for the
                // reason.
                if now_ns < read.asked_ns + 2 * TICK_NS {
                    return false;
                }
                side.answer(None);
                continue;
            }
            if !read.is_placed {
                let is_there = read.limit.is_some()
                    && side.read.as_ref().is_some_and(|cursor| cursor.position == read.from);
                if !is_there {
                    if !side.is_read_asked && now_ns >= side.ask_read_at_ns {
                        let why = Why::Read { from: read.from };
                        let ask = Request::Ends { part: index, why };
                        side.is_read_asked = self.asks.try_send(ask).is_ok();
                    }
                    return false;
                }
                read.is_placed = true;
            }
            let Some(cursor) = &mut side.read else {
                // The cursor was dropped with an earlier read.
                read.is_placed = false;
                continue;
            };
            let (taken, is_failed) = fill(read, cursor, &self.core, part, &*self.format);
            let end = read.end.unwrap_or(u64::MAX);
            let is_all = read.is_full()
                || cursor.position >= end
                || (read.end.is_some() && cursor.is_at_end)
                || (read.limit.is_some() && !read.records.is_empty());
            if is_all {
                let upto = cursor.position.max(read.from).max(read.end.unwrap_or(0));
                if read.limit.is_none() {
                    // No read continues here, and the broker would go on sending.
                    unassign(&self.reads, part);
                    side.read = None;
                }
                side.answer(Some(upto));
                continue;
            }
            if taken >= TURN {
                return true;
            }
            let waited_ns = now_ns.saturating_sub(read.asked_ns);
            let is_late = waited_ns > read.wait_ns.max(self.settings.timeout_us * 1000);
            let is_away = self.core.is_away.load(Ordering::Relaxed);
            if is_failed || is_late || (is_away && waited_ns >= read.wait_ns) {
                unassign(&self.reads, part);
                side.read = None;
                side.answer(None);
                continue;
            }
            let is_over = waited_ns >= read.wait_ns || has_others;
            if read.limit.is_some() && cursor.is_live && is_over {
                let upto = cursor.position.max(read.from);
                side.answer(Some(upto));
                continue;
            }
            return false;
        }
    }

    /// Places a cursor where it is needed, when the ends of its partition are known.
    fn place(&mut self, ends: &Ends) {
        let (part, now_ns) = (&self.core.parts[ends.part], self.now_ns());
        if ends.ends.is_some() {
            self.core.is_there(part);
        }
        let side = &mut self.sides[ends.part];
        if ends.ends.is_some() {
            self.core.is_away.store(false, Ordering::Relaxed);
        }
        match ends.why {
            Why::Look => self.looks_at_ns = Some(now_ns + LOOK_NS),
            Why::Tail { from: asked } => {
                side.is_tail_asked = false;
                side.ask_tail_at_ns = now_ns + AGAIN_NS;
                let Some((low, high)) = ends.ends else { return };
                let mut fence = part.fence.lock();
                // Records seen since the request may lie beyond the end that it returned.
                if asked > high {
                    drop(fence);
                    return self.core.suspect_truncated(part, asked, high);
                }
                self.core.trust(part);
                fence.skip(low);
                let from = fence.scanned();
                drop(fence);
                assign(&mut side.tail, &self.core, &self.tails, part, from, 0);
            }
            Why::Read { from: asked } => {
                side.is_read_asked = false;
                if side.waiting.front().is_some_and(|read| read.from != asked) {
                    // The read that asked has been answered. The next read may find more records at
                    // its place.
                    return;
                }
                if let Some(known) = ends.known {
                    part.fence.lock().recall(known);
                }
                match ends.ends {
                    // A reader that gets an answer asks again at once.
                    None if self.core.suspects(part) => side.ask_read_at_ns = now_ns + AGAIN_NS,
                    None => side.answer(None),
                    Some((low, high)) => self.place_read(ends.part, low, high),
                }
            }
        }
    }

    fn place_read(&mut self, index: usize, low: u64, high: u64) {
        let (part, now_ns) = (&self.core.parts[index], self.now_ns());
        let side = &mut self.sides[index];
        let Some(read) = side.waiting.front_mut() else { return };
        let from = read.from;
        if from == u64::MAX {
            // The read asks only for the end.
            return side.answer(Some(high));
        }
        if from > high {
            self.core.suspect_truncated(part, from, high);
            side.ask_read_at_ns = now_ns + AGAIN_NS;
            return;
        }
        self.core.trust(part);
        // Cuts are deleted when the log is trimmed, and outputs by their age. So a reader from
        // their beginning wants what is left. All inputs must exist.
        if from < low && !(from == 0 && part.is_fenced()) {
            return self.core.lose(part.deleted(from, low));
        }
        if read.limit.is_none() {
            read.end = Some(high);
            if high <= from {
                return side.answer(Some(from));
            }
        }
        let (start, generation) = if part.is_fenced() {
            let mut fence = part.fence.lock();
            let base = fence.base();
            if from < base && low < base {
                // The read begins before all known state, so no generation is known.
                (low, 0)
            } else {
                fence.skip(low);
                let start = from.max(low).min(fence.scanned());
                (start, fence.before(start))
            }
        } else {
            (from.max(low), 0)
        };
        if from < low && generation > 0 {
            // This generation has begun in the deleted part.
            read.push(low, Record::Generation { generation });
        }
        unassign(&self.reads, part);
        assign(&mut side.read, &self.core, &self.reads, part, start, generation);
        match side.read.is_some() {
            true => read.is_placed = true,
            false => side.answer(None),
        }
    }

    /// Answers the appends that have been seen.
    fn answer(&self, index: usize) {
        let mut answers: Vec<Answer> = Vec::new();
        self.core.parts[index].fence.lock().answers(&mut answers);
        for (then, answer) in answers {
            then(answer);
        }
    }

    /// Does the periodic checks.
    fn tick(&mut self) {
        let now_ns = self.now_ns();
        if now_ns < self.ticked_ns + TICK_NS {
            return;
        }
        self.ticked_ns = now_ns;
        let is_away = self.core.is_away.load(Ordering::Relaxed);
        if is_away && self.looks_at_ns.is_some_and(|at_ns| now_ns >= at_ns) {
            let look = Request::Ends { part: 0, why: Why::Look };
            self.looks_at_ns = self.asks.try_send(look).is_err().then_some(now_ns + LOOK_NS);
        }
        let timeout_ns = self.settings.timeout_us.saturating_mul(1000);
        self.appends.check(now_ns, timeout_ns);
        let mut answers = Vec::new();
        for part in &self.core.parts {
            let mut fence = part.fence.lock();
            let since_ns =
                if self.core.is_lost() { u64::MAX } else { now_ns.saturating_sub(timeout_ns) };
            fence.overdue(since_ns, &mut answers);
        }
        for (then, answer) in answers {
            then(answer);
        }
        // The events that brokers send unasked arrive here.
        for consumer in [&self.tails, &self.reads] {
            while consumer.poll(Duration::ZERO).is_some() {}
        }
    }

    fn trim(&mut self, index: usize, below: u64) {
        let (part, side) = (&self.core.parts[index], &mut self.sides[index]);
        if below <= side.trimmed || self.core.is_lost() {
            return;
        }
        let deletes = part.topic == Topic::Cuts || self.settings.deletes;
        let mut delete = deletes.then_some(below);
        let mut known = None;
        let mut say = None;
        if part.is_fenced() {
            let mut fence = part.fence.lock();
            if part.topic != Topic::Cuts && self.appends.highest(index) > 0 {
                // Outputs are not read back. The outputs on which a snapshot relies are before the
                // next beginning (see the crate's documentation). So no generation begins between
                // this process's beginning and that offset.
                fence.skip(below);
            }
            if below > fence.scanned() || below < fence.base() {
                return;
            }
            let (generation, begun) = (fence.before(below), fence.begun(below));
            known = Some(Known { offset: below, generation, begun });
            fence.forget(below);
            // The newest beginning stays, so that a reader from the first record on learns of it.
            delete = delete.and(begun);
            let is_long_ago = begun.is_none_or(|begun| below - begun > SAY_AGAIN);
            say = (generation > 0 && is_long_ago).then_some(generation);
        }
        side.trimmed = below;
        // If there is no room, the next trim repeats the request.
        let _ = self.asks.try_send(Request::Trim { part: index, known, delete });
        if let Some(generation) = say.filter(|say| *say == self.appends.highest(index)) {
            let record = Record::Generation { generation };
            let message = encode(&*self.format, part.topic, generation, &record);
            let core = self.core.clone();
            // The answer does not say whether the record counts. If it does not, nothing after it
            // is trimmed.
            let then: Then<Result<u64, Refused>> = Box::new(move |said| {
                said.into_iter()
                    .for_each(|at| core.parts[index].fence.lock().observe(at, generation));
            });
            self.appends.append(index, generation, (false, false), &message, then);
        }
    }

    /// Answers all that wait, so that none waits for ever.
    fn end(mut self, commands: &Receiver<Command>) {
        commands.try_iter().for_each(|command| self.take(command));
        for side in &mut self.sides {
            while !side.waiting.is_empty() {
                side.answer(None);
            }
        }
        let mut answers = Vec::new();
        for part in &self.core.parts {
            part.fence.lock().overdue(u64::MAX, &mut answers);
        }
        for (then, answer) in answers {
            then(answer);
        }
    }
}

impl Side {
    /// Answers the first of the waiting reads.
    fn answer(&mut self, upto: Option<u64>) {
        if let Some(read) = self.waiting.pop_front() {
            (read.then)(upto.map(|upto| Records { records: read.records, upto }));
        }
    }
}

impl Cursor {
    /// Takes the next message, if there is one. Messages taken before are skipped: when a
    /// partition's leader has changed, the library may fetch them again.
    fn next(
        &mut self,
        core: &Core,
        part: &Part,
        take: impl FnOnce(&Message<'_>) -> Result<(), Error>,
    ) -> Next {
        match self.queue.poll(Duration::ZERO) {
            None => Next::None,
            Some(Ok(found)) => {
                let message = incoming(&found);
                if message.offset < self.position {
                    return Next::Taken;
                }
                self.position = message.offset + 1;
                (self.is_live, self.is_at_end) = (true, false);
                if let Err(error) = take(&message) {
                    core.lose(error);
                }
                Next::Taken
            }
            Some(Err(KafkaError::PartitionEOF(_))) => {
                (self.is_live, self.is_at_end) = (true, true);
                Next::Taken
            }
            Some(Err(error)) => {
                core.note(&error, "");
                if is_missing(&error) {
                    core.suspect_missing(part);
                }
                // This also handles an offset out of range. The request for the ends shows on which
                // side it is.
                Next::Failed
            }
        }
    }
}

/// Takes messages for a read. Returns their number, and whether reading has failed.
fn fill(
    read: &mut Read,
    cursor: &mut Cursor,
    core: &Core,
    part: &Part,
    format: &dyn Format,
) -> (usize, bool) {
    let (mut taken, mut seen) = (0, Vec::new());
    let mut judge = cursor.judge;
    let mut is_failed = false;
    let end = read.end.unwrap_or(u64::MAX);
    while taken < TURN && !read.is_full() && cursor.position < end {
        taken += 1;
        let next = cursor.next(core, part, |message| {
            let mark = if part.is_fenced() { mark(message) } else { Mark::default() };
            if part.is_fenced() {
                seen.push((message.offset, mark));
                if !judge.counts(mark) {
                    return Ok(());
                }
            }
            if message.offset < read.from {
                return Ok(());
            }
            let record = match mark.begins {
                Some(generation) => Ok(Record::Generation { generation }),
                None => decode(format, part, message),
            };
            match record {
                Ok(record) => read.push(message.offset, record),
                Err(Unread::Foreign) => {}
                Err(Unread::Version(version)) => {
                    return Err(part.unread(
                        message.offset,
                        &format!("was written by another version of Tidemill: {version}"),
                        "start the version that has written it",
                    ));
                }
                Err(Unread::Damaged) => {
                    return Err(part.unread(
                        message.offset,
                        "can't be read: it is damaged, or not Tidemill's",
                        "let only Tidemill write to this topic; start again with topics of other names",
                    ));
                }
            }
            Ok(())
        });
        match next {
            Next::Taken => {}
            Next::None => {
                taken -= 1;
                break;
            }
            Next::Failed => {
                is_failed = true;
                break;
            }
        }
    }
    cursor.judge = judge;
    see(part, &seen);
    (taken, is_failed)
}

/// Passes seen records to the fence, without a gap after those seen before.
fn see(part: &Part, seen: &[(u64, Mark)]) {
    if !seen.is_empty() {
        let mut fence = part.fence.lock();
        for (offset, mark) in seen {
            fence.see(*offset, *mark);
        }
    }
}

/// Places a cursor at an offset. If that fails, there is no cursor.
fn assign(
    cursor: &mut Option<Cursor>,
    core: &Arc<Core>,
    consumer: &Arc<BaseConsumer<Listener>>,
    part: &Part,
    from: u64,
    generation: u64,
) {
    // An earlier queue of the partition is dropped first. Its drop removes the wake-ups of all
    // queues of the partition.
    *cursor = None;
    // The queue is taken before the partition is assigned, so that no message goes elsewhere.
    let Some(mut queue) = consumer.split_partition_queue(&part.name, part.partition) else {
        return;
    };
    let woken = core.clone();
    queue.set_nonempty_callback(move || woken.wake());
    let mut list = TopicPartitionList::new();
    let assigned = list
        .add_partition_offset(&part.name, part.partition, offset(from))
        .and_then(|()| consumer.incremental_assign(&list));
    if let Err(error) = assigned {
        return core.note(&error, "");
    }
    let judge = Judge { generation };
    *cursor = Some(Cursor { queue, position: from, judge, is_live: false, is_at_end: false });
}

fn unassign(consumer: &BaseConsumer<Listener>, part: &Part) {
    let mut list = TopicPartitionList::new();
    list.add_partition(&part.name, part.partition);
    // It fails if the partition is not assigned, which is fine.
    let _ = consumer.incremental_unassign(&list);
}
