//! The operations of the store: put, get, delete and list.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::aws::AmazonS3;
use object_store::path::Path;
use object_store::{
    Error as S3Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};
use tidemill_core::{Error, Kind, Result};
use tidemill_durable::{is_name, Store, Then, Trouble};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::options::{Place, S3Options};

/// The largest number of requests in flight.
const AT_ONCE: usize = 32;
/// The largest number of calls that wait. Further ones fail.
const WAITING: usize = 1024;
/// The time before the second try, and the longest one. It doubles with each try.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// The longest time for opening.
const OPENING: Duration = Duration::from_secs(20);
/// The longest quotation of an error, in characters.
const SAID_MAX: usize = 300;
/// The object that is used to test whether the store supports conditions.
const PROBE: &str = ".conditional";

/// A store in a bucket. Its calls are answered on threads of its own, which end after it has been
/// dropped.
pub struct S3Store {
    /// The runtime. It is there until the store is dropped.
    runtime: Option<Runtime>,
    inner: Arc<Inner>,
}

struct Inner {
    client: AmazonS3,
    prefix: String,
    timeout: Duration,
    at_once: Semaphore,
    waiting: AtomicUsize,
    /// The server's address, for people.
    at: String,
    trouble: Trouble,
}

impl S3Store {
    /// Opens the store at `s3://bucket/prefix`.
    ///
    /// # Errors
    /// `Setting` if the URL or an option is wrong, or the store does not support conditions. `Io`
    /// if it can't be reached, has no such bucket, or refuses the keys.
    pub fn open(url: &str, options: &S3Options) -> Result<S3Store> {
        let place = Place::of(url)?;
        let client = options.client(&place)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("s3")
            .enable_all()
            .build()
            .map_err(|e| Error::io("starting threads for S3", &e))?;
        let inner = Arc::new(Inner {
            client,
            prefix: place.prefix.clone(),
            timeout: options.timeout(),
            at_once: Semaphore::new(AT_ONCE),
            waiting: AtomicUsize::new(0),
            at: options.at(),
            trouble: Trouble::default(),
        });
        let opening = OPENING.min(options.timeout());
        // The runtime's own threads drive this, so this works on any thread.
        let probing = inner.clone();
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        runtime.spawn(async move {
            let _ = send.send(timeout(opening, probing.probe()).await);
        });
        let probed = receive.recv().map_err(|_| Error::internal("a thread of S3 has ended"))?;
        let store = S3Store { runtime: Some(runtime), inner };
        match probed {
            Ok(Ok(true)) => Ok(store),
            Ok(Ok(false)) => {
                let what = format!("{} does not put objects on a condition", options.at());
                Err(Error::setting(what).help(
                    "snapshots need a store that honours If-None-Match: Amazon's S3, or MinIO, of 2024-08 \
                     or later",
                ))
            }
            Ok(Err(error)) => Err(options.refused(&place, &error)),
            Err(_) => {
                let what = format!("{} has not answered within {opening:?}", options.at());
                Err(Error::new(Kind::Io, what)
                    .help("check the endpoint, and that this machine may reach it"))
            }
        }
    }

    /// Runs a call on the runtime. If too many calls wait, it fails.
    fn run<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        failure: T,
        then: Then<T>,
        act: impl FnOnce(Arc<Inner>) -> F + Send + 'static,
    ) {
        let inner = self.inner.clone();
        let Some(runtime) = &self.runtime else { return then(failure) };
        if inner.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING {
            inner.waiting.fetch_sub(1, Ordering::Relaxed);
            return then(failure);
        }
        let answer = Answer { then: Some(then), answer: Some(failure) };
        runtime.spawn(async move {
            let permit = inner.at_once.acquire().await;
            let done = act(inner.clone()).await;
            drop(permit);
            inner.waiting.fetch_sub(1, Ordering::Relaxed);
            answer.give(done);
        });
    }
}

/// Gives the answer when it is dropped, so that there is one even if the store is dropped first.
struct Answer<T> {
    then: Option<Then<T>>,
    /// The answer: the failure, until the result is known.
    answer: Option<T>,
}

impl<T> Answer<T> {
    fn give(mut self, answer: T) {
        self.answer = Some(answer);
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let (Some(then), Some(answer)) = (self.then.take(), self.answer.take()) {
            then(answer);
        }
    }
}

impl Drop for S3Store {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Whether another try may succeed.
fn is_passing(error: &S3Error) -> bool {
    !matches!(
        error,
        S3Error::NotFound { .. }
            | S3Error::AlreadyExists { .. }
            | S3Error::Precondition { .. }
            | S3Error::PermissionDenied { .. }
            | S3Error::Unauthenticated { .. }
            | S3Error::InvalidPath { .. }
            | S3Error::NotSupported { .. }
            | S3Error::NotImplemented { .. }
    )
}

/// Returns an error in one line.
fn message_of(error: &S3Error) -> String {
    let mut text = error.to_string().replace('\n', " ");
    if let Some((end, _)) = text.char_indices().nth(SAID_MAX) {
        text.truncate(end);
    }
    text
}

impl Inner {
    /// Returns the path of a name. Names that no object can have are for the store itself.
    fn path(&self, name: &str) -> Path {
        match self.prefix.as_str() {
            "" => Path::from(name),
            prefix => Path::from(format!("{prefix}/{name}")),
        }
    }

    /// Tries until a call succeeds, can't succeed, or the time is over. The failure is the last
    /// one.
    async fn patiently<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        mut attempt: impl FnMut() -> F,
    ) -> Option<object_store::Result<T>> {
        let mut pause = BACKOFF.0;
        let mut last = None;
        let tries = async {
            loop {
                match attempt().await {
                    Err(error) if is_passing(&error) => {
                        self.trouble.has(format!("{} fails: {}", self.at, message_of(&error)));
                        last = Some(Err(error));
                    }
                    done => {
                        self.judge(&done);
                        return done;
                    }
                }
                sleep(pause).await;
                pause = (2 * pause).min(BACKOFF.1);
            }
        };
        match timeout(self.timeout, tries).await {
            Ok(done) => Some(done),
            Err(_) => {
                let seconds = self.timeout.as_secs_f64();
                let why = last.as_ref().and_then(|last| last.as_ref().err()).map(message_of);
                let why = why.map_or_else(String::new, |why| format!(": {why}"));
                let what = format!("{} has not answered for {seconds:.0} s{why}", self.at);
                self.trouble.has(what);
                last
            }
        }
    }

    /// Sets or clears the store's trouble, by the result of a call.
    fn judge<T>(&self, done: &object_store::Result<T>) {
        match done {
            Err(error @ (S3Error::PermissionDenied { .. } | S3Error::Unauthenticated { .. })) => {
                self.trouble.has(format!("{} refuses the keys: {}", self.at, message_of(error)))
            }
            _ => self.trouble.is_over(),
        }
    }

    async fn put_once(&self, path: &Path, payload: PutPayload) -> object_store::Result<()> {
        let options = PutOptions::from(PutMode::Create);
        self.client.put_opts(path, payload, options).await.map(|_| ())
    }

    async fn get(&self, path: &Path) -> Option<Vec<u8>> {
        let get = || async { self.client.get(path).await?.bytes().await };
        self.patiently(get).await?.ok().map(Vec::from)
    }

    async fn put(&self, name: &str, bytes: Vec<u8>) -> bool {
        let (path, payload) = (self.path(name), PutPayload::from(bytes));
        let mut tried = 0;
        let put = || {
            tried += 1;
            self.put_once(&path, payload.clone())
        };
        match self.patiently(put).await {
            Some(Ok(())) => return true,
            Some(Err(S3Error::AlreadyExists { .. } | S3Error::Precondition { .. }))
                if tried < 2 =>
            {
                return false
            }
            Some(Err(error)) if tried < 2 && !is_passing(&error) => return false,
            // An earlier try may have put it.
            _ => {}
        }
        let wanted = payload.iter().flat_map(|part| part.iter());
        self.get(&path).await.is_some_and(|found| found.iter().eq(wanted))
    }

    async fn delete(&self, name: &str) -> bool {
        let path = self.path(name);
        let done = self.patiently(|| self.client.delete(&path)).await;
        matches!(done, Some(Ok(()) | Err(S3Error::NotFound { .. })))
    }

    async fn list(&self, prefix: &str) -> Option<Vec<String>> {
        // The store lists names below a whole segment.
        let above = prefix.rsplit_once('/').map_or("", |(above, _)| above);
        if !(above.is_empty() || is_name(above)) {
            return Some(Vec::new());
        }
        let dir = self.path(above);
        let dir = (!dir.as_ref().is_empty()).then_some(&dir);
        let list = || self.client.list(dir).map_ok(|found| found.location).try_collect::<Vec<_>>();
        let found = self.patiently(list).await?.ok()?;
        let name = |path: Path| {
            let name = match self.prefix.as_str() {
                "" => path.as_ref(),
                prefix => path.as_ref().strip_prefix(prefix)?.strip_prefix('/')?,
            };
            (is_name(name) && name.starts_with(prefix)).then(|| name.to_owned())
        };
        let mut names: Vec<String> = found.into_iter().filter_map(name).collect();
        names.sort_unstable();
        Some(names)
    }

    /// Whether the store can list, and put on a condition.
    async fn probe(&self) -> object_store::Result<bool> {
        let dir = self.path("");
        self.client.list_with_delimiter((!dir.as_ref().is_empty()).then_some(&dir)).await?;
        let path = self.path(PROBE);
        for _ in 0..2 {
            match self.put_once(&path, PutPayload::from_static(b"there is one")).await {
                // This is the first test in this place.
                Ok(()) => {}
                Err(S3Error::AlreadyExists { .. } | S3Error::Precondition { .. }) => {
                    return Ok(true)
                }
                Err(S3Error::NotImplemented { .. } | S3Error::NotSupported { .. }) => {
                    return Ok(false)
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

impl Store for S3Store {
    fn put(&self, name: String, bytes: Vec<u8>, then: Then<bool>) {
        self.run(false, then, move |inner| async move {
            is_name(&name) && inner.put(&name, bytes).await
        });
    }

    fn get(&self, name: String, then: Then<Option<Vec<u8>>>) {
        self.run(None, then, move |inner| async move {
            match is_name(&name) {
                true => inner.get(&inner.path(&name)).await,
                false => None,
            }
        });
    }

    fn delete(&self, name: String, then: Then<bool>) {
        self.run(
            false,
            then,
            move |inner| async move { is_name(&name) && inner.delete(&name).await },
        );
    }

    fn list(&self, prefix: String, then: Then<Option<Vec<String>>>) {
        self.run(None, then, move |inner| async move { inner.list(&prefix).await });
    }

    fn trouble(&self) -> Option<String> {
        self.inner.trouble.now()
    }
}
