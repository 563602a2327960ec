//! Stream connections between addresses.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::time::Duration;

use crate::forks::Held;
use crate::{Env, Handle};

mod unix;

/// The address of a listener: `127.0.0.1:80`, `[::1]:80`, `unix:/path`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Addr {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A socket file of this machine. It is empty for a side that has connected to one, and has no
    /// address.
    Unix(PathBuf),
}

impl Addr {
    /// Returns the address and port.
    ///
    /// # Errors
    /// `Unsupported` if it has none.
    pub fn tcp(&self) -> io::Result<SocketAddr> {
        match self {
            Addr::Tcp(addr) => Ok(*addr),
            Addr::Unix(_) => {
                let what = format!("{self} has no port");
                Err(io::Error::new(io::ErrorKind::Unsupported, what))
            }
        }
    }
}

impl Addr {
    /// Whether only processes of this machine can connect to a side with this address.
    pub fn is_of_this_machine(&self) -> bool {
        match self {
            Addr::Tcp(addr) => addr.ip().is_loopback(),
            Addr::Unix(_) => true,
        }
    }
}

impl From<SocketAddr> for Addr {
    fn from(addr: SocketAddr) -> Addr {
        Addr::Tcp(addr)
    }
}

impl From<&Path> for Addr {
    fn from(path: &Path) -> Addr {
        Addr::Unix(path.to_path_buf())
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Tcp(addr) => addr.fmt(f),
            Addr::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Addr {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Addr> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Addr::Unix(path.into()));
        }
        let what = || format!("'{text}' is neither address:port nor unix:/path");
        let tcp = text.parse().map(Addr::Tcp);
        tcp.map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, what()))
    }
}

/// Makes connections: reliable, ordered streams of bytes, like those of TCP. Names are resolved
/// elsewhere.
pub trait Net: Send + Sync {
    /// Listens at an address. Port 0 takes a free one: see [`Listener::local_addr`].
    ///
    /// The file of a Unix socket is for its owner only. It is removed when the listener is dropped,
    /// and one that a dead process has left is replaced. Callers must prevent two simultaneous
    /// attempts at one address, of which the later one would be found.
    ///
    /// # Errors
    /// `AddrInUse` if another process listens there, `AddrNotAvailable` if the address does not
    /// belong to this machine. For Unix sockets: `AlreadyExists` if another file has the name,
    /// `InvalidInput` if the path is too long for this system, and `Unsupported` if the system has
    /// none. Linux takes paths of any length, as long as the file's own name is short.
    fn listen(&self, addr: &Addr) -> io::Result<Box<dyn Listener>>;

    /// Connects to an address, and gives up after `timeout_us` microseconds.
    ///
    /// # Errors
    /// `ConnectionRefused` if no process listens there (or there is no such file), `TimedOut` if
    /// there is no answer, `InvalidInput` for a timeout of 0.
    fn connect(&self, addr: &Addr, timeout_us: u64) -> io::Result<Box<dyn Connection>>;
}

/// Accepts connections. Its address is free again when it is dropped. Connections that have not
/// been accepted by then are closed.
pub trait Listener: Send + Sync {
    /// Blocks until a peer connects. Returns the connection and the peer's address.
    ///
    /// # Errors
    /// `NotConnected` once the listener is [closed](Listener::close). Other kinds may be temporary
    /// (the peer has closed before it was accepted, or no file handle was free), and the next call
    /// may succeed.
    fn accept(&self) -> io::Result<(Box<dyn Connection>, Addr)>;

    /// Returns the address, with the port that was taken.
    ///
    /// # Errors
    /// If the operating system can't tell.
    fn local_addr(&self) -> io::Result<Addr>;

    /// Ends all current and future calls of `accept`.
    fn close(&self);
}

/// One side of a connection. The other side sees the end of the stream when this side and all its
/// clones are dropped. Bytes written leave at once, without waiting for more.
pub trait Connection: Read + Write + Send {
    /// Returns another handle of the same side, so that one thread can read while another writes.
    /// Timeouts are common to all handles.
    ///
    /// # Errors
    /// If no file handle is free.
    fn try_clone(&self) -> io::Result<Box<dyn Connection>>;

    /// Ends reading, writing or both, for all handles of this side. The other side reads the end of
    /// the stream after the last byte written.
    ///
    /// # Errors
    /// `NotConnected` if the connection has ended.
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;

    /// Makes reads fail with `TimedOut` after this many microseconds without a byte. `None` means
    /// never.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of 0.
    fn set_read_timeout(&self, timeout_us: Option<u64>) -> io::Result<()>;

    /// Makes writes fail with `TimedOut` if, for this many microseconds, the other side accepts
    /// nothing and no buffer has room. `None` means never.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of 0.
    fn set_write_timeout(&self, timeout_us: Option<u64>) -> io::Result<()>;

    /// Returns the address of this side.
    ///
    /// # Errors
    /// If the operating system can't tell.
    fn local_addr(&self) -> io::Result<Addr>;

    /// Returns the address of the other side.
    ///
    /// # Errors
    /// `NotConnected` if the connection has ended.
    fn peer_addr(&self) -> io::Result<Addr>;

    /// Returns the socket itself, for libraries that need one. Returns `None` if there is none
    /// behind this connection, which is then closed.
    fn into_tcp(self: Box<Self>) -> Option<TcpStream> {
        None
    }
}

/// TCP and Unix sockets.
#[derive(Debug, Default, Clone, Copy)]
pub struct RealNet;

impl RealNet {
    /// Creates access to TCP and Unix sockets.
    pub fn new() -> RealNet {
        RealNet
    }
}

impl Net for RealNet {
    fn listen(&self, addr: &Addr) -> io::Result<Box<dyn Listener>> {
        match addr {
            Addr::Tcp(addr) => {
                let socket = TcpListener::bind(addr)?;
                let (_held, closed) = (Held::new(&socket), AtomicBool::new(false));
                Ok(Box::new(RealListener { _held, socket, closed }))
            }
            Addr::Unix(path) => unix::listen(path),
        }
    }

    fn connect(&self, addr: &Addr, timeout_us: u64) -> io::Result<Box<dyn Connection>> {
        let timeout = Duration::from_micros(timeout_us);
        match addr {
            Addr::Tcp(addr) => {
                Ok(RealConnection::boxed(TcpStream::connect_timeout(addr, timeout)?))
            }
            Addr::Unix(path) => unix::connect(path, timeout),
        }
    }
}

struct RealListener {
    // Dropped before the socket is closed.
    _held: Held,
    socket: TcpListener,
    closed: AtomicBool,
}

impl RealListener {
    /// Connects to itself, because the standard library has no other way to end a blocked `accept`.
    fn wake(&self) {
        let Ok(mut addr) = self.socket.local_addr() else {
            return;
        };
        if addr.ip().is_unspecified() {
            addr.set_ip(match addr.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        // This may fail if the queue of waiting connections is full, but then no `accept` is
        // blocked.
        let _ = TcpStream::connect_timeout(&addr, Duration::from_secs(1));
    }
}

impl Listener for RealListener {
    fn accept(&self) -> io::Result<(Box<dyn Connection>, Addr)> {
        loop {
            if self.closed.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::NotConnected.into());
            }
            let accepted = self.socket.accept();
            if self.closed.load(Ordering::SeqCst) {
                // One connection wakes one thread, so pass it on. The last one stays in the queue.
                self.wake();
                return Err(io::ErrorKind::NotConnected.into());
            }
            match accepted {
                Ok((socket, peer)) => return Ok((RealConnection::boxed(socket), peer.into())),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn local_addr(&self) -> io::Result<Addr> {
        self.socket.local_addr().map(Addr::Tcp)
    }

    fn close(&self) {
        if !self.closed.swap(true, Ordering::SeqCst) {
            self.wake();
        }
    }
}

struct RealConnection(TcpStream);

impl RealConnection {
    fn boxed(socket: TcpStream) -> Box<dyn Connection> {
        // This affects only speed. If it fails, the connection has ended, and its use will report
        // that.
        let _ = socket.set_nodelay(true);
        Box::new(RealConnection(socket))
    }
}

/// Unix reports a timeout as `WouldBlock`. Nothing else can do so here, because all sockets block.
fn timed_out(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => e,
    }
}

impl Read for RealConnection {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            // Linux would block until there is a byte, although none is to be read.
            return Ok(0);
        }
        self.0.read(buf).map_err(timed_out)
    }
}

impl Write for RealConnection {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Connection for RealConnection {
    fn try_clone(&self) -> io::Result<Box<dyn Connection>> {
        Ok(Box::new(RealConnection(self.0.try_clone()?)))
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.shutdown(how)
    }

    fn set_read_timeout(&self, timeout_us: Option<u64>) -> io::Result<()> {
        self.0.set_read_timeout(timeout_us.map(Duration::from_micros))
    }

    fn set_write_timeout(&self, timeout_us: Option<u64>) -> io::Result<()> {
        self.0.set_write_timeout(timeout_us.map(Duration::from_micros))
    }

    fn local_addr(&self) -> io::Result<Addr> {
        self.0.local_addr().map(Addr::Tcp)
    }

    fn peer_addr(&self) -> io::Result<Addr> {
        self.0.peer_addr().map(Addr::Tcp)
    }

    fn into_tcp(self: Box<Self>) -> Option<TcpStream> {
        Some(self.0)
    }
}

/// It is long, so that a check does not fail because the machine is busy.
const PATIENCE_US: u64 = 20_000_000;

/// Checks the guarantees of [`Net`], on the loopback address and with a Unix socket in the
/// directory `dir`, with the threads and the clock of the same environment.
///
/// # Panics
/// If a guarantee is broken.
pub fn check(env: &Env, dir: &Path) {
    let loopback = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0).into();
    for addr in [loopback, Addr::Unix(dir.join("check.sock"))] {
        check_streams(env, &addr);
        check_timeouts(env, &addr);
        check_close(env, &addr);
        check_refusals(env, &addr);
    }
    let (one, other) = (Addr::Unix(dir.join("one")), Addr::Unix(dir.join("other")));
    let _listener = env.net.listen(&one).expect("a listener");
    let refused = env.net.connect(&other, PATIENCE_US).map(|_| ()).map_err(|e| e.kind());
    assert_eq!(refused, Err(io::ErrorKind::ConnectionRefused), "paths are distinguished");
}

fn start(env: &Env, name: &str, body: impl FnOnce() + Send + 'static) -> Handle {
    env.threads.spawn(name, Box::new(body)).expect("a thread starts")
}

/// Creates both sides of a new connection: the one that connected, and the one that was accepted.
fn pair(env: &Env, at: &Addr) -> (Box<dyn Connection>, Box<dyn Connection>) {
    let listener = env.net.listen(at).expect("a listener");
    let addr = listener.local_addr().expect("an address");
    match &addr {
        Addr::Tcp(addr) => assert_ne!(addr.port(), 0, "a port was taken"),
        Addr::Unix(_) => assert_eq!(addr, *at),
    }
    let near = env.net.connect(&addr, PATIENCE_US).expect("a connection");
    let (far, peer) = listener.accept().expect("a connection");
    assert_eq!(near.peer_addr().expect("an address"), addr);
    assert_eq!(far.local_addr().expect("an address"), addr);
    assert_eq!(near.local_addr().expect("an address"), peer);
    assert_eq!(far.peer_addr().expect("an address"), peer);
    (near, far)
}

fn check_streams(env: &Env, at: &Addr) {
    let (mut near, mut far) = pair(env, at);
    let mut buf = [0; 5];
    near.write_all(b"hello").expect("bytes go");
    near.flush().expect("flush does nothing");
    far.read_exact(&mut buf).expect("bytes come");
    assert_eq!(&buf, b"hello");
    assert_eq!(far.read(&mut []).expect("nothing asked, nothing read"), 0);

    // More than any buffer holds, in both directions at once.
    let bytes: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let (mut echo_in, mut echo_out) = (far.try_clone().expect("a clone"), far);
    let echo = start(env, "echo", move || {
        io::copy(&mut echo_in, &mut echo_out).expect("bytes pass");
    });
    let mut sending = near.try_clone().expect("a clone");
    let sent = bytes.clone();
    let sender = start(env, "sender", move || {
        sending.write_all(&sent).expect("bytes go");
        sending.shutdown(Shutdown::Write).expect("an end");
        assert!(sending.write(b"x").is_err(), "writing has ended");
    });
    let mut received = Vec::new();
    near.read_to_end(&mut received).expect("bytes come");
    assert!(received == bytes, "all bytes, in order");
    assert_eq!(near.read(&mut buf).expect("the end stays"), 0);
    assert_eq!(sender.join(), Ok(()));
    assert_eq!(echo.join(), Ok(()));

    // The end comes with the last handle, after the bytes.
    let (near, mut far) = pair(env, at);
    let mut second = near.try_clone().expect("a clone");
    drop(near);
    second.write_all(b"last").expect("bytes go");
    drop(second);
    let mut received = Vec::new();
    far.read_to_end(&mut received).expect("bytes come");
    assert_eq!(received, b"last");

    // Continued writing shows that the other side has closed.
    let (near, mut far) = pair(env, at);
    drop(near);
    let failed = (0..10_000).any(|_| far.write(&[0; 1024]).is_err());
    assert!(failed, "writing to a closed side fails");
}

fn check_timeouts(env: &Env, at: &Addr) {
    let (near, far) = pair(env, at);
    let refused = |result: io::Result<()>| {
        let kind = result.expect_err("a timeout of 0").kind();
        assert_eq!(kind, io::ErrorKind::InvalidInput);
    };
    refused(near.set_read_timeout(Some(0)));
    refused(near.set_write_timeout(Some(0)));

    // In a simulated environment, time passes only while a thread waits for it.
    let (stop, stopped) = mpsc::channel::<()>();
    let clock = env.clock.clone();
    let ticker = start(env, "ticker", move || {
        while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
            clock.sleep_us(1000);
        }
    });
    let mut near = near;
    let mut far = far;
    near.set_read_timeout(Some(20_000)).expect("a timeout");
    let before = env.clock.monotonic_ns();
    let kind = near.read(&mut [0; 8]).expect_err("a timeout").kind();
    assert_eq!(kind, io::ErrorKind::TimedOut);
    // The kernel counts in ticks of up to 10 ms.
    assert!(env.clock.monotonic_ns() - before >= 10_000_000);

    far.write_all(b"late").expect("bytes go");
    near.set_read_timeout(None).expect("no timeout");
    let mut buf = [0; 4];
    near.read_exact(&mut buf).expect("a timeout does no harm to the stream");

    near.set_write_timeout(Some(20_000)).expect("a timeout");
    let kind = loop {
        if let Err(e) = near.write_all(&[0; 65536]) {
            break e.kind();
        }
    };
    assert_eq!(kind, io::ErrorKind::TimedOut, "no side reads");
    drop(stop);
    assert_eq!(ticker.join(), Ok(()));
}

fn check_close(env: &Env, at: &Addr) {
    let listener: Arc<dyn Listener> = env.net.listen(at).expect("a listener").into();
    let (send, receive) = mpsc::channel();
    let waiting: Vec<Handle> = (0..3)
        .map(|_| {
            let (listener, send) = (listener.clone(), send.clone());
            start(env, "acceptor", move || {
                send.send(()).expect("the receiver is there");
                let kind = listener.accept().map(|_| ()).map_err(|e| e.kind());
                assert_eq!(kind, Err(io::ErrorKind::NotConnected));
            })
        })
        .collect();
    for _ in &waiting {
        receive.recv().expect("a thread has started");
    }
    // This gives them time to block where time is real. The check is correct without it, too.
    env.clock.sleep_us(20_000);
    listener.close();
    listener.close();
    for handle in waiting {
        assert_eq!(handle.join(), Ok(()));
    }
    let kind = listener.accept().map(|_| ()).map_err(|e| e.kind());
    assert_eq!(kind, Err(io::ErrorKind::NotConnected));
}

fn check_refusals(env: &Env, at: &Addr) {
    let kind = |result: io::Result<()>| result.expect_err("a refusal").kind();
    let listener = env.net.listen(at).expect("a listener");
    let addr = listener.local_addr().expect("an address");
    assert_eq!(kind(env.net.listen(&addr).map(|_| ())), io::ErrorKind::AddrInUse);
    assert_eq!(kind(env.net.connect(&addr, 0).map(|_| ())), io::ErrorKind::InvalidInput);

    // A connection that was not accepted ends with the listener.
    let mut waiting = env.net.connect(&addr, PATIENCE_US).expect("a connection");
    drop(listener);
    assert!(!matches!(waiting.read(&mut [0; 1]), Ok(1..)));
    assert_eq!(
        kind(env.net.connect(&addr, PATIENCE_US).map(|_| ())),
        io::ErrorKind::ConnectionRefused
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_net_keeps_the_contract() {
        let dir = tempfile::tempdir().expect("a directory");
        check(&Env::real(), dir.path());
    }

    #[test]
    fn a_real_connection_gives_its_socket() {
        let (near, mut far) = pair(&Env::real(), &"127.0.0.1:0".parse().expect("an address"));
        let mut socket = near.into_tcp().expect("a socket");
        assert!(socket.nodelay().expect("an option"));
        socket.write_all(b"x").expect("a byte goes");
        far.read_exact(&mut [0; 1]).expect("a byte comes");
    }

    #[test]
    fn addresses_as_text() {
        for text in ["127.0.0.1:80", "[::1]:80", "unix:/run/engine.sock"] {
            assert_eq!(text.parse::<Addr>().expect("an address").to_string(), text);
        }
        for text in ["", "unix:", "127.0.0.1", "/run/engine.sock"] {
            assert!(text.parse::<Addr>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_listener_on_all_addresses_closes() {
        for addr in ["0.0.0.0:0", "[::]:0"] {
            let addr = addr.parse().expect("an address");
            // Machines without IPv6 have no such address.
            let Ok(listener) = RealNet::new().listen(&addr) else {
                continue;
            };
            let listener: Arc<dyn Listener> = listener.into();
            let acceptor = listener.clone();
            let handle = start(&Env::real(), "acceptor", move || {
                assert!(acceptor.accept().is_err());
            });
            listener.close();
            assert_eq!(handle.join(), Ok(()));
        }
    }
}
