//! Unix sockets: files that are addresses.

#[cfg(unix)]
pub(super) use here::{connect, listen};

#[cfg(not(unix))]
pub(super) fn listen(_path: &std::path::Path) -> std::io::Result<Box<dyn super::Listener>> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(not(unix))]
pub(super) fn connect(
    _path: &std::path::Path,
    _timeout: std::time::Duration,
) -> std::io::Result<Box<dyn super::Connection>> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(unix)]
mod here {
    use std::fs::{self, DirBuilder, File, Permissions};
    use std::io::{self, Read, Write};
    use std::net::Shutdown;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::super::{timed_out, Addr, Connection, Listener};
    use crate::forks::Held;

    /// The maximum bytes of a socket's path that every system takes (macOS 103, Linux 107).
    const PATH_BYTES_MAX: usize = 103;
    /// The time that a possible listener has to show that it is there.
    const LOOK: Duration = Duration::from_secs(1);

    /// Calls `act` with a name of the file that the system takes. A path that is too long becomes
    /// one through an open handle of its directory.
    fn with_short<T>(path: &Path, act: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        let bytes = path.as_os_str().as_bytes().len();
        if bytes <= PATH_BYTES_MAX {
            return act(path);
        }
        let too_long = || {
            let what = format!(
                "{}: a socket's path has at most {PATH_BYTES_MAX} bytes here, and this one has \
                 {bytes}",
                path.display()
            );
            io::Error::new(io::ErrorKind::InvalidInput, what)
        };
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(too_long());
        };
        let handle = File::open(dir)?;
        let short = Path::new("/proc/self/fd").join(handle.as_raw_fd().to_string());
        let is_there = fs::metadata(&short).is_ok_and(|meta| meta.is_dir());
        let short = short.join(name);
        if !is_there || short.as_os_str().as_bytes().len() > PATH_BYTES_MAX {
            return Err(too_long());
        }
        act(&short)
    }

    pub(in super::super) fn listen(path: &Path) -> io::Result<Box<dyn Listener>> {
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.file_type().is_socket() => {
                let what = format!("{} exists, and is not a socket", path.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
            }
            Ok(_) => match connect(path, LOOK) {
                // The socket of a dead process is replaced.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
                Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
                Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                    return Err(io::ErrorKind::AddrInUse.into());
                }
                Err(e) => return Err(e),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        // It is made in a directory for its owner only, so that it never has wider permissions.
        let private = private_dir(path)?;
        let made = private.join("s");
        let bound = with_short(&made, |made| UnixListener::bind(made)).and_then(|socket| {
            fs::set_permissions(&made, Permissions::from_mode(0o600))?;
            fs::rename(&made, path)?;
            let meta = fs::symlink_metadata(path)?;
            Ok((socket, (meta.dev(), meta.ino())))
        });
        // Only a failure leaves something there.
        let _ = fs::remove_file(&made);
        let _ = fs::remove_dir(&private);
        let (socket, file) = bound?;
        let path = path.to_path_buf();
        let closed = AtomicBool::new(false);
        Ok(Box::new(RealListener { _held: Held::new(&socket), socket, path, file, closed }))
    }

    /// Creates a new directory beside the socket, for its owner only.
    fn private_dir(path: &Path) -> io::Result<PathBuf> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        loop {
            let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let dir = path.with_file_name(format!(".sock-{process}-{count}"));
            match DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => return Ok(dir),
                // A dead process with the same number has left it.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }

    pub(in super::super) fn connect(
        path: &Path,
        timeout: Duration,
    ) -> io::Result<Box<dyn Connection>> {
        if timeout.is_zero() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a timeout of 0"));
        }
        // The standard library has no such timeout. The thread ends with the connection, or when
        // the other side closes.
        let (send, receive) = mpsc::channel();
        let (to, of) = (path.to_path_buf(), path.to_path_buf());
        let body = move || {
            let _ = send.send(with_short(&to, |path| UnixStream::connect(path)));
        };
        std::thread::Builder::new().name("connect".to_owned()).spawn(body)?;
        let connected = receive.recv_timeout(timeout);
        match connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))? {
            Ok(socket) => Ok(Box::new(RealConnection::new(socket, PathBuf::new(), of))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(io::Error::new(io::ErrorKind::ConnectionRefused, e))
            }
            Err(e) => Err(e),
        }
    }

    struct RealListener {
        // Dropped before the socket is closed.
        _held: Held,
        socket: UnixListener,
        path: PathBuf,
        /// The device and number of the file, so that no other file is removed.
        file: (u64, u64),
        closed: AtomicBool,
    }

    impl RealListener {
        fn wake(&self) {
            let shut = self.socket.as_fd().try_clone_to_owned().map(UnixStream::from);
            // This ends all calls of `accept` on Linux. Elsewhere a connection does, and wakes one
            // of them.
            if shut.and_then(|socket| socket.shutdown(Shutdown::Both)).is_err() {
                let _ = connect(&self.path, LOOK);
            }
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
                    self.wake();
                    return Err(io::ErrorKind::NotConnected.into());
                }
                match accepted {
                    Ok((socket, _)) => {
                        let (near, far) = (self.path.clone(), PathBuf::new());
                        let connection = RealConnection::new(socket, near, far.clone());
                        return Ok((Box::new(connection), Addr::Unix(far)));
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
        }

        fn local_addr(&self) -> io::Result<Addr> {
            Ok(Addr::Unix(self.path.clone()))
        }

        fn close(&self) {
            if !self.closed.swap(true, Ordering::SeqCst) {
                self.wake();
            }
        }
    }

    impl Drop for RealListener {
        fn drop(&mut self) {
            let ours = |meta: &fs::Metadata| (meta.dev(), meta.ino()) == self.file;
            if fs::symlink_metadata(&self.path).is_ok_and(|meta| ours(&meta)) {
                // If the file stays, the next listener takes it over.
                let _ = fs::remove_file(&self.path);
            }
        }
    }

    struct RealConnection {
        // Dropped before the socket is closed.
        _held: Held,
        socket: UnixStream,
        near: PathBuf,
        far: PathBuf,
    }

    impl RealConnection {
        fn new(socket: UnixStream, near: PathBuf, far: PathBuf) -> RealConnection {
            RealConnection { _held: Held::new(&socket), socket, near, far }
        }
    }

    impl Read for RealConnection {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            if buf.is_empty() {
                return Ok(0);
            }
            self.socket.read(buf).map_err(timed_out)
        }
    }

    impl Write for RealConnection {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.socket.write(buf).map_err(timed_out)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.socket.flush()
        }
    }

    impl Connection for RealConnection {
        fn try_clone(&self) -> io::Result<Box<dyn Connection>> {
            let (near, far) = (self.near.clone(), self.far.clone());
            Ok(Box::new(RealConnection::new(self.socket.try_clone()?, near, far)))
        }

        fn shutdown(&self, how: Shutdown) -> io::Result<()> {
            self.socket.shutdown(how)
        }

        fn set_read_timeout(&self, timeout_us: Option<u64>) -> io::Result<()> {
            self.socket.set_read_timeout(timeout_us.map(Duration::from_micros))
        }

        fn set_write_timeout(&self, timeout_us: Option<u64>) -> io::Result<()> {
            self.socket.set_write_timeout(timeout_us.map(Duration::from_micros))
        }

        fn local_addr(&self) -> io::Result<Addr> {
            Ok(Addr::Unix(self.near.clone()))
        }

        fn peer_addr(&self) -> io::Result<Addr> {
            Ok(Addr::Unix(self.far.clone()))
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::{Net, RealNet};

        const SECOND_US: u64 = 1_000_000;

        fn mode(path: &Path) -> u32 {
            fs::symlink_metadata(path).expect("a file").permissions().mode() & 0o777
        }

        #[test]
        fn the_file_is_its_owners_and_goes_with_the_listener() {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("s");
            let listener = listen(&path).expect("a listener");
            assert_eq!(mode(&path), 0o600);
            assert_eq!(fs::read_dir(dir.path()).expect("a list").count(), 1, "nothing beside it");
            drop(listener);
            assert!(!path.exists());
        }

        #[test]
        fn what_a_dead_process_has_left_is_replaced_and_nothing_else() {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("s");
            drop(UnixListener::bind(&path).expect("a socket"));
            assert!(path.exists(), "left");
            let listener = listen(&path).expect("a listener");
            connect(&path, LOOK).expect("a connection");
            drop(listener);
            fs::write(&path, "mine").expect("a file");
            let refused = listen(&path).map(|_| ()).expect_err("no socket");
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(fs::read(&path).expect("a file"), b"mine");
        }

        #[test]
        fn paths_of_any_length_do() {
            let dir = tempfile::tempdir().expect("a directory");
            let deep = dir.path().join("d".repeat(90)).join("e".repeat(90));
            fs::create_dir_all(&deep).expect("a directory");
            let addr = Addr::Unix(deep.join("engine.sock"));
            match RealNet::new().listen(&addr) {
                Ok(listener) => {
                    let mut near = RealNet::new().connect(&addr, SECOND_US).expect("connected");
                    let (mut far, _) = listener.accept().expect("a connection");
                    near.write_all(b"x").expect("a byte goes");
                    far.read_exact(&mut [0]).expect("a byte comes");
                    assert_eq!(mode(&deep.join("engine.sock")), 0o600);
                }
                Err(e) if cfg!(target_os = "linux") => panic!("{e}"),
                Err(e) => assert_eq!(e.kind(), io::ErrorKind::InvalidInput, "{e}"),
            }
            let long = Addr::Unix(deep.join("f".repeat(120)));
            let refused = RealNet::new().connect(&long, SECOND_US).map(|_| ()).expect_err("long");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{refused}");
        }

        #[test]
        fn closing_works_without_the_file() {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("s");
            let listener: std::sync::Arc<dyn Listener> = listen(&path).expect("a listener").into();
            let waiting = listener.clone();
            let thread = std::thread::spawn(move || waiting.accept().map(|_| ()).is_err());
            fs::remove_file(&path).expect("removed");
            std::thread::sleep(Duration::from_millis(20));
            listener.close();
            assert!(thread.join().expect("it ends"));
        }
    }
}
