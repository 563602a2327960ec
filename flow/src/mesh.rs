//! The mesh: connections between the processes of a run, made by ourselves with a handshake and
//! deadlines, then handed to timely.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_core::{Error, Result};
use tidemill_env::{Connection, Env, Listener};
use timely::communication::allocator::zero_copy::allocator::TcpBuilder;
use timely::communication::allocator::zero_copy::initialize::{
    initialize_networking_from_sockets, CommsGuard,
};
use timely::communication::allocator::zero_copy::stream::Stream;
use timely::communication::allocator::ProcessBuilder;
use timely::communication::Hooks;

/// How a process takes its place in a mesh.
#[derive(Clone, Debug)]
pub struct MeshPlan {
    /// What all processes of this run share, and no others: a process of another run, or of an
    /// earlier generation, is turned away.
    pub token: u128,
    /// This process, from 0. The first one holds the conductor.
    pub rank: usize,
    /// Where each process listens, by rank.
    pub addresses: Vec<SocketAddr>,
    /// Workers in each process.
    pub workers: usize,
    /// How long it may take until all are connected, in microseconds.
    pub deadline_us: u64,
}

/// Connections to all other processes of a run.
pub struct Mesh {
    rank: usize,
    /// By rank; `None` for this process.
    connections: Vec<Option<Box<dyn Connection>>>,
}

/// Patience with one connection that says nothing, so that a stray one does not use up the whole
/// deadline.
const HELLO_US: u64 = 1_000_000;
const RETRY_US: u64 = 2_000;
const MAGIC: &[u8; 8] = b"tidemesh";
const HELLO_LEN: usize = 8 + 16 + 3 * 8;
/// How long an orderly end may take before the connections are cut.
const CLOSE_US: u64 = 5_000_000;

impl Mesh {
    /// Connects to all processes of lower rank and waits for all of higher rank to connect here.
    ///
    /// # Errors
    /// When it is not done by the deadline, or another process has another idea of the mesh.
    pub fn form(env: &Env, listener: Arc<dyn Listener>, plan: &MeshPlan) -> Result<Mesh> {
        let (rank, processes) = (plan.rank, plan.addresses.len());
        if rank >= processes {
            return Err(Error::internal(format!("rank {rank} in a mesh of {processes}")));
        }
        let end_ns = env.clock.monotonic_ns() + plan.deadline_us * 1000;
        let left_us = || end_ns.saturating_sub(env.clock.monotonic_ns()) / 1000;
        let hello = plan.hello(rank);
        let mut connections: Vec<Option<Box<dyn Connection>>> =
            (0..processes).map(|_| None).collect();

        // Nobody waits for an answer in a circle: answers come from lower ranks only, and the
        // first process waits for none.
        for (peer, lower) in connections.iter_mut().enumerate().take(rank) {
            let address = plan.addresses[peer];
            while lower.is_none() {
                let left = left_us();
                if left == 0 {
                    return Err(late(&format!("process {peer} at {address} did not answer")));
                }
                match call(env, address, &hello, left) {
                    Ok((connection, answer)) if answer == plan.hello(peer) => {
                        *lower = Some(connection);
                    }
                    Ok(_) => {
                        return Err(Error::setting(format!(
                            "what answers at {address} is not process {peer} of this run"
                        ))
                        .help("stop what is left of an earlier run"));
                    }
                    // It may not listen yet, or be held up by others.
                    Err(_) => env.clock.sleep_us(RETRY_US.min(left)),
                }
            }
        }
        let to_close = listener.clone();
        let _watchdog = Watchdog::start(env, left_us(), move || to_close.close())?;
        while connections.iter().skip(rank + 1).any(Option::is_none) {
            if left_us() == 0 {
                let missing: Vec<String> = (rank + 1..processes)
                    .filter(|peer| connections[*peer].is_none())
                    .map(|peer| peer.to_string())
                    .collect();
                return Err(late(&format!("processes {} did not come", missing.join(", "))));
            }
            // A failed accept is the caller's trouble, or the deadline, seen above.
            let Ok((connection, _)) = listener.accept() else { continue };
            if let Ok(Some((peer, connection))) = plan.answer(connection, &hello, left_us()) {
                connections[peer] = Some(connection);
            }
        }
        Ok(Mesh { rank, connections })
    }

    /// This process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of processes.
    pub fn processes(&self) -> usize {
        self.connections.len()
    }

    /// Gives the connections to timely's network threads.
    pub(crate) fn connect(
        self,
        env: &Env,
        builders: Vec<ProcessBuilder>,
    ) -> Result<(Vec<TcpBuilder>, Wires)> {
        let failed = |e: io::Error| Error::io("handing a connection of the mesh to timely", &e);
        let workers = builders.len();
        let mut clones = Vec::new();
        for connection in self.connections.iter().flatten() {
            clones.push(connection.try_clone().map_err(failed)?);
        }
        let sockets = self.connections.into_iter().map(|c| c.map(|c| Wire(Mutex::new(c))));
        let sockets = sockets.collect();
        let hooks = Hooks::default();
        let (seats, guard) =
            initialize_networking_from_sockets(builders, sockets, self.rank, workers, hooks)
                .map_err(failed)?;
        Ok((seats, Wires { guard, clones: Arc::new(Mutex::new(clones)), env: env.clone() }))
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mesh")
            .field("rank", &self.rank)
            .field("processes", &self.processes())
            .finish_non_exhaustive()
    }
}

impl MeshPlan {
    /// What process `rank` says of itself. All must be of one mind about the mesh.
    fn hello(&self, rank: usize) -> [u8; HELLO_LEN] {
        let mut hello = [0; HELLO_LEN];
        hello[..8].copy_from_slice(MAGIC);
        hello[8..24].copy_from_slice(&self.token.to_le_bytes());
        for (i, word) in [rank, self.addresses.len(), self.workers].into_iter().enumerate() {
            hello[24 + 8 * i..32 + 8 * i].copy_from_slice(&(word as u64).to_le_bytes());
        }
        hello
    }

    /// Whom an accepted connection is from, after answering. `None`: from nobody of this run, or
    /// it said nothing in time.
    fn answer(
        &self,
        mut connection: Box<dyn Connection>,
        hello: &[u8],
        left_us: u64,
    ) -> io::Result<Option<(usize, Box<dyn Connection>)>> {
        connection.set_read_timeout(Some(left_us.clamp(1, HELLO_US)))?;
        let mut said = [0; HELLO_LEN];
        connection.read_exact(&mut said)?;
        let higher = self.rank + 1..self.addresses.len();
        let Some(peer) = higher.into_iter().find(|peer| said == self.hello(*peer)) else {
            // Our answer tells it that it is wrong here.
            connection.write_all(hello)?;
            return Ok(None);
        };
        connection.write_all(hello)?;
        connection.set_read_timeout(None)?;
        Ok(Some((peer, connection)))
    }
}

fn call(
    env: &Env,
    address: SocketAddr,
    hello: &[u8],
    left_us: u64,
) -> io::Result<(Box<dyn Connection>, [u8; HELLO_LEN])> {
    let mut connection = env.net.connect(&address.into(), left_us)?;
    connection.set_read_timeout(Some(left_us))?;
    connection.write_all(hello)?;
    let mut answer = [0; HELLO_LEN];
    connection.read_exact(&mut answer)?;
    connection.set_read_timeout(None)?;
    Ok((connection, answer))
}

fn late(what: &str) -> Error {
    Error::new(tidemill_core::Kind::Io, format!("the mesh was not complete in time: {what}"))
        .help("see whether all processes run and reach each other")
}

/// Does something at a deadline, unless it is dropped before.
struct Watchdog(Arc<AtomicBool>);

impl Watchdog {
    fn start(env: &Env, us: u64, bite: impl FnOnce() + Send + 'static) -> Result<Watchdog> {
        let done = Arc::new(AtomicBool::new(false));
        let (clock, watched) = (env.clock.clone(), done.clone());
        let end_ns = clock.monotonic_ns() + us * 1000;
        let body = move || {
            while !watched.load(Ordering::Acquire) {
                if clock.monotonic_ns() >= end_ns {
                    return bite();
                }
                clock.sleep_us(RETRY_US);
            }
        };
        let thread = env.threads.spawn("tidemill-mesh", Box::new(body));
        thread.map_err(|e| Error::io("starting a thread of the mesh", &e))?;
        Ok(Watchdog(done))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What is left of the mesh while timely's network threads hold it.
pub(crate) struct Wires {
    guard: CommsGuard,
    /// Kept to cut the connections: timely's threads wait for ever otherwise.
    clones: Arc<Mutex<Vec<Box<dyn Connection>>>>,
    env: Env,
}

impl Wires {
    /// Ends the network threads. The workers have gone; what they said last is still delivered,
    /// also after a failure, but then nobody waits long for the answer.
    pub(crate) fn close(self, failed: bool) {
        let Wires { guard, clones, env } = self;
        let to_cut = clones.clone();
        let cut = move || {
            for connection in to_cut.lock().iter() {
                // It may be closed already, which is as good.
                let _ = connection.shutdown(Shutdown::Both);
            }
        };
        let patience = if failed { CLOSE_US / 10 } else { CLOSE_US };
        let watchdog = Watchdog::start(&env, patience, cut.clone());
        if watchdog.is_err() {
            cut();
        }
        // It panics when one of its threads has, which says that a peer went away: the workers
        // have seen that, too.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(guard)));
    }
}

/// A connection as timely wants it. Each of timely's threads has its own clone, so the lock, which
/// makes it `Sync`, is never waited for.
struct Wire(Mutex<Box<dyn Connection>>);

impl Read for Wire {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.get_mut().read(buf)
    }
}

impl Write for Wire {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}

impl Stream for Wire {
    fn try_clone(&self) -> io::Result<Wire> {
        Ok(Wire(Mutex::new(self.0.lock().try_clone()?)))
    }

    fn set_nonblocking(&self, _nonblocking: bool) -> io::Result<()> {
        // Connections of `env` always block, which is what timely asks for.
        Ok(())
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.lock().shutdown(how)
    }
}
