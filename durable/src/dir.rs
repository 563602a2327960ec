//! Objects as files of a directory that all processes see.
//!
//! An object is written to a temporary file, which is synced. Then, under a lock that the processes
//! share, it gets its name unless that is taken, and the directory is synced. Temporary files are
//! not objects. Those that crashes leave are removed when they are a day old.

use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crossbeam_channel::{bounded, Receiver, Sender, TrySendError};
use parking_lot::Mutex;
use tidemill_core::{Error, Result};
use tidemill_env::{Env, Lock};

use crate::{is_name, Store, Then, Trouble};

/// The prefix of the names of temporary files. No object has such a name.
const TEMPORARY: &str = ".tmp-";
/// The file whose lock is held while a name is given.
const NAMING: &str = ".naming";
/// The age at which no process can still be writing a temporary file, in microseconds.
const STALE_US: i64 = 86_400_000_000;
/// The maximum number of waiting calls. Further ones fail.
const QUEUE: usize = 1024;
/// The time for which a put waits for the lock of names, which is held only briefly, in
/// microseconds.
const LOCK_WAIT_US: u64 = 10_000_000;

type Job = Box<dyn FnOnce(&Inner) + Send>;

/// A store in a directory of a disk. Several processes of one machine may share it. Several
/// machines may, if the file system has locks for all of them.
///
/// Calls are answered on a few threads of its own, which end after the store has been dropped.
pub struct DirStore {
    jobs: Sender<Job>,
    inner: Arc<Inner>,
}

struct Inner {
    env: Env,
    root: PathBuf,
    /// Held by the thread of this process that gives a name, before it requests the lock of the
    /// file.
    naming: Mutex<()>,
    trouble: Trouble,
}

impl DirStore {
    /// Opens the store in a directory, which is created if missing, with this many threads.
    ///
    /// # Errors
    /// If the directory can't be created or written, or if no thread can be started.
    pub fn open(env: &Env, root: impl Into<PathBuf>, threads: usize) -> Result<DirStore> {
        let root = root.into();
        let failed = |e: &io::Error| {
            Error::io(format!("opening the store {}", root.display()), e)
                .help("the directory must be there for all processes, and may be written by them")
        };
        env.disk.create_dir_all(&root).map_err(|e| failed(&e))?;
        let inner = Inner {
            env: env.clone(),
            root: root.clone(),
            naming: Mutex::default(),
            trouble: Trouble::default(),
        };
        inner.sweep(&root).map_err(|e| failed(&e))?;
        let inner = Arc::new(inner);
        let (jobs, waiting) = bounded::<Job>(QUEUE);
        for n in 0..threads.max(1) {
            let (inner, waiting): (_, Receiver<Job>) = (inner.clone(), waiting.clone());
            let body = move || waiting.iter().for_each(|job| job(&inner));
            let started = env.threads.spawn(&format!("store-{n}"), Box::new(body));
            started.map_err(|e| Error::io("starting a thread of the store", &e))?;
        }
        Ok(DirStore { jobs, inner })
    }

    /// Runs a job on one of the threads. Fails it if too many wait.
    fn run<T: Send + 'static>(
        &self,
        failure: T,
        then: Then<T>,
        act: impl FnOnce(&Inner) -> T + Send + 'static,
    ) {
        // The answer must be given whether or not the queue takes the job.
        let then = Arc::new(Mutex::new(Some(then)));
        let told = then.clone();
        let job: Job = Box::new(move |inner| {
            let answer = act(inner);
            if let Some(then) = told.lock().take() {
                then(answer);
            }
        });
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.jobs.try_send(job)
        {
            let then = then.lock().take();
            if let Some(then) = then {
                then(failure);
            }
        }
    }
}

impl Inner {
    /// Returns the value, or notes a failure as a trouble of the disk.
    fn tried<T>(&self, doing: &str, result: io::Result<T>) -> Option<T> {
        match result {
            Ok(done) => {
                self.trouble.is_over();
                Some(done)
            }
            Err(error) => {
                let root = self.root.display();
                self.trouble.has(format!("the store {root}: {doing}: {error}"));
                None
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        // The whole name is not joined at once, because names have slashes on every system.
        name.split('/').fold(self.root.clone(), |path, segment| path.join(segment))
    }

    /// Removes temporary files that crashes have left.
    fn sweep(&self, dir: &Path) -> io::Result<()> {
        let now_us = self.env.clock.now_us();
        for path in self.env.disk.list(dir)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // Another process may have removed it first.
            let Some(meta) = found(self.env.disk.metadata(&path))? else { continue };
            if meta.is_dir && is_name(&name) {
                self.sweep(&path)?;
            } else if name.starts_with(TEMPORARY) && now_us - meta.modified_us > STALE_US {
                found(self.env.disk.remove(&path))?;
            }
        }
        Ok(())
    }

    /// Puts an object. Returns whether it was new.
    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        let path = self.path(name);
        // Check before the work, as well as under the lock.
        if self.env.disk.exists(&path)? {
            return Ok(false);
        }
        let dir = path.parent().unwrap_or(&self.root);
        self.env.disk.create_dir_all(dir)?;
        let temporary = dir.join(format!("{TEMPORARY}{:016x}", self.env.random.next_u64()));
        let named = self.write(&temporary, bytes).and_then(|()| self.name(&temporary, &path));
        if !matches!(named, Ok(true)) {
            // If this fails, the file is swept later.
            let _ = self.env.disk.remove(&temporary);
        }
        Ok(named? && self.env.disk.sync_dir(dir).is_ok())
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.env.disk.create(path)?;
        file.write_all(bytes)?;
        file.sync()
    }

    /// Gives a file its name, unless that is taken.
    fn name(&self, from: &Path, to: &Path) -> io::Result<bool> {
        let _thread = self.naming.lock();
        let _process = self.lock()?;
        if self.env.disk.exists(to)? {
            return Ok(false);
        }
        self.env.disk.rename(from, to)?;
        Ok(true)
    }

    /// Takes the lock that all processes share.
    fn lock(&self) -> io::Result<Box<dyn Lock>> {
        let path = self.root.join(NAMING);
        let begun_ns = self.env.clock.monotonic_ns();
        loop {
            if let Some(lock) = self.env.disk.try_lock(&path)? {
                return Ok(lock);
            }
            if self.env.clock.monotonic_ns() - begun_ns > LOCK_WAIT_US * 1000 {
                return Err(ErrorKind::TimedOut.into());
            }
            self.env.clock.sleep_us(200);
        }
    }

    fn get(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.env.disk.open_read(&self.path(name))?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        let path = self.path(name);
        if found(self.env.disk.remove(&path))?.is_some() {
            self.env.disk.sync_dir(path.parent().unwrap_or(&self.root))?;
        }
        Ok(())
    }

    /// Adds all objects in a directory and below.
    fn list(&self, dir: &Path, above: &str, names: &mut Vec<String>) -> io::Result<()> {
        let Some(paths) = found(self.env.disk.list(dir))? else { return Ok(()) };
        for path in paths {
            let Some(segment) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if !is_name(segment) {
                continue;
            }
            let name = format!("{above}{segment}");
            match found(self.env.disk.metadata(&path))? {
                // It has been removed since.
                None => {}
                Some(meta) if meta.is_dir => self.list(&path, &format!("{name}/"), names)?,
                Some(_) => names.push(name),
            }
        }
        Ok(())
    }
}

/// Returns `None` instead of the error that there is no such file.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

impl Store for DirStore {
    fn put(&self, name: String, bytes: Vec<u8>, then: Then<bool>) {
        self.run(false, then, move |inner| {
            let put = || inner.tried(&format!("writing {name}"), inner.put(&name, &bytes));
            is_name(&name) && put().unwrap_or(false)
        });
    }

    fn get(&self, name: String, then: Then<Option<Vec<u8>>>) {
        self.run(None, then, move |inner| {
            // A missing object is no trouble of the disk.
            let get = || inner.tried(&format!("reading {name}"), found(inner.get(&name)));
            is_name(&name).then(get).flatten().flatten()
        });
    }

    fn delete(&self, name: String, then: Then<bool>) {
        self.run(false, then, move |inner| {
            let delete = || inner.tried(&format!("deleting {name}"), inner.delete(&name));
            is_name(&name) && delete().is_some()
        });
    }

    fn list(&self, prefix: String, then: Then<Option<Vec<String>>>) {
        self.run(None, then, move |inner| {
            // Only the directory that the prefix names is listed.
            let above = prefix.rsplit_once('/').map_or("", |(above, _)| above);
            if !(above.is_empty() || is_name(above)) {
                return Some(Vec::new());
            }
            let (dir, above) = match above {
                "" => (inner.root.clone(), String::new()),
                above => (inner.path(above), format!("{above}/")),
            };
            let mut names = Vec::new();
            inner.tried("listing", inner.list(&dir, &above, &mut names))?;
            names.retain(|name| name.starts_with(&prefix));
            // Directories sort differently from names: `a-b` comes before `a/b`.
            names.sort_unstable();
            Some(names)
        });
    }

    fn trouble(&self) -> Option<String> {
        self.inner.trouble.now()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use tidemill_sim::SimEnv;

    use super::*;

    fn put(store: &DirStore, name: &str, bytes: &[u8]) -> bool {
        let (send, receive) = channel();
        store.put(name.into(), bytes.into(), Box::new(move |is_put| send.send(is_put).unwrap()));
        receive.recv().unwrap()
    }

    fn get(store: &DirStore, name: &str) -> Option<Vec<u8>> {
        let (send, receive) = channel();
        store.get(name.into(), Box::new(move |bytes| send.send(bytes).unwrap()));
        receive.recv().unwrap()
    }

    #[test]
    fn a_directory_keeps_the_contract() {
        let dir = tempfile::tempdir().unwrap();
        let store = DirStore::open(&Env::real(), dir.path().join("some").join("where"), 4).unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        crate::contract::store(&store);
        let sim = SimEnv::new(1);
        let store: Arc<dyn Store> = Arc::new(DirStore::open(&sim.env(), "/store", 4).unwrap());
        crate::contract::store(&store);
    }

    /// Two stores of one directory act like two processes: only one of them puts.
    #[test]
    fn two_that_share_a_directory_put_once() {
        let dir = tempfile::tempdir().unwrap();
        let stores = [(); 2].map(|()| DirStore::open(&Env::real(), dir.path(), 2).unwrap());
        for round in 0..50 {
            let name = format!("x/{round}");
            let (send, receive) = channel();
            for (store, byte) in stores.iter().zip([1u8, 2]) {
                let send = send.clone();
                let then = Box::new(move |is_put: bool| send.send((byte, is_put)).unwrap());
                store.put(name.clone(), vec![byte], then);
            }
            drop(send);
            let winners: Vec<u8> = receive.iter().filter(|put| put.1).map(|put| put.0).collect();
            assert_eq!(get(&stores[0], &name), Some(winners.clone()), "{winners:?}");
        }
    }

    /// Whichever call fails, and however the machine stops: an object that was put is there, and
    /// any other is there as a whole or not at all.
    #[test]
    fn an_object_is_whole_or_absent_wherever_it_fails() {
        for (nth, how) in (1..30).flat_map(|nth| (0..4).map(move |how| (nth, how))) {
            let sim = SimEnv::new(nth * 10 + how);
            let store = DirStore::open(&sim.env(), "/store", 1).unwrap();
            assert!(put(&store, "x/old", b"old"));
            match how % 2 {
                0 => sim.disk.fail_nth(None, nth, ErrorKind::Other),
                _ => sim.disk.fail_from(None, nth, ErrorKind::StorageFull),
            }
            let is_put = put(&store, "x/new", b"new");
            match how / 2 {
                0 => sim.disk.crash_torn(),
                _ => sim.disk.crash(),
            }
            let store = DirStore::open(&sim.env(), "/store", 1).unwrap();
            assert_eq!(get(&store, "x/old").unwrap(), b"old");
            match get(&store, "x/new") {
                Some(bytes) => assert_eq!(bytes, b"new"),
                None => assert!(!is_put),
            }
        }
    }

    #[test]
    fn only_old_temporary_files_are_swept() {
        let sim = SimEnv::new(1);
        let store = DirStore::open(&sim.env(), "/store", 1).unwrap();
        assert!(put(&store, "x/y", b"1"));
        let left = Path::new("/store/x/.tmp-1");
        sim.env().disk.create(left).unwrap();
        DirStore::open(&sim.env(), "/store", 1).unwrap();
        assert!(sim.env().disk.exists(left).unwrap());
        sim.clock.advance_us(2 * STALE_US as u64);
        DirStore::open(&sim.env(), "/store", 1).unwrap();
        assert!(!sim.env().disk.exists(left).unwrap());
    }
}
