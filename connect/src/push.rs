//! A source that other threads feed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::Array;
use arrow_schema::DataType;
use parking_lot::{Condvar, Mutex};
use tidemill_core::rules::VALUE_BYTES_MAX;
use tidemill_core::{Batch, BatchBuilder, Error, Result, Schema};

use crate::row::too_long;
use crate::source::{Chunk, Place, Polled, Source, Waker};

/// The limits of a pushed source, after which senders wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushLimits {
    /// The number of rows.
    pub rows: usize,
    /// The bytes of memory.
    pub bytes: usize,
}

impl Default for PushLimits {
    fn default() -> PushLimits {
        PushLimits { rows: 1 << 20, bytes: 64 << 20 }
    }
}

/// How long a sender waits before it checks again.
const WAIT: Duration = Duration::from_secs(1);

/// Creates a source and the handle that feeds it.
///
/// The source ends when it has been [closed](PushHandle::close), or when all handles have been
/// dropped.
pub fn push(schema: Arc<Schema>, limits: PushLimits) -> (PushHandle, PushSource) {
    let shared = Arc::new(Shared {
        schema,
        limits,
        state: Mutex::new(State {
            queue: VecDeque::new(),
            rows: 0,
            bytes: 0,
            sent: 0,
            closed: false,
            source_gone: false,
            handles: 1,
            waker: None,
        }),
        room: Condvar::new(),
    });
    let source = PushSource { shared, offset: 0, begun: false, replay: None, replayed: None };
    (PushHandle { shared: source.shared.clone() }, source)
}

struct Shared {
    schema: Arc<Schema>,
    limits: PushLimits,
    state: Mutex<State>,
    /// Signals that there may be room, or that the source was dropped or closed.
    room: Condvar,
}

struct State {
    queue: VecDeque<Batch>,
    rows: usize,
    bytes: usize,
    /// The number of rows sent so far.
    sent: u64,
    closed: bool,
    source_gone: bool,
    handles: usize,
    waker: Option<Waker>,
}

/// The result of sending a batch without waiting.
#[derive(Clone, Debug)]
pub enum TrySend {
    /// The batch is in the source. The number is that of all rows sent up to its end, by any
    /// handle.
    Sent(u64),
    /// There is no room, and the batch is returned.
    Full(Batch),
}

/// Feeds a [`PushSource`]. Clones feed the same source, and the rows of one sender keep their
/// order.
pub struct PushHandle {
    shared: Arc<Shared>,
}

impl PushHandle {
    /// Returns the schema that batches must have.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.shared.schema
    }

    /// Sends rows, and waits for room. A batch larger than the limits waits for an empty source.
    /// Returns the number of all rows sent up to its end, by any handle.
    ///
    /// # Errors
    /// If the batch does not have the stream's schema, or if the source was dropped.
    pub fn send(&self, batch: Batch) -> Result<u64> {
        let mut batch = batch;
        loop {
            match self.send_within(batch, WAIT)? {
                TrySend::Sent(sent) => return Ok(sent),
                TrySend::Full(back) => batch = back,
            }
        }
    }

    /// Sends rows if there is room.
    ///
    /// # Errors
    /// As [`send`](PushHandle::send).
    pub fn try_send(&self, batch: Batch) -> Result<TrySend> {
        self.send_within(batch, Duration::ZERO)
    }

    /// Sends rows if there is room, or will be within this time.
    ///
    /// # Errors
    /// As [`send`](PushHandle::send).
    pub fn send_within(&self, batch: Batch, wait: Duration) -> Result<TrySend> {
        self.fits(&batch)?;
        let mut state = self.shared.state.lock();
        self.open(&state)?;
        let mut may_wait = !wait.is_zero();
        while !self.has_room(&state, &batch) {
            if !may_wait {
                return Ok(TrySend::Full(batch));
            }
            may_wait = !self.shared.room.wait_for(&mut state, wait).timed_out();
            self.open(&state)?;
        }
        let waker = put(&mut state, batch);
        let sent = state.sent;
        drop(state);
        wake(waker);
        Ok(TrySend::Sent(sent))
    }

    /// Ends the source after the sent rows. Waiting senders fail with an error.
    pub fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        let waker = state.waker.clone();
        drop(state);
        self.shared.room.notify_all();
        wake(waker);
    }

    fn fits(&self, batch: &Batch) -> Result<()> {
        let (theirs, ours) = (batch.schema(), &self.shared.schema);
        if Arc::ptr_eq(theirs, ours) || theirs == ours {
            return bounded(batch);
        }
        Err(Error::program("the sent rows do not have the stream's columns"))
    }

    fn open(&self, state: &State) -> Result<()> {
        if state.source_gone {
            return Err(Error::resource("the rows can't be sent: the engine has stopped")
                .help("send only between the engine's start and its end"));
        }
        if state.closed {
            return Err(Error::program("rows were sent after the stream was closed"));
        }
        Ok(())
    }

    fn has_room(&self, state: &State, batch: &Batch) -> bool {
        let limits = self.shared.limits;
        state.queue.is_empty()
            || state.rows.saturating_add(batch.len()) <= limits.rows
                && state.bytes.saturating_add(data_bytes(batch)) <= limits.bytes
    }
}

/// Refuses values that are longer than values may be.
fn bounded(batch: &Batch) -> Result<()> {
    for (array, column) in batch.columns().iter().zip(&batch.schema().columns) {
        let ends: &[i32] = match array.data_type() {
            DataType::Utf8 => array.as_string::<i32>().value_offsets(),
            DataType::Binary => array.as_binary::<i32>().value_offsets(),
            _ => continue,
        };
        let is_long = |ends: &[i32]| (ends[ends.len() - 1] - ends[0]) as usize > VALUE_BYTES_MAX;
        if !is_long(ends) {
            continue;
        }
        if let Some(row) = ends.windows(2).position(is_long) {
            let (name, len) = (&column.name, (ends[row + 1] - ends[row]) as usize);
            return Err(Error::input(format!("row {row}: column '{name}': {}", too_long(len))));
        }
    }
    Ok(())
}

fn put(state: &mut State, batch: Batch) -> Option<Waker> {
    if batch.is_empty() {
        return None;
    }
    state.rows += batch.len();
    state.sent += batch.len() as u64;
    state.bytes += data_bytes(&batch);
    state.queue.push_back(batch);
    state.waker.clone()
}

// The caller holds no lock, because the waker may poll the source at once.
fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker();
    }
}

impl Clone for PushHandle {
    fn clone(&self) -> PushHandle {
        self.shared.state.lock().handles += 1;
        PushHandle { shared: self.shared.clone() }
    }
}

impl Drop for PushHandle {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.handles -= 1;
        let last = state.handles == 0;
        let waker = state.waker.clone().filter(|_| last);
        drop(state);
        wake(waker);
    }
}

/// Chunks that were taken from a pushed source before, in order.
pub type Replay = Box<dyn Iterator<Item = Result<Chunk>> + Send>;

/// The rows that other threads send. It is not replayable: after a restart, its rows must come from
/// a log, through [`replay`](PushSource::replay).
pub struct PushSource {
    shared: Arc<Shared>,
    offset: u64,
    begun: bool,
    replay: Option<Replay>,
    /// The rest of the last chunk of `replay`.
    replayed: Option<Chunk>,
}

impl PushSource {
    /// Returns these chunks before newly sent rows. The first begins at the present offset, and
    /// each other one where the one before ended. One chunk at a time is in memory.
    ///
    /// # Errors
    /// If rows were returned already.
    pub fn replay(&mut self, chunks: Replay) -> Result<()> {
        if self.begun {
            return Err(Error::internal("a pushed stream is replayed after its beginning"));
        }
        self.replay = Some(chunks);
        Ok(())
    }

    /// Returns at most `rows_max` replayed rows.
    fn poll_replay(&mut self, rows_max: usize) -> Result<Option<Chunk>> {
        while self.replayed.is_none() {
            let Some(replay) = &mut self.replay else { return Ok(None) };
            let Some(chunk) = replay.next() else {
                self.replay = None;
                return Ok(None);
            };
            let chunk = chunk?;
            let rows = chunk.rows() as u64;
            if chunk.next_offset != self.offset + rows || chunk.batch.schema() != self.schema() {
                return Err(Error::internal(format!(
                    "replayed rows of a pushed stream end at row {} and not {rows} rows behind row \
                     {}, or have other columns",
                    chunk.next_offset, self.offset
                )));
            }
            self.replayed = Some(chunk).filter(|_| rows > 0);
        }
        let Some(mut chunk) = self.replayed.take() else { return Ok(None) };
        if chunk.rows() > rows_max {
            let front = chunk.split_off_front(rows_max);
            self.replayed = Some(std::mem::replace(&mut chunk, front));
        }
        self.offset = chunk.next_offset;
        self.begun = true;
        Ok(Some(chunk))
    }
}

impl Source for PushSource {
    fn schema(&self) -> &Arc<Schema> {
        &self.shared.schema
    }

    fn poll(&mut self, rows_max: usize) -> Result<Polled> {
        if let Some(chunk) = self.poll_replay(rows_max)? {
            return Ok(Polled::Rows(chunk));
        }
        let mut state = self.shared.state.lock();
        if state.queue.is_empty() {
            let ended = state.closed || state.handles == 0;
            return Ok(if ended { Polled::End } else { Polled::Pending });
        }
        let mut taken: Vec<Batch> = Vec::new();
        let mut rows = 0;
        while rows < rows_max {
            let Some(batch) = state.queue.pop_front() else { break };
            let room = rows_max - rows;
            let part = if batch.len() > room {
                state.queue.push_front(batch.slice(room, batch.len() - room));
                batch.slice(0, room)
            } else {
                batch
            };
            rows += part.len();
            state.bytes = state.bytes.saturating_sub(data_bytes(&part));
            taken.push(part);
        }
        state.rows -= rows;
        if state.queue.is_empty() {
            state.bytes = 0;
        }
        drop(state);
        self.shared.room.notify_all();
        let batch = concat(&self.shared.schema, taken)?;
        let first = self.offset;
        self.offset += rows as u64;
        self.begun |= rows > 0;
        let offsets = (first..self.offset).collect();
        Ok(Polled::Rows(Chunk { batch, offsets, bad: Vec::new(), next_offset: self.offset }))
    }

    fn offset(&self) -> u64 {
        self.offset
    }

    fn place(&self) -> Place {
        Place::of_rows(self.offset)
    }

    /// Sets the offset of the next row, before the first row only.
    fn resume(&mut self, place: &Place) -> Result<()> {
        if self.begun && place.offset != self.offset {
            let what =
                format!("pushed rows can't be read again (row {} was asked for)", place.offset);
            return Err(Error::input(what).help("send them again, or read them from a file"));
        }
        self.offset = place.offset;
        Ok(())
    }

    fn replayable(&self) -> bool {
        false
    }

    fn set_waker(&mut self, waker: Waker) {
        let old = self.shared.state.lock().waker.replace(waker);
        drop(old);
    }
}

impl Drop for PushSource {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.source_gone = true;
        // These are dropped outside the lock: the waker may own a handle of this source.
        let dropped = (state.waker.take(), std::mem::take(&mut state.queue));
        drop(state);
        drop(dropped);
        self.shared.room.notify_all();
    }
}

/// Returns the bytes of the rows themselves. Unlike memory, which slices share.
fn data_bytes(batch: &Batch) -> usize {
    let span = |offsets: &[i32]| match (offsets.first(), offsets.last()) {
        (Some(first), Some(last)) => (last - first) as usize,
        _ => 0,
    };
    let column = |array: &arrow_array::ArrayRef| match array.data_type() {
        DataType::Boolean => array.len() / 8,
        DataType::Utf8 => 4 * array.len() + span(array.as_string::<i32>().value_offsets()),
        DataType::Binary => 4 * array.len() + span(array.as_binary::<i32>().value_offsets()),
        _ => 8 * array.len(),
    };
    batch.columns().iter().map(column).sum()
}

fn concat(schema: &Arc<Schema>, mut batches: Vec<Batch>) -> Result<Batch> {
    match batches.len() {
        0 => return Ok(BatchBuilder::new(schema.clone()).finish()),
        1 => return Ok(batches.remove(0)),
        _ => {}
    }
    let len = batches.iter().map(Batch::len).sum();
    let columns = (0..schema.len())
        .map(|column| {
            let parts: Vec<&dyn Array> = batches.iter().map(|b| &*b.columns()[column]).collect();
            arrow_select::concat::concat(&parts)
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| Error::internal(format!("joining pushed batches: {e}")))?;
    Ok(Batch::new(schema.clone(), columns, len))
}
