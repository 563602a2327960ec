//! A worker: builds the dataflow and runs its loop.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tidemill_core::{Error, Result, SourceId};
use timely::dataflow::operators::Concatenate;
use timely::dataflow::{Scope, Stream};
use timely::worker::Worker;

use crate::deposit::{deposit, Deposits, Sunk};
use crate::filter::filter;
use crate::gate::Gate;
use crate::load::{Item, Load, What};
use crate::map::map;
use crate::post::Post;
use crate::run::FirstError;
use crate::source::{source, Tap};
use crate::spec::{Branch, Conductor, Ingress, Stage, Turn};

/// A stream of loads in timely's dataflow.
pub(crate) type Loads<'scope> = Stream<'scope, u64, Load>;

/// The description of an input that all workers of all processes have.
pub(crate) struct Shape {
    pub(crate) source: SourceId,
    pub(crate) branches: Vec<Branch>,
}

/// The part of the flow that one worker gets.
pub(crate) struct Part {
    pub(crate) shared: Shared,
    pub(crate) shapes: Arc<Vec<Shape>>,
    /// The ingress of each input that this worker reads.
    pub(crate) ingresses: Vec<Option<Box<dyn Ingress>>>,
    /// The conductor, in the first worker of the first process.
    pub(crate) conductor: Option<Box<dyn Conductor>>,
    /// Whether this is the first worker of its process.
    pub(crate) leads: bool,
    pub(crate) processes: usize,
    pub(crate) workers: usize,
    pub(crate) park: Duration,
}

/// The state that all workers of a process share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) gate: Arc<Gate>,
    pub(crate) fault: Arc<FirstError>,
    pub(crate) process: u32,
    pub(crate) rows_max: usize,
}

/// The access of operators to their worker.
#[derive(Clone)]
pub(crate) struct Hand {
    pub(crate) gate: Arc<Gate>,
    pub(crate) rows_max: usize,
    /// Set by sources that found rows. There may be more, so the worker does not park.
    pub(crate) busy: Rc<Cell<bool>>,
    fault: Arc<FirstError>,
    process: u32,
}

impl Hand {
    fn new(shared: Shared) -> Hand {
        let Shared { gate, fault, process, rows_max } = shared;
        Hand { gate, rows_max, busy: Rc::default(), fault, process }
    }

    /// Ends the run with an error.
    pub(crate) fn fail(&self, error: Error) {
        self.fault.set(error);
        self.gate.stop();
    }

    /// An item, charged to the gate of this process.
    pub(crate) fn charged(&self, what: What) -> Item {
        let charge = what.bytes();
        self.gate.charge(charge);
        Item { process: self.process, charge, what }
    }

    /// Updates the charge of something that had `old` bytes and has `new` bytes now.
    pub(crate) fn recharge(&self, old: u64, new: u64) {
        match new.checked_sub(old) {
            Some(more) => self.gate.charge(more),
            None => self.gate.discharge(old - new),
        }
    }
}

/// Builds the dataflow, and runs the loop until the gate stops it. `post` is set in a mesh, and
/// outlives a panic in here.
pub(crate) fn work(worker: &mut Worker, part: Part, post: &mut Option<Post>) -> Result<()> {
    let Part { shared, shapes, ingresses, mut conductor, leads, processes, workers, park } = part;
    let hand = Hand::new(shared);
    let deposits = Deposits::new(hand.gate.clone(), processes);
    let sunk = Sunk { deposits: Rc::new(RefCell::new(deposits)), frontier: Rc::new(Cell::new(0)) };
    let taps = worker.dataflow(|scope| build(scope, &hand, &shapes, ingresses, &sunk));
    if processes > 1 {
        *post = Some(Post::new(worker, workers));
    }
    let gate = hand.gate.clone();
    gate.register(taps.iter().map(|tap| tap.source).collect());

    while !gate.is_stopped() {
        // Every round activates all sources. So they notice a new epoch, and rows that arrived
        // without a wake.
        for tap in taps.iter().filter(|tap| tap.live.get()) {
            tap.activator.activate();
        }
        worker.step();
        let mut more = hand.busy.take();
        if leads {
            if let Some(post) = post {
                post.read(&gate, &hand.fault);
            }
            // If nothing can arrive any more, all epochs that were open are closed.
            gate.set_closed(sunk.frontier.get().min(gate.epoch()));
        }
        if let Some(conductor) = &mut conductor {
            let version = gate.version();
            match conductor.turn(gate.closed(), &mut sunk.deposits.borrow_mut())? {
                Turn::Busy => more = true,
                Turn::Idle => {}
                Turn::Stop => gate.stop(),
            }
            // The sources of this process must follow, too.
            more |= gate.version() != version;
            if let Some(post) = post {
                post.steer(&gate, sunk.deposits.borrow().taken());
            }
        }
        if !more {
            // The worker parks only if timely has nothing to do. A wake between the poll of the
            // sources and this call is not lost, because the thread's token lets it pass.
            worker.step_or_park(Some(park));
        }
    }
    Ok(())
}

/// Builds the dataflow. Timely requires that it is the same in all workers of all processes.
fn build(
    scope: Scope<'_, u64>,
    hand: &Hand,
    shapes: &[Shape],
    ingresses: Vec<Option<Box<dyn Ingress>>>,
    sunk: &Sunk,
) -> Vec<Tap> {
    let mut taps = Vec::new();
    let mut ends = Vec::new();
    for (shape, ingress) in shapes.iter().zip(ingresses) {
        let (outflow, tap) = source(scope, hand, shape.source, &shape.branches, ingress);
        taps.extend(tap);
        ends.push(outflow.direct);
        let staged = shape.branches.iter().filter(|branch| !branch.stages.is_empty());
        for (branch, mut stream) in staged.zip(outflow.staged) {
            for stage in &branch.stages {
                stream = match stage {
                    Stage::Map(transform) => map(stream, hand, transform.clone()),
                    Stage::Filter(transform) => filter(stream, hand, transform.clone()),
                };
            }
            ends.push(stream);
        }
    }
    let all = if ends.len() == 1 { ends.remove(0) } else { scope.concatenate(ends) };
    deposit(all, hand, sunk);
    taps
}
