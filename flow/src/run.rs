//! Running a flow: starting its workers, catching errors, and ending.

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidemill_core::{Error, Result};

use crate::deposit::{Deposits, Mailbox};
use crate::gate::Gate;
use crate::source::{Progress, Reader};
use crate::spec::{Conductor, Input, Spec};
use crate::worker::{Lead, Worker};

/// Runs the flow until the conductor or the gate stops it. The calling thread becomes the first
/// worker. The others get their own threads.
///
/// # Errors
/// The first error of an ingress, a transform or the conductor. A panic in any of them is an error,
/// too.
pub fn run(spec: Spec, gate: Arc<Gate>, conductor: Box<dyn Conductor>) -> Result<()> {
    let Spec { env, workers, inputs, rows_max, park_us } = spec;
    check(&inputs, workers, rows_max)?;
    let fault = Arc::new(FirstError::default());
    let mailbox = Arc::new(Mailbox::default());
    let progress: Vec<Progress> = inputs.iter().map(|_| Progress::default()).collect();
    let mut readers: Vec<Vec<Reader>> = (0..workers).map(|_| Vec::new()).collect();
    for (Input { source, worker, ingress, branches }, progress) in inputs.into_iter().zip(&progress)
    {
        readers[worker].push(Reader::new(source, ingress, branches, progress.clone()));
    }
    let deposits = Deposits::new(gate.clone());
    let mut lead = Some(Lead { conductor, deposits, progress });
    let mut all = readers.into_iter().map(|readers| Worker {
        gate: gate.clone(),
        mailbox: mailbox.clone(),
        readers,
        lead: lead.take(),
        rows_max,
        park: Duration::from_micros(park_us),
    });
    let first = all.next().expect("there is a worker");
    let mut threads = Vec::new();
    for (index, worker) in (1..).zip(all) {
        let (gate, of) = (gate.clone(), fault.clone());
        let body = move || guarded(index, worker, &gate, &of);
        match env.threads.spawn(&format!("tidemill-flow-{index}"), Box::new(body)) {
            Ok(thread) => threads.push(thread),
            Err(error) => fault.set(Error::io("starting a worker's thread", &error)),
        }
    }
    if fault.get().is_some() {
        gate.stop();
    }
    guarded(0, first, &gate, &fault);
    for thread in threads {
        if let Err(panic) = thread.join() {
            fault.set(Error::internal(format!("a worker's end panicked: {panic}")));
        }
    }
    fault.get().map_or(Ok(()), Err)
}

/// The first error of the run.
#[derive(Debug, Default)]
struct FirstError(Mutex<Option<Error>>);

impl FirstError {
    /// Retains `error` if it is the first one.
    fn set(&self, error: Error) {
        self.0.lock().get_or_insert(error);
    }

    fn get(&self) -> Option<Error> {
        self.0.lock().clone()
    }
}

/// Refuses invalid inputs.
fn check(inputs: &[Input], workers: usize, rows_max: usize) -> Result<()> {
    if workers == 0 || rows_max == 0 {
        return Err(Error::internal("a flow needs a worker, and polls of at least one row"));
    }
    for (i, input) in inputs.iter().enumerate() {
        let source = input.source.0;
        if input.worker >= workers {
            return Err(Error::internal(format!("source {source} has no worker")));
        }
        if inputs[..i].iter().any(|other| other.source == input.source) {
            return Err(Error::internal(format!("source {source} is read twice")));
        }
    }
    Ok(())
}

/// Runs a worker to its end. It never panics. Any error or panic in it becomes the error of the
/// run, and stops the others.
fn guarded(index: usize, mut worker: Worker, gate: &Gate, fault: &FirstError) {
    let guard = |outcome: std::thread::Result<Result<()>>| {
        let error = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(panic) => panicked(index, &*panic),
        };
        fault.set(error);
    };
    guard(catch_unwind(AssertUnwindSafe(|| worker.run())));
    gate.stop();
    // Sources and the conductor may panic when they are dropped.
    let Worker { readers, lead, .. } = worker;
    for reader in readers {
        guard(catch_unwind(AssertUnwindSafe(|| {
            drop(reader);
            Ok(())
        })));
    }
    guard(catch_unwind(AssertUnwindSafe(|| {
        drop(lead);
        Ok(())
    })));
}

fn panicked(index: usize, panic: &(dyn Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message");
    Error::internal(format!("worker {index} panicked: {text}"))
}
