//! The positions of topics in one process, as several processes have them.
//!
//! One process counts the rows of a partition, and several know the offsets of messages. So the
//! messages between the first event that waits and the position are read again. Workers read them
//! again, too, and find by the watermark, and by the newest time before them, which ones wait.

use std::collections::BTreeMap;

use tidemill_connect::{Chunk, Place};
use tidemill_core::{Error, Position, Result, SourceId, StreamTime};

use super::super::topics::Topics;
use super::{OneState, Waiting};
use crate::begins::StartPositions;
use crate::internal::SourceFacts;
use crate::schema::Left;
use crate::spec::{AppSpec, SourceDecl};

/// The position of a partition.
pub(super) struct TopicAt {
    /// The partition's number among the sources of a cluster.
    pub source: u32,
    /// The offset of the next message.
    pub next: u64,
    /// The first message whose event waits, if any does.
    pub waits: Option<Since>,
    /// The offset of the first event that stands at the watermark's time and waits, or of the next
    /// message. Events of that time before it were executed.
    pub mark: u64,
}

/// The first message whose event waits.
pub(super) struct Since {
    pub record: u64,
    /// A time such that the messages from there on are late if and only if they were late.
    pub newest_us: Option<i64>,
}

/// A row of a partition.
struct Message {
    row: u64,
    offset: u64,
    /// The time of its event. Messages that can't be read have none.
    time_us: Option<i64>,
}

impl OneState {
    /// Finds the positions of the topics' partitions, which are the sources from `first` on.
    ///
    /// # Errors
    /// When other partitions were read, or messages can't be read again.
    pub fn stand(&mut self, spec: &AppSpec, topics: &mut Topics, first: u32) -> Result<()> {
        let decls = spec.sources.iter().filter(|decl| decl.kafka.is_some());
        let Some((_, left, _)) = &self.left else {
            // Nothing was read yet, but it is known where reading begins.
            let begins = StartPositions::read(&*self.env.disk, &self.dir)?;
            let streams: Vec<&str> = decls.map(|decl| &*decl.stream).collect();
            topics.begin_at(|topic, partition| {
                begins.known_source(&format!("{}/{partition}", streams[topic]))?.begin
            });
            return Ok(());
        };
        let (mut found, mut source) = (BTreeMap::new(), first);
        for (topic, (decl, read)) in decls.zip(topics.read()).enumerate() {
            let known = (0..).map(SourceId).zip(&left.internal.facts.sources);
            let prefix = format!("{}/{}/", decl.stream, read.topic());
            let had = known.clone().filter(|(_, facts)| facts.name.starts_with(&prefix));
            if had.count() != read.begins.len() {
                return Err(other_partitions(decl));
            }
            for (nth, (partition, begin)) in read.begins.iter().enumerate() {
                let name = format!("{prefix}{partition}");
                let is_it = |(_, facts): &(SourceId, &SourceFacts)| facts.name == name;
                let (id, facts) =
                    known.clone().find(is_it).ok_or_else(|| other_partitions(decl))?;
                let waiting = self.waiting.get(&id);
                let of = Partition { decl, left, id, facts, waiting, source };
                let mut read = |from, upto| topics.region((topic, nth), from..upto, &self.env);
                let at = of.at(*begin, &mut read).map_err(|error| error.at(decl.at.clone()))?;
                found.insert(id, at);
                source += 1;
            }
        }
        self.topics = found;
        Ok(())
    }
}

fn other_partitions(decl: &SourceDecl) -> Error {
    let what = format!("stream {} was read from other partitions of its topic", decl.stream);
    Error::setting(what)
        .help("let one process read these first: run it without --processes, with --upgrade, and stop it")
        .at(decl.at.clone())
}

/// A partition of one process.
struct Partition<'a> {
    decl: &'a SourceDecl,
    left: &'a Left,
    id: SourceId,
    facts: &'a SourceFacts,
    waiting: Option<&'a Waiting>,
    /// Its number among the sources of a cluster.
    source: u32,
}

type Read<'r> = &'r mut dyn FnMut(u64, u64) -> Result<Vec<Chunk>>;

impl Partition<'_> {
    fn at(&self, begin: u64, read: Read<'_>) -> Result<TopicAt> {
        let Partition { facts, source, .. } = *self;
        let place = match facts.place.offset {
            0 => Place { bytes: facts.place.begin.unwrap_or(begin), ..Place::start() },
            _ => facts.place.clone(),
        };
        let first = self.waiting.map_or(facts.next_offset, |waiting| waiting.rows[0]);
        if first >= facts.next_offset && place.offset == facts.next_offset {
            return Ok(TopicAt { source, next: place.bytes, waits: None, mark: place.bytes });
        }
        let messages = self.messages(&place, first, read)?;
        let next = messages.last().map_or(place.bytes, |last| last.offset + 1);
        let Some(waiting) = self.waiting else {
            return Ok(TopicAt { source, next, waits: None, mark: next });
        };
        let (newest_us, mark) = self.classified(&messages, waiting, next);
        let record = messages.first().map_or(next, |first| first.offset);
        Ok(TopicAt { source, next, waits: Some(Since { record, newest_us }), mark })
    }

    /// Reads the messages of the rows from `first` up to the next one. One process knows the offset
    /// of one row, and between offsets there may be gaps.
    fn messages(&self, place: &Place, first: u64, read: Read<'_>) -> Result<Vec<Message>> {
        let back = place.offset.saturating_sub(first);
        let mut from = place.bytes.checked_sub(back).ok_or_else(|| self.gone())?;
        let mut chunks = loop {
            let chunks = read(from, place.bytes)?;
            let missing = back - chunks.iter().map(|chunk| chunk.rows() as u64).sum::<u64>();
            if missing == 0 {
                break chunks;
            }
            from = from.checked_sub(missing).ok_or_else(|| self.gone())?;
        };
        let (mut upto, ahead) = (place.bytes, self.facts.next_offset - place.offset);
        let mut found = 0;
        while found < ahead {
            let more = read(upto, upto + (ahead - found))?;
            upto += ahead - found;
            let rows = more.iter().map(|chunk| chunk.rows() as u64).sum::<u64>();
            if rows == 0 {
                return Err(self.gone());
            }
            found += rows;
            chunks.extend(more);
        }
        let stream = &self.left.stored.program.streams;
        let stream = stream.iter().find(|stream| *stream.spec.name == *self.decl.stream);
        let column = stream.and_then(|stream| match stream.spec.time {
            StreamTime::Event { column } => Some(column),
            StreamTime::Arrival => None,
        });
        let mut messages = Vec::new();
        for chunk in chunks {
            let times = column.and_then(|column| chunk.batch.ints(column));
            let good = chunk.offsets.iter().enumerate();
            messages.extend(good.map(|(nth, offset)| {
                let time_us = times.map(|times| times[nth]);
                Message { row: 0, offset: *offset, time_us }
            }));
            let bad = chunk.bad.iter();
            messages.extend(bad.map(|bad| Message { row: 0, offset: bad.offset, time_us: None }));
        }
        messages.sort_by_key(|message| message.offset);
        for (row, message) in (first.min(place.offset)..).zip(&mut messages) {
            message.row = row;
        }
        messages.retain(|message| message.row >= first);
        Ok(messages)
    }

    /// Returns a time before the messages such that the same ones are late, and the offset of the
    /// first one that stands at the watermark's time and waits.
    fn classified(&self, messages: &[Message], waiting: &Waiting, next: u64) -> (Option<i64>, u64) {
        let Partition { decl, left, id, facts, .. } = *self;
        let stream = &left.stored.program.streams;
        let number = stream.iter().position(|stream| *stream.spec.name == *decl.stream);
        let marks = &left.internal.facts.watermarks;
        let mark = number.and_then(|number| marks.get(number)).copied().unwrap_or(Position::MIN);
        let (mut newest_us, mut before_us, mut mark_at) = (None, None, None);
        for message in messages {
            let Some(time_us) = message.time_us else { continue };
            let stands_us = waiting.stands_us(message.row);
            if stands_us == Some(mark.time_us) {
                mark_at = mark_at.or(Some(message.offset));
            }
            // The newest time that made it late, or at least that.
            let late_us = match stands_us {
                Some(stands_us) if stands_us == time_us => None,
                Some(stands_us) => Some(stands_us.saturating_add(decl.out_of_orderness_us)),
                // It neither waits nor was it executed.
                None if Position { time_us, source: id, offset: message.row } >= mark => {
                    Some(time_us.saturating_add(decl.out_of_orderness_us).saturating_add(1))
                }
                None => None,
            };
            if late_us.is_some() && before_us < late_us {
                newest_us = newest_us.max(late_us);
            }
            before_us = before_us.max(newest_us).max(Some(time_us));
        }
        // If the newest of all is not among them, it was before them.
        let here_us = messages.iter().filter_map(|message| message.time_us).max();
        if here_us < facts.time_max {
            newest_us = facts.time_max;
        }
        (newest_us, mark_at.unwrap_or(next))
    }

    fn gone(&self) -> Error {
        let what = format!("messages of stream {} that wait can't be found", self.decl.stream);
        Error::input(what).help("run it without --processes until they are executed, and stop it")
    }
}
