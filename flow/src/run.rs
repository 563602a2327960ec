//! Running a flow: starting its workers, catching errors, and ending.

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidemill_core::{Error, Result};
use timely::communication::allocator::thread::Thread;
use timely::communication::allocator::zero_copy::allocator::TcpBuilder;
use timely::communication::allocator::ProcessBuilder;
use timely::communication::{Allocator, Hooks};
use timely::worker::Worker;
use timely::WorkerConfig;

use crate::gate::Gate;
use crate::post::Post;
use crate::spec::{Conductor, Input, Spec};
use crate::worker::{work, Part, Shape, Shared};

/// Runs the flow in the first (or only) process, until the conductor or the gate stops it. The
/// calling thread becomes the first worker. The others get their own threads.
///
/// # Errors
/// The first error of an ingress, a transform, the conductor or, in a mesh, of another process. A
/// panic in any of them is an error, too.
pub fn run(spec: Spec, gate: Arc<Gate>, conductor: Box<dyn Conductor>) -> Result<()> {
    if spec.mesh.as_ref().is_some_and(|mesh| mesh.rank() != 0) {
        return Err(Error::internal("only the first process of a mesh has a conductor"));
    }
    launch(spec, gate, Some(conductor))
}

/// Runs the flow in another process of a mesh, until the first one stops. The gate obeys that of
/// the first process.
///
/// # Errors
/// As in [`run`].
pub fn follow(spec: Spec, gate: Arc<Gate>) -> Result<()> {
    if spec.mesh.as_ref().is_none_or(|mesh| mesh.rank() == 0) {
        return Err(Error::internal("only the other processes of a mesh can follow"));
    }
    launch(spec, gate, None)
}

/// The first error of the run.
#[derive(Debug, Default)]
pub(crate) struct FirstError(Mutex<Option<Error>>);

impl FirstError {
    /// Retains `error` if it is the first one.
    pub(crate) fn set(&self, error: Error) {
        self.0.lock().get_or_insert(error);
    }

    fn get(&self) -> Option<Error> {
        self.0.lock().clone()
    }
}

/// The means by which a worker's thread makes its allocator, which has timely's channels to the
/// other workers.
enum Seat {
    /// The only worker.
    Single,
    /// One of several in one process. Values move between threads without encoding.
    Process(ProcessBuilder),
    /// One of a mesh.
    Mesh(TcpBuilder),
}

impl Seat {
    fn allocator(self) -> Allocator {
        match self {
            Seat::Single => Allocator::Thread(Thread::default()),
            Seat::Process(builder) => Allocator::Process(builder.build()),
            Seat::Mesh(builder) => Allocator::Tcp(builder.build()),
        }
    }
}

fn launch(spec: Spec, gate: Arc<Gate>, mut conductor: Option<Box<dyn Conductor>>) -> Result<()> {
    let Spec { env, workers, mesh, inputs, rows_max, park_us } = spec;
    let (rank, processes) = mesh.as_ref().map_or((0, 1), |mesh| (mesh.rank(), mesh.processes()));
    check(&inputs, workers, rank, processes, rows_max)?;
    let (shapes, mut ingresses) = split(inputs, workers, rank);
    let shapes = Arc::new(shapes);
    let fault = Arc::new(FirstError::default());
    let process = rank as u32;
    let shared = Shared { gate: gate.clone(), fault: fault.clone(), process, rows_max };

    let (seats, wires) = match mesh {
        None if workers == 1 => (vec![Seat::Single], None),
        None => (builders(workers).into_iter().map(Seat::Process).collect(), None),
        Some(mesh) => {
            let (seats, wires) = mesh.connect(&env, builders(workers))?;
            (seats.into_iter().map(Seat::Mesh).collect(), Some(wires))
        }
    };
    let mut starts = Vec::new();
    for (index, seat) in seats.into_iter().enumerate() {
        let part = Part {
            shared: shared.clone(),
            shapes: shapes.clone(),
            ingresses: std::mem::take(&mut ingresses[index]),
            conductor: conductor.take(),
            leads: index == 0,
            processes,
            workers,
            park: Duration::from_micros(park_us),
        };
        starts.push((index, seat, part));
    }
    let mut starts = starts.into_iter();
    let first = starts.next();
    let mut threads = Vec::new();
    for (index, seat, part) in starts {
        let body = move || seated(index, seat, part);
        match env.threads.spawn(&format!("tidemill-flow-{index}"), Box::new(body)) {
            Ok(thread) => threads.push(thread),
            // The workers that have started wait for this one's channels. They see them dropped,
            // and give up.
            Err(error) => fault.set(Error::io("starting a worker's thread", &error)),
        }
    }
    if let (Some((index, seat, part)), None) = (first, fault.get()) {
        seated(index, seat, part);
    }
    for thread in threads {
        if let Err(panic) = thread.join() {
            fault.set(Error::internal(format!("a worker's end panicked: {panic}")));
        }
    }
    if let Some(wires) = wires {
        wires.close(fault.get().is_some());
    }
    fault.get().map_or(Ok(()), Err)
}

/// Refuses invalid inputs.
fn check(
    inputs: &[Input],
    workers: usize,
    rank: usize,
    processes: usize,
    rows_max: usize,
) -> Result<()> {
    if workers == 0 || rows_max == 0 {
        return Err(Error::internal("a flow needs a worker, and polls of at least one row"));
    }
    for (i, input) in inputs.iter().enumerate() {
        let source = input.source.0;
        if input.worker >= workers * processes {
            return Err(Error::internal(format!("source {source} has no worker")));
        }
        if input.ingress.is_some() != (input.worker / workers == rank) {
            return Err(Error::internal(format!(
                "source {source} belongs to process {}: its ingress must be there, and only there",
                input.worker / workers
            )));
        }
        if inputs[..i].iter().any(|other| other.source == input.source) {
            return Err(Error::internal(format!("source {source} is read twice")));
        }
    }
    Ok(())
}

type Ingresses = Vec<Option<Box<dyn crate::Ingress>>>;

/// Returns the inputs as all workers know them, and the ingresses of each worker of this process.
fn split(inputs: Vec<Input>, workers: usize, rank: usize) -> (Vec<Shape>, Vec<Ingresses>) {
    let mut mine: Vec<Ingresses> = (0..workers).map(|_| vec![]).collect();
    let mut shapes = Vec::new();
    for mut input in inputs {
        for (index, ingresses) in mine.iter_mut().enumerate() {
            let reads = input.worker == rank * workers + index;
            ingresses.push(if reads { input.ingress.take() } else { None });
        }
        shapes.push(Shape { source: input.source, branches: input.branches });
    }
    (shapes, mine)
}

fn builders(workers: usize) -> Vec<ProcessBuilder> {
    ProcessBuilder::new_typed_vector(workers, Hooks::default().refill, None)
}

/// Runs a worker, from the start of its thread to its end. It never panics. Any error or panic in
/// it becomes the error of the run, and stops the others.
fn seated(index: usize, seat: Seat, part: Part) {
    let Shared { gate, fault, process, .. } = part.shared.clone();
    let leads = part.leads;
    let name = format!("worker {index} of process {process}");
    let guard = |outcome: std::thread::Result<Result<()>>| {
        let error = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(panic) => panicked(&name, &*panic),
        };
        fault.set(error);
        gate.stop();
    };
    let made = catch_unwind(AssertUnwindSafe(|| {
        // Timely needs a start time, from which it measures how long it may park. Its measurements
        // decide nothing else.
        #[allow(clippy::disallowed_methods)]
        let now = Instant::now();
        Worker::new(WorkerConfig::default(), seat.allocator(), Some(now))
    }));
    let mut worker = match made {
        Ok(worker) => worker,
        Err(panic) => return guard(Err(panic)),
    };
    // The worker and the post outlive a panic, so that the other processes can be notified.
    let mut post = None;
    guard(catch_unwind(AssertUnwindSafe(|| work(&mut worker, part, &mut post))));
    gate.stop();
    guard(catch_unwind(AssertUnwindSafe(|| {
        if let (true, Some(post)) = (leads, &mut post) {
            Post::farewell(post, fault.get());
        }
        Ok(())
    })));
    // This also drops the ingresses and the transforms, which may panic.
    guard(catch_unwind(AssertUnwindSafe(|| {
        drop(post);
        drop(worker);
        Ok(())
    })));
}

fn panicked(name: &str, panic: &(dyn Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message");
    // Timely reports the end of a process in the mesh by a panic of its network threads.
    if text.contains("MergeQueue") || text.contains("timely communication error") {
        return Error::new(
            tidemill_core::Kind::Io,
            "the connection to another process of the mesh broke",
        )
        .help("find out why that process ended");
    }
    Error::internal(format!("{name} panicked: {text}"))
}
