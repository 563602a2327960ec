//! The mesh: connections between the processes of a run. This crate makes them, with a handshake
//! and deadlines, and hands them to timely.

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

/// The place of a process in a mesh.
#[derive(Clone, Debug)]
pub struct MeshPlan {
    /// A token that only the processes of this run share. A process of another run, or of an
    /// earlier generation, is refused.
    pub token: u128,
    /// The rank of this process, from 0. The first one holds the conductor.
    pub rank: usize,
    /// The address at which each process listens, by rank.
    pub addresses: Vec<SocketAddr>,
    /// The number of workers in each process.
    pub workers: usize,
    /// The time until all must be connected, in microseconds.
    pub deadline_us: u64,
}

/// Connections to all other processes of a run.
pub struct Mesh {
    rank: usize,
    /// The connections by rank, `None` for this process.
    connections: Vec<Option<Box<dyn Connection>>>,
}

/// The time for one connection that sends nothing, in microseconds. So a stray connection does not
/// use up the whole deadline.
const HELLO_US: u64 = 1_000_000;
const RETRY_US: u64 = 2_000;
const MAGIC: &[u8; 8] = b"tidemesh";
const HELLO_LEN: usize = 8 + 16 + 3 * 8;
/// The time that a clean end may take before the connections are cut, in microseconds.
const CLOSE_US: u64 = 5_000_000;

impl Mesh {
    /// Connects to all processes of lower rank, and waits for all of higher rank to connect.
    ///
    /// # Errors
    /// If it is not done by the deadline, or if another process has a different view of the mesh.
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

        // There is no circular wait: answers come from lower ranks only, and the first process
        // waits for none.
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
                            "the process at {address} is not process {peer} of this run"
                        ))
                        .help("stop the processes of an earlier run"));
                    }
                    // The process may not listen yet, or may be busy with others.
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
                return Err(late(&format!("processes {} did not connect", missing.join(", "))));
            }
            // A failed accept is the caller's trouble, or the deadline, which is checked above.
            let Ok((connection, _)) = listener.accept() else { continue };
            if let Ok(Some((peer, connection))) = plan.answer(connection, &hello, left_us()) {
                connections[peer] = Some(connection);
            }
        }
        Ok(Mesh { rank, connections })
    }

    /// Returns the rank of this process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of processes.
    pub fn processes(&self) -> usize {
        self.connections.len()
    }

    /// Hands the connections to timely's network threads.
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
    /// Returns the greeting of process `rank`. All processes must agree about the mesh.
    fn hello(&self, rank: usize) -> [u8; HELLO_LEN] {
        let mut hello = [0; HELLO_LEN];
        hello[..8].copy_from_slice(MAGIC);
        hello[8..24].copy_from_slice(&self.token.to_le_bytes());
        for (i, word) in [rank, self.addresses.len(), self.workers].into_iter().enumerate() {
            hello[24 + 8 * i..32 + 8 * i].copy_from_slice(&(word as u64).to_le_bytes());
        }
        hello
    }

    /// Answers an accepted connection, and returns its sender. Returns `None` if the sender does
    /// not belong to this run, or sent nothing in time.
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
            // The answer shows the sender that it does not belong here.
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
        .help("check that all processes run and reach each other")
}

/// Performs an action at a deadline, unless it is dropped before.
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

/// The rest of the mesh while timely's network threads hold it.
pub(crate) struct Wires {
    guard: CommsGuard,
    /// Clones of the connections, to cut them. Otherwise timely's threads would wait forever.
    clones: Arc<Mutex<Vec<Box<dyn Connection>>>>,
    env: Env,
}

impl Wires {
    /// Ends the network threads after the workers have ended. Their last messages are still
    /// delivered, also after a failure, but then the wait for the answer is short.
    pub(crate) fn close(self, failed: bool) {
        let Wires { guard, clones, env } = self;
        let to_cut = clones.clone();
        let cut = move || {
            for connection in to_cut.lock().iter() {
                // The connection may already be closed.
                let _ = connection.shutdown(Shutdown::Both);
            }
        };
        let patience = if failed { CLOSE_US / 10 } else { CLOSE_US };
        let watchdog = Watchdog::start(&env, patience, cut.clone());
        if watchdog.is_err() {
            cut();
        }
        // It panics if one of its threads has, because a peer has ended. The workers have seen
        // that, too.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(guard)));
    }
}

/// A connection in the form that timely needs. Each of timely's threads has its own clone, so the
/// lock, which makes it `Sync`, is never contended.
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
        // Connections of `env` always block, as timely requires.
        Ok(())
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.lock().shutdown(how)
    }
}
