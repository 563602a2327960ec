//! Rounds: the execution of procedures (S-Store, sections 2.2 to 2.4).
//!
//! The events of one batch, and all that they trigger, are a *round*. First the handlers that take
//! single events run, depth first, as without procedures. Then each procedure runs once, on all
//! events of the round in its input streams. The order is topological: an emitter runs before the
//! procedures that take its stream. Of two unrelated procedures, the one declared first runs first.
//! When a procedure has committed, handlers of single events take its output at once, and
//! procedures take it in their turn. A round ends before the next begins. So both orders of S-Store
//! hold: that of the dataflow graph and that of each stream.
//!
//! A nested transaction has a turn of its own. Its procedures run one after the other, as one
//! transaction. Others see their output when all of them have committed.
//!
//! An event that a procedure emits has the stamp of its batch with one step. The step holds the
//! procedure's place among all turns, after all handlers, and the ordinal of the event.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_core::{Error, HandlerId, Result, Row, StreamId, Value};

use super::handler::{EventBatch, Handler, Input};
use super::Program;

/// A nested transaction: procedures that run as one transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nested {
    /// Its name.
    pub name: Arc<str>,
    /// Its procedures.
    pub procedures: Vec<HandlerId>,
    /// Pairs of procedures of which the first runs before the second, beyond the order that streams
    /// give.
    #[serde(default)]
    pub before: Vec<(HandlerId, HandlerId)>,
    /// The user's line.
    #[serde(default)]
    pub at: String,
}

/// A turn: procedures that run as one transaction, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    /// The procedures, as indices of handlers.
    pub procedures: Vec<usize>,
    /// The first procedure's step in stamps. The others follow.
    pub step: usize,
}

/// The turns of a program's procedures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turns {
    /// All turns, in their order.
    pub all: Vec<Turn>,
    /// The turn of each procedure and its place there, by handler.
    of: Vec<Option<(usize, usize)>>,
}

impl Turns {
    /// Orders the procedures of a program into turns.
    ///
    /// # Errors
    /// If the procedures form a cycle.
    pub fn of(program: &Program) -> Result<Turns> {
        let handlers = program.handlers.len();
        if !program.handlers.iter().any(Handler::is_procedure) {
            return Ok(Turns { all: Vec::new(), of: vec![None; handlers] });
        }
        // The graph node of each handler: its own, or that of its nested transaction.
        let mut node: Vec<usize> = (0..handlers).collect();
        for nested in &program.nested {
            let first = nested.procedures.iter().map(|h| h.index()).min().unwrap_or(0);
            nested.procedures.iter().for_each(|h| node[h.index()] = first);
        }
        let edges = edges(program);
        let between = edges.iter().map(|(a, b)| (node[*a], node[*b])).filter(|(a, b)| a != b);
        let nodes: BTreeSet<usize> = node.iter().copied().collect();
        let order = sorted(&nodes, &between.collect(), program)?;
        let (mut all, mut of, mut step) = (Vec::new(), vec![None; handlers], handlers);
        for first in order {
            let members: BTreeSet<usize> = (0..handlers).filter(|h| node[*h] == first).collect();
            if !program.handlers[first].is_procedure() {
                continue;
            }
            let within =
                |edge: &&(usize, usize)| members.contains(&edge.0) && members.contains(&edge.1);
            let inner = edges.iter().filter(within).copied().collect();
            let procedures = sorted(&members, &inner, program)?;
            for (place, procedure) in procedures.iter().enumerate() {
                of[*procedure] = Some((all.len(), place));
            }
            let turn = Turn { step, procedures };
            step += turn.procedures.len();
            all.push(turn);
        }
        Ok(Turns { all, of })
    }

    /// Whether there are no procedures.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

/// Returns the edges between handlers: from emitters to takers, and those that nested transactions
/// declare.
fn edges(program: &Program) -> BTreeSet<(usize, usize)> {
    let mut edges = BTreeSet::new();
    for handler in 0..program.handlers.len() {
        for stream in program.emits(handler) {
            let next = program.handlers_on(stream).filter(|next| *next != handler);
            edges.extend(next.map(|next| (handler, next)));
        }
    }
    let before = program.nested.iter().flat_map(|nested| &nested.before);
    edges.extend(before.map(|(a, b)| (a.index(), b.index())));
    edges
}

/// Returns the nodes in topological order; of several candidates, the one declared first comes
/// next.
fn sorted(
    nodes: &BTreeSet<usize>,
    edges: &BTreeSet<(usize, usize)>,
    program: &Program,
) -> Result<Vec<usize>> {
    let (mut left, mut order) = (nodes.clone(), Vec::new());
    while !left.is_empty() {
        let waits = |node: &&usize| edges.iter().any(|(a, b)| b == *node && left.contains(a));
        let Some(next) = left.iter().find(|node| !waits(node)).copied() else {
            let names: Vec<&str> = left.iter().map(|h| &*program.handlers[*h].name).collect();
            return Err(Error::program(format!(
                "these procedures, with the handlers between them, wait for one another: {}",
                names.join(", ")
            ))
            .help("emit into a stream that none of them takes, or make them one nested transaction")
            .at(program.handlers[*left.iter().next().expect("one is left")].at.clone()));
        };
        left.remove(&next);
        order.push(next);
    }
    Ok(order)
}

/// The remaining work of a round: the events that procedures take, by turn.
#[derive(Debug, Default)]
pub struct Agenda(VecDeque<(usize, Given)>);

impl Agenda {
    /// Adds an event for a procedure to take.
    pub fn add(&mut self, turns: &Turns, procedure: usize, stream: StreamId, event: Row) {
        let (turn, place) = turns.of[procedure].expect("it is a procedure");
        let at = self.0.partition_point(|(other, _)| *other < turn);
        if self.0.get(at).is_none_or(|(other, _)| *other != turn) {
            self.0.insert(at, (turn, Given::default()));
        }
        self.0[at].1.add(place, stream, event, true);
    }

    /// Whether no procedure has events to take.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes and returns the next turn with its events.
    pub fn pop(&mut self) -> Option<(usize, Given)> {
        self.0.pop_front()
    }
}

/// The events that the procedures of a turn take, by place in the turn, in their order.
#[derive(Debug, Default)]
pub struct Given(Vec<Vec<Taken>>);

#[derive(Debug)]
struct Taken {
    stream: StreamId,
    event: Row,
    /// Whether the event comes from outside the turn.
    outside: bool,
}

/// The events that the procedure at a place of a turn has emitted, in their order.
pub type Emitted = (usize, Vec<(StreamId, Vec<Value>)>);

impl Given {
    /// Adds an event for the procedure at this place.
    pub fn add(&mut self, place: usize, stream: StreamId, event: Row, outside: bool) {
        if self.0.len() <= place {
            self.0.resize_with(place + 1, Vec::new);
        }
        self.0[place].push(Taken { stream, event, outside });
    }

    /// Returns the events from outside the turn, each with the place of the procedure that takes
    /// it.
    pub fn outside(&self) -> Vec<(u32, StreamId, Row)> {
        let all =
            (0..).zip(&self.0).flat_map(|(p, given)| given.iter().map(move |taken| (p, taken)));
        let outside = all.filter(|(_, taken)| taken.outside);
        outside.map(|(place, taken)| (place, taken.stream, taken.event.clone())).collect()
    }

    /// Resets to the events from before the turn began.
    pub fn begin(&mut self) {
        self.0.iter_mut().for_each(|given| given.retain(|taken| taken.outside));
    }

    /// Returns the procedure's input, a batch for each stream that it names; `None` without events.
    pub fn batches(&self, procedure: &Handler, place: usize) -> Option<Vec<EventBatch>> {
        let given = self.0.get(place).filter(|given| !given.is_empty())?;
        let of = |stream: StreamId| {
            let of = given.iter().filter(|taken| taken.stream == stream);
            EventBatch { stream, events: of.map(|taken| taken.event.clone()).collect() }
        };
        Some(procedure.inputs().map(|input| of(input.stream)).collect())
    }

    /// Returns the output of an aborted turn: its input, in the streams of the procedures' aborted
    /// events.
    pub fn aborted(&self, program: &Program, turn: &Turn, reason: &str) -> Vec<Emitted> {
        let of = |(place, given): (usize, &Vec<Taken>)| {
            // Stream by stream: the order between events of different streams is undefined.
            let of_input = |input: Input| {
                let events = given.iter().filter(move |t| t.outside && t.stream == input.stream);
                events.map(move |taken| {
                    let mut event = taken.event.to_vec();
                    event.push(Value::str(reason));
                    (input.aborted, event)
                })
            };
            let procedure = &program.handlers[turn.procedures[place]];
            (place, procedure.inputs().flat_map(of_input).collect())
        };
        (0..).zip(&self.0).filter(|(_, given)| !given.is_empty()).map(of).collect()
    }
}
