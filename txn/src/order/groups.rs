//! Groups of streams that share a watermark: those that touch a common table, through any cascade,
//! if it is written. Their transactions then run in one order of event time.

use tidemill_core::{DataType, Error, Position, Result, StreamId, StreamTime, TableId};

use crate::program::{Footprint, Origin, Program};

/// The group of each stream.
#[derive(Clone, Debug)]
pub struct Groups {
    /// Per stream: its group. Derived streams and outputs are in the group of their root.
    pub of: Vec<usize>,
    /// The number of groups.
    pub len: usize,
    /// Per group: whether any of its input streams has event time.
    pub event_time: Vec<bool>,
    /// Per table: the group of the streams that touch it; `None` if it is never written.
    pub tables: Vec<Option<usize>>,
}

impl Groups {
    /// Computes the groups of a program. A group that mixes units of time is an error.
    pub fn of(program: &Program) -> Result<Groups> {
        let mut parent: Vec<usize> = (0..program.streams.len()).collect();
        fn find(parent: &mut [usize], mut x: usize) -> usize {
            while parent[x] != x {
                parent[x] = parent[parent[x]];
                x = parent[x];
            }
            x
        }
        let mut join = |a: StreamId, b: StreamId| {
            let (a, b) = (find(&mut parent, a.index()), find(&mut parent, b.index()));
            parent[a.max(b)] = a.min(b);
        };
        for (id, stream) in program.streams.iter().enumerate() {
            if let Origin::Derived { from, .. } = stream.origin {
                join(StreamId(id as u16), from);
            }
        }
        for (index, handler) in program.handlers.iter().enumerate() {
            for stream in program.emits(index).into_iter().chain(handler.inputs().map(|i| i.stream))
            {
                join(stream, handler.input);
            }
        }
        let footprints: Vec<Footprint> =
            (0..program.handlers.len()).map(|h| Footprint::of(program, h)).collect();
        let mut writers = Vec::new();
        for table in 0..program.tables.len() as u16 {
            let touching: Vec<(StreamId, bool)> = (0..program.handlers.len())
                .filter_map(|h| {
                    let (touches, writes) = footprints[h].touches(TableId(table));
                    touches.then_some((program.handlers[h].input, writes))
                })
                .collect();
            let writer = touching.iter().find(|(_, writes)| *writes);
            writers.push(writer.map(|(input, _)| input.index()));
            if writer.is_some() {
                touching.windows(2).for_each(|w| join(w[0].0, w[1].0));
            }
        }
        let mut number = vec![usize::MAX; program.streams.len()];
        let mut len = 0;
        let mut of = Vec::with_capacity(program.streams.len());
        for stream in 0..program.streams.len() {
            let root = find(&mut parent, stream);
            if number[root] == usize::MAX {
                number[root] = len;
                len += 1;
            }
            of.push(number[root]);
        }
        let mut unit: Vec<Option<(&DataType, &str)>> = vec![None; len];
        for (stream, &group) in program.streams.iter().zip(&of) {
            let StreamTime::Event { column } = stream.spec.time else { continue };
            let ty = &stream.spec.schema.columns[column].ty;
            match unit[group] {
                None => unit[group] = Some((ty, &stream.spec.name)),
                Some((other, name)) if other != ty => {
                    return Err(Error::program(format!(
                        "streams {name} and {} share a table, but the time of one is {other} and \
                         of the other {ty}: their events would have no common order",
                        stream.spec.name
                    ))
                    .help("give both a time column of one type")
                    .at(stream.spec.at.clone()))
                }
                Some(_) => {}
            }
        }
        let event_time = unit.iter().map(Option::is_some).collect();
        let tables = writers.into_iter().map(|writer| Some(of[writer?])).collect();
        Ok(Groups { of, len, event_time, tables })
    }

    /// Returns, per table, the time before which nothing can be read or written after a cut with
    /// these watermarks. The retention of versions by time counts from there.
    pub fn frontiers_us(&self, watermarks: &[Position], clock_us: i64) -> Vec<i64> {
        let of = |group: &Option<usize>| {
            let Some(group) = *group else { return i64::MIN };
            if !self.event_time[group] {
                return clock_us;
            }
            let stream = self.of.iter().position(|of| *of == group);
            stream.map_or(i64::MIN, |stream| watermarks[stream].time_us)
        };
        self.tables.iter().map(of).collect()
    }
}
