//! Connections in memory between simulated hosts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tidemill_env::{Addr, Clock, Connection, Listener, Net};

use crate::SimClock;

/// A network in memory. Each simulated process gets a [`SimHost`] with its own address. The path
/// between any two hosts can be cut, healed and reset.
///
/// Bytes arrive in order and at once: there is no simulated delay. A read or write with a timeout
/// ends when the simulated clock has passed it, so another thread must move the clock.
pub struct SimNet {
    shared: Arc<Shared>,
}

/// The network as one host sees it.
///
/// The host can listen on its own address and connect to any. Loopback and unspecified addresses
/// mean the host itself. A Unix socket is a name on the host, with a hidden port behind it; the
/// simulated disk has no file for it.
pub struct SimHost {
    shared: Arc<Shared>,
    ip: IpAddr,
}

struct Shared {
    state: Mutex<State>,
    /// Notified of every change of the state and of the clock.
    changed: Condvar,
    clock: Arc<SimClock>,
}

#[derive(Default)]
struct State {
    listeners: BTreeMap<SocketAddr, Waiting>,
    /// The Unix sockets of hosts, with their addresses in `listeners`.
    paths: BTreeMap<(IpAddr, PathBuf), SocketAddr>,
    links: BTreeMap<u64, Link>,
    next_link: u64,
    /// The pairs of hosts that are cut, the lower address first.
    cuts: BTreeSet<(IpAddr, IpAddr)>,
    last_port: u16,
}

#[derive(Default)]
struct Waiting {
    closed: bool,
    queue: VecDeque<SimConnection>,
}

/// The two sides of a connection: side 0 has connected, side 1 was accepted.
struct Link {
    addrs: [SocketAddr; 2],
    /// The bytes that each side has sent.
    sent: [Pipe; 2],
    reset: bool,
    /// Whether each side has been dropped.
    gone: [bool; 2],
}

/// The bytes in flight in one direction.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    /// Whether the sender has ended the stream.
    ended: bool,
    /// Whether the receiver refuses more bytes.
    refused: bool,
}

/// The number of bytes in flight in one direction above which a write blocks.
const WINDOW: usize = 64 * 1024;

/// The first port for listeners that ask for none, as on most systems.
const FIRST_PORT: u16 = 49152;

fn both(a: IpAddr, b: IpAddr) -> (IpAddr, IpAddr) {
    (a.min(b), a.max(b))
}

impl SimNet {
    /// The host that [`SimEnv::env`](crate::SimEnv::env) uses.
    pub const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    pub(crate) fn new(clock: Arc<SimClock>) -> SimNet {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            clock: clock.clone(),
        });
        let weak = Arc::downgrade(&shared);
        clock.watch(Box::new(move || {
            if let Some(shared) = weak.upgrade() {
                // The lock keeps this from running between a look at the clock and the wait.
                let _state = shared.state.lock();
                shared.changed.notify_all();
            }
        }));
        SimNet { shared }
    }

    /// Returns the network as the host of this address sees it.
    pub fn host(&self, ip: IpAddr) -> SimHost {
        SimHost { shared: self.shared.clone(), ip }
    }

    /// Cuts the path between two hosts, as a pulled cable does, without a report to either.
    ///
    /// Unread bytes and ends of streams do not arrive, writes block when the window is full, and
    /// connecting times out.
    pub fn cut(&self, a: IpAddr, b: IpAddr) {
        self.shared.state.lock().cuts.insert(both(a, b));
    }

    /// Restores the path. Bytes in flight arrive.
    pub fn heal(&self, a: IpAddr, b: IpAddr) {
        self.shared.state.lock().cuts.remove(&both(a, b));
        self.shared.changed.notify_all();
    }

    /// Breaks all connections between two hosts, cut or not. Both sides fail with
    /// `ConnectionReset`, and bytes in flight are lost. New connections can be made.
    pub fn reset(&self, a: IpAddr, b: IpAddr) {
        let mut state = self.shared.state.lock();
        for link in state.links.values_mut() {
            if link.hosts() == both(a, b) {
                link.reset = true;
            }
        }
        self.shared.changed.notify_all();
    }
}

impl Link {
    fn hosts(&self) -> (IpAddr, IpAddr) {
        both(self.addrs[0].ip(), self.addrs[1].ip())
    }
}

impl State {
    /// Returns the link of a living side. A link exists as long as one of its sides.
    fn link(&mut self, id: u64) -> &mut Link {
        self.links.get_mut(&id).expect("a link outlives its sides")
    }

    fn take_port(&mut self, ip: IpAddr) -> SocketAddr {
        loop {
            // Ports are taken in turn, so that none is reused soon.
            self.last_port = self.last_port.wrapping_add(1).max(FIRST_PORT);
            let addr = SocketAddr::new(ip, self.last_port);
            let taken = self.listeners.contains_key(&addr)
                || self.links.values().any(|link| link.addrs.contains(&addr));
            if !taken {
                return addr;
            }
        }
    }
}

impl Shared {
    /// Waits until `step` has a result, or for `timeout_us` microseconds of simulated time.
    fn wait<T>(
        &self,
        timeout_us: Option<u64>,
        mut step: impl FnMut(&mut State) -> Option<io::Result<T>>,
    ) -> io::Result<T> {
        let start_ns = self.clock.monotonic_ns();
        let deadline_ns = timeout_us.map(|us| start_ns.saturating_add(us.saturating_mul(1000)));
        let mut state = self.state.lock();
        loop {
            if let Some(result) = step(&mut state) {
                self.changed.notify_all();
                return result;
            }
            if deadline_ns.is_some_and(|deadline| self.clock.monotonic_ns() >= deadline) {
                return Err(ErrorKind::TimedOut.into());
            }
            self.changed.wait(&mut state);
        }
    }
}

impl SimHost {
    /// Resolves loopback and unspecified addresses to the host's own.
    fn resolve(&self, addr: SocketAddr) -> SocketAddr {
        if addr.ip().is_unspecified() || addr.ip().is_loopback() {
            SocketAddr::new(self.ip, addr.port())
        } else {
            addr
        }
    }
}

fn check_timeout(timeout_us: u64) -> io::Result<()> {
    match timeout_us {
        0 => Err(io::Error::new(ErrorKind::InvalidInput, "a timeout of 0")),
        _ => Ok(()),
    }
}

impl Net for SimHost {
    fn listen(&self, addr: &Addr) -> io::Result<Box<dyn Listener>> {
        let (mut addr, path) = match addr {
            Addr::Tcp(addr) => (self.resolve(*addr), None),
            Addr::Unix(path) => (SocketAddr::new(self.ip, 0), Some(path.clone())),
        };
        if addr.ip() != self.ip {
            return Err(ErrorKind::AddrNotAvailable.into());
        }
        let mut state = self.shared.state.lock();
        if addr.port() == 0 {
            addr = state.take_port(self.ip);
        }
        if let Some(path) = &path {
            let name = (self.ip, path.clone());
            if state.paths.contains_key(&name) {
                return Err(ErrorKind::AddrInUse.into());
            }
            state.paths.insert(name, addr);
        }
        if state.listeners.contains_key(&addr) {
            return Err(ErrorKind::AddrInUse.into());
        }
        state.listeners.insert(addr, Waiting::default());
        Ok(Box::new(SimListener { shared: self.shared.clone(), addr, path }))
    }

    /// Connects to an address. When the path is cut, this sleeps through the whole timeout.
    fn connect(&self, addr: &Addr, timeout_us: u64) -> io::Result<Box<dyn Connection>> {
        check_timeout(timeout_us)?;
        let (addr, path) = match addr {
            Addr::Tcp(addr) => (self.resolve(*addr), None),
            Addr::Unix(path) => {
                let name = (self.ip, path.clone());
                let there = self.shared.state.lock().paths.get(&name).copied();
                (there.ok_or(ErrorKind::ConnectionRefused)?, Some(path.clone()))
            }
        };
        let mut guard = self.shared.state.lock();
        let state = &mut *guard;
        if state.cuts.contains(&both(self.ip, addr.ip())) {
            drop(guard);
            self.shared.clock.sleep_us(timeout_us);
            return Err(ErrorKind::TimedOut.into());
        }
        let own = state.take_port(self.ip);
        let waiting = match state.listeners.get_mut(&addr) {
            Some(waiting) if !waiting.closed => waiting,
            _ => return Err(ErrorKind::ConnectionRefused.into()),
        };
        let id = state.next_link;
        state.next_link += 1;
        let [near, far] = [0, 1].map(|side| {
            SimConnection(Arc::new(Side {
                shared: self.shared.clone(),
                link: id,
                side,
                addrs: [own, addr],
                path: path.clone(),
                read_timeout_us: AtomicU64::new(NEVER),
                write_timeout_us: AtomicU64::new(NEVER),
            }))
        });
        waiting.queue.push_back(far);
        let link =
            Link { addrs: [own, addr], sent: Default::default(), reset: false, gone: [false; 2] };
        state.links.insert(id, link);
        self.shared.changed.notify_all();
        Ok(Box::new(near))
    }
}

struct SimListener {
    shared: Arc<Shared>,
    addr: SocketAddr,
    path: Option<PathBuf>,
}

impl Listener for SimListener {
    fn accept(&self) -> io::Result<(Box<dyn Connection>, Addr)> {
        let connection = self.shared.wait(None, |state| {
            let waiting = state.listeners.get_mut(&self.addr)?;
            if waiting.closed {
                return Some(Err(ErrorKind::NotConnected.into()));
            }
            waiting.queue.pop_front().map(Ok)
        })?;
        let peer = connection.peer_addr()?;
        Ok((Box::new(connection), peer))
    }

    fn local_addr(&self) -> io::Result<Addr> {
        Ok(self.path.as_deref().map_or(self.addr.into(), Addr::from))
    }

    fn close(&self) {
        let mut state = self.shared.state.lock();
        if let Some(waiting) = state.listeners.get_mut(&self.addr) {
            waiting.closed = true;
        }
        self.shared.changed.notify_all();
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if let Some(path) = self.path.take() {
            state.paths.remove(&(self.addr.ip(), path));
        }
        let waiting = state.listeners.remove(&self.addr);
        drop(state);
        // Drop without the lock: connections that were never accepted take it when they end.
        drop(waiting);
    }
}

/// A handle of one side of a connection.
#[derive(Clone)]
struct SimConnection(Arc<Side>);

struct Side {
    shared: Arc<Shared>,
    link: u64,
    /// The number of the side, 0 or 1: see [`Link`].
    side: usize,
    addrs: [SocketAddr; 2],
    /// The listener's path, for a Unix socket.
    path: Option<PathBuf>,
    read_timeout_us: AtomicU64,
    write_timeout_us: AtomicU64,
}

/// The value for no timeout: no simulated clock gets there.
const NEVER: u64 = u64::MAX;

impl Side {
    /// Returns the address of a side.
    fn addr(&self, side: usize) -> Addr {
        match &self.path {
            None => self.addrs[side].into(),
            Some(path) if side == 1 => Addr::Unix(path.clone()),
            Some(_) => Path::new("").into(),
        }
    }

    fn shutdown(&self, how: Shutdown) {
        let mut state = self.shared.state.lock();
        let link = state.link(self.link);
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            link.sent[self.side].ended = true;
        }
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            link.sent[1 - self.side].refused = true;
        }
        self.shared.changed.notify_all();
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.shutdown(Shutdown::Both);
        let mut state = self.shared.state.lock();
        let link = state.link(self.link);
        link.gone[self.side] = true;
        if link.gone == [true; 2] {
            state.links.remove(&self.link);
        }
    }
}

fn timeout(of: &AtomicU64) -> Option<u64> {
    Some(of.load(Ordering::SeqCst)).filter(|us| *us != NEVER)
}

fn set_timeout(of: &AtomicU64, timeout_us: Option<u64>) -> io::Result<()> {
    timeout_us.map_or(Ok(()), check_timeout)?;
    of.store(timeout_us.unwrap_or(NEVER), Ordering::SeqCst);
    Ok(())
}

impl Read for SimConnection {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Side { shared, link, side, .. } = &*self.0;
        shared.wait(timeout(&self.0.read_timeout_us), |state| {
            let State { links, cuts, .. } = state;
            let link = links.get_mut(link).expect("a link outlives its sides");
            let cut = cuts.contains(&link.hosts());
            let reset = link.reset;
            let pipe = &mut link.sent[1 - side];
            if reset {
                Some(Err(ErrorKind::ConnectionReset.into()))
            } else if buf.is_empty() || pipe.refused {
                Some(Ok(0))
            } else if cut {
                None
            } else if !pipe.bytes.is_empty() {
                Some(pipe.bytes.read(buf))
            } else {
                pipe.ended.then_some(Ok(0))
            }
        })
    }
}

impl Write for SimConnection {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let Side { shared, link, side, .. } = &*self.0;
        shared.wait(timeout(&self.0.write_timeout_us), |state| {
            let State { links, cuts, .. } = state;
            let link = links.get_mut(link).expect("a link outlives its sides");
            let cut = cuts.contains(&link.hosts());
            let reset = link.reset;
            let pipe = &mut link.sent[*side];
            let room = WINDOW - pipe.bytes.len();
            if reset {
                Some(Err(ErrorKind::ConnectionReset.into()))
            } else if pipe.ended || pipe.refused && !cut {
                Some(Err(ErrorKind::BrokenPipe.into()))
            } else if room > 0 || buf.is_empty() {
                let written = room.min(buf.len());
                pipe.bytes.extend(&buf[..written]);
                Some(Ok(written))
            } else {
                None
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection for SimConnection {
    fn try_clone(&self) -> io::Result<Box<dyn Connection>> {
        Ok(Box::new(self.clone()))
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.shutdown(how);
        Ok(())
    }

    fn set_read_timeout(&self, timeout_us: Option<u64>) -> io::Result<()> {
        set_timeout(&self.0.read_timeout_us, timeout_us)
    }

    fn set_write_timeout(&self, timeout_us: Option<u64>) -> io::Result<()> {
        set_timeout(&self.0.write_timeout_us, timeout_us)
    }

    fn local_addr(&self) -> io::Result<Addr> {
        Ok(self.0.addr(self.0.side))
    }

    fn peer_addr(&self) -> io::Result<Addr> {
        Ok(self.0.addr(1 - self.0.side))
    }
}

#[cfg(test)]
// Scoped threads wait on connections that the test keeps.
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;
    use crate::SimEnv;

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    const SECOND_US: u64 = 1_000_000;

    /// Returns a connection from host A to host B, the side of A first, and a listener on B.
    fn pair(sim: &SimEnv) -> (Box<dyn Connection>, Box<dyn Connection>, Box<dyn Listener>) {
        let listener = sim.net.host(B).listen(&SocketAddr::new(B, 0).into()).unwrap();
        let addr = listener.local_addr().unwrap();
        let near = sim.net.host(A).connect(&addr, SECOND_US).unwrap();
        let (far, peer) = listener.accept().unwrap();
        assert_eq!(peer.tcp().unwrap().ip(), A);
        (near, far, listener)
    }

    /// Reads with a timeout of one simulated second, while time passes.
    fn read_for_a_second(sim: &SimEnv, connection: &mut dyn Connection) -> io::Result<u8> {
        connection.set_read_timeout(Some(SECOND_US)).unwrap();
        let mut byte = [0];
        std::thread::scope(|scope| {
            let read = scope.spawn(|| connection.read_exact(&mut byte));
            while !read.is_finished() {
                sim.clock.advance_us(SECOND_US / 10);
                std::thread::yield_now();
            }
            read.join().unwrap()
        })?;
        Ok(byte[0])
    }

    fn kind<T>(result: io::Result<T>) -> ErrorKind {
        result.map(drop).unwrap_err().kind()
    }

    #[test]
    fn the_network_keeps_the_contract() {
        let sim = SimEnv::new(1);
        tidemill_env::contract::net(&sim.env(), Path::new("/run"));
        let mut elsewhere = sim.env();
        elsewhere.net = Arc::new(sim.net.host(A));
        tidemill_env::contract::net(&elsewhere, Path::new("/run"));
        let state = sim.net.shared.state.lock();
        assert!(state.links.is_empty(), "all links and listeners are removed");
        assert!(state.listeners.is_empty() && state.paths.is_empty());
    }

    #[test]
    fn a_host_listens_on_its_own_addresses_only() {
        let sim = SimEnv::new(1);
        let (a, b) = (sim.net.host(A), sim.net.host(B));
        let at = |ip, port| Addr::from(SocketAddr::new(ip, port));
        let elsewhere = a.listen(&at(B, 80));
        assert_eq!(kind(elsewhere), ErrorKind::AddrNotAvailable);
        let everywhere = at(Ipv4Addr::UNSPECIFIED.into(), 80);
        let listener = a.listen(&everywhere).unwrap();
        assert_eq!(listener.local_addr().unwrap(), at(A, 80));
        b.connect(&at(A, 80), SECOND_US).unwrap();
        // The loopback address of B is B itself.
        let own = b.connect(&at(SimNet::LOCALHOST, 80), SECOND_US);
        assert_eq!(kind(own), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_cut_stops_bytes_until_it_is_healed() {
        let sim = SimEnv::new(1);
        let (mut near, mut far, _listener) = pair(&sim);
        near.write_all(b"1").unwrap();
        sim.net.cut(B, A);
        near.write_all(b"2").unwrap();
        let cut = read_for_a_second(&sim, &mut *far);
        assert_eq!(kind(cut), ErrorKind::TimedOut);
        sim.net.heal(A, B);
        assert_eq!(read_for_a_second(&sim, &mut *far).unwrap(), b'1');
        assert_eq!(read_for_a_second(&sim, &mut *far).unwrap(), b'2');
    }

    #[test]
    fn a_cut_hides_the_end_of_a_stream() {
        let sim = SimEnv::new(1);
        let (near, mut far, _listener) = pair(&sim);
        sim.net.cut(A, B);
        drop(near);
        let cut = read_for_a_second(&sim, &mut *far);
        assert_eq!(kind(cut), ErrorKind::TimedOut);
        far.write_all(b"into the void").unwrap();
        sim.net.heal(A, B);
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
        assert_eq!(kind(far.write(b"x")), ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_cut_keeps_connections_from_being_made() {
        let sim = SimEnv::new(1);
        let (_near, _far, listener) = pair(&sim);
        let addr = listener.local_addr().unwrap();
        sim.net.cut(A, B);
        let before = sim.clock.monotonic_ns();
        let cut = sim.net.host(A).connect(&addr, SECOND_US);
        assert_eq!(kind(cut), ErrorKind::TimedOut);
        assert_eq!(sim.clock.monotonic_ns() - before, SECOND_US * 1000);
        // Other hosts are not affected.
        sim.net.host(B).connect(&addr, SECOND_US).unwrap();
        sim.net.heal(A, B);
        sim.net.host(A).connect(&addr, SECOND_US).unwrap();
    }

    #[test]
    fn a_reset_breaks_both_sides_and_loses_bytes() {
        let sim = SimEnv::new(1);
        let (mut near, mut far, listener) = pair(&sim);
        near.write_all(b"lost").unwrap();
        sim.net.reset(A, B);
        let reset = ErrorKind::ConnectionReset;
        assert_eq!(kind(far.read(&mut [0])), reset);
        assert_eq!(kind(far.write(b"x")), reset);
        assert_eq!(kind(near.read(&mut [0])), reset);
        let addr = listener.local_addr().unwrap();
        let mut again = sim.net.host(A).connect(&addr, SECOND_US).unwrap();
        again.write_all(b"x").unwrap();
    }

    #[test]
    fn a_reset_wakes_who_waits() {
        let sim = SimEnv::new(1);
        let (mut near, _far, _listener) = pair(&sim);
        std::thread::scope(|scope| {
            let read = scope.spawn(move || kind(near.read(&mut [0])));
            sim.net.reset(A, B);
            assert_eq!(read.join().unwrap(), ErrorKind::ConnectionReset);
        });
    }

    #[test]
    fn there_is_no_socket_to_be_had() {
        let sim = SimEnv::new(1);
        let (near, mut far, _listener) = pair(&sim);
        assert!(near.into_tcp().is_none());
        assert_eq!(far.read(&mut [0]).unwrap(), 0, "closed");
    }
}
