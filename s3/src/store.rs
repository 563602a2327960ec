//! The operations of the store: put, get, delete and list.

use std::future::Future;
use std::sync::mpsc::sync_channel;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::AmazonS3;
use object_store::path::Path;
use object_store::{
    Error as S3Error, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};
use tidemill_core::{Error, Kind, Result};
use tidemill_durable::{check_name, is_name, name_of_prefix, Object, ObjectWriter, Store, Trouble};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

use crate::options::{Place, S3Options};

/// The time before the second try, and the longest one. It doubles with each try.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// The longest time for opening.
const OPENING: Duration = Duration::from_secs(20);
/// A place that is after the end of every object.
const END: u64 = 1 << 60;
/// The longest quotation of an error, in characters.
const SAID_MAX: usize = 300;
/// The object that is used to test whether the store supports conditions.
const PROBE: &str = ".conditional";

/// A store in a bucket. Clones are the same store. An object that is written in pieces is in memory
/// until it is finished.
#[derive(Clone)]
pub struct S3Store(Arc<Running>);

struct Running {
    /// The runtime. It is there until the store is dropped.
    runtime: Option<Runtime>,
    inner: Arc<Inner>,
}

struct Inner {
    client: AmazonS3,
    prefix: String,
    timeout: Duration,
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
            at: options.at(),
            trouble: Trouble::default(),
        });
        let opening = OPENING.min(options.timeout());
        let store = S3Store(Arc::new(Running { runtime: Some(runtime), inner }));
        let probed = store.run(|inner| async move { timeout(opening, inner.probe()).await })?;
        match probed {
            Ok(Ok(true)) => Ok(store),
            Ok(Ok(false)) => {
                let what = format!("{} does not support conditional writes", options.at());
                Err(Error::setting(what).help(
                    "use a store that honours If-None-Match: Amazon's S3, or MinIO of 2024-08 or \
                     later",
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

    /// Runs a call on the runtime's own threads, and waits for its end. So it works on any thread.
    fn run<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        act: impl FnOnce(Arc<Inner>) -> F,
    ) -> Result<T> {
        let ended = || Error::internal("a thread of S3 has ended");
        let runtime = self.0.runtime.as_ref().ok_or_else(ended)?;
        let call = act(self.0.inner.clone());
        let (send, receive) = sync_channel(1);
        runtime.spawn(async move {
            // The caller waits.
            let _ = send.send(call.await);
        });
        receive.recv().map_err(|_| ended())
    }

    fn put_whole(&self, name: &str, bytes: Vec<u8>) -> Result<bool> {
        check_name(name)?;
        let (name, payload) = (name.to_owned(), PutPayload::from(bytes));
        self.run(|inner| async move { inner.put(&name, payload).await })?
    }
}

impl Drop for Running {
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

    /// Returns the error of a call that has failed, or that has no answer.
    fn failed(&self, name: &str, failure: Option<&S3Error>) -> Error {
        let why = match failure {
            Some(error) => format!("fails: {}", message_of(error)),
            None => format!("has not answered for {:.0} s", self.timeout.as_secs_f64()),
        };
        Error::new(Kind::Io, format!("{name}: {} {why}", self.at))
            .help("check the keys, and that this machine may reach the server")
    }

    /// Returns the result of a call; `None` if there is no such object.
    fn found<T>(&self, name: &str, done: Option<object_store::Result<T>>) -> Result<Option<T>> {
        match done {
            Some(Ok(found)) => Ok(Some(found)),
            Some(Err(S3Error::NotFound { .. })) => Ok(None),
            other => Err(self.failed(name, other.and_then(|done| done.err()).as_ref())),
        }
    }

    async fn get(&self, name: &str) -> Result<Option<Bytes>> {
        let path = self.path(name);
        let get = || async { self.client.get(&path).await?.bytes().await };
        self.found(name, self.patiently(get).await)
    }

    async fn get_range(&self, name: &str, from: u64, len: u64) -> Result<Option<Bytes>> {
        let path = self.path(name);
        let get = || async {
            let got = match len {
                0 => Ok(Bytes::new()),
                _ => self.client.get_range(&path, from..from.saturating_add(len).min(END)).await,
            };
            match got {
                Ok(bytes) if !bytes.is_empty() => Ok(bytes),
                Err(error @ S3Error::NotFound { .. }) => Err(error),
                // A server refuses a range without bytes of the object.
                refused => match self.client.head(&path).await?.size {
                    size if len == 0 || from >= size => Ok(Bytes::new()),
                    _ => refused,
                },
            }
        };
        self.found(name, self.patiently(get).await)
    }

    async fn put(&self, name: &str, payload: PutPayload) -> Result<bool> {
        let path = self.path(name);
        let mut tried = 0;
        let put = || {
            tried += 1;
            self.put_once(&path, payload.clone())
        };
        let failure = match self.patiently(put).await {
            Some(Ok(())) => return Ok(true),
            Some(Err(S3Error::AlreadyExists { .. } | S3Error::Precondition { .. }))
                if tried < 2 =>
            {
                return Ok(false)
            }
            Some(Err(error)) if tried < 2 && !is_passing(&error) => {
                return Err(self.failed(name, Some(&error)))
            }
            // An earlier try may have put it.
            Some(Err(error)) => Some(error),
            None => None,
        };
        match self.get(name).await? {
            Some(found) => Ok(found.iter().eq(payload.iter().flat_map(|part| part.iter()))),
            None => Err(self.failed(name, failure.as_ref())),
        }
    }

    async fn delete(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        let done = self.patiently(|| self.client.delete(&path)).await;
        self.found(name, done).map(drop)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Object>> {
        let dir = self.path(prefix);
        let dir = (!dir.as_ref().is_empty()).then_some(&dir);
        let list = || self.client.list(dir).try_collect::<Vec<_>>();
        let found = match self.patiently(list).await {
            Some(Ok(found)) => found,
            other => {
                let failure = other.and_then(|done| done.err());
                return Err(self.failed(&format!("listing {prefix:?}"), failure.as_ref()));
            }
        };
        let object = |meta: ObjectMeta| {
            let path = meta.location.as_ref();
            let name = match self.prefix.as_str() {
                "" => path,
                prefix => path.strip_prefix(prefix)?.strip_prefix('/')?,
            };
            (is_name(name) && name.starts_with(prefix))
                .then(|| Object { name: name.to_owned(), len: meta.size })
        };
        let mut objects: Vec<Object> = found.into_iter().filter_map(object).collect();
        objects.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(objects)
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
    fn put(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.put_whole(name, bytes.to_vec())
    }

    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        check_name(name)?;
        let writer = S3Writer { store: self.clone(), name: name.to_owned(), bytes: Vec::new() };
        Ok(Box::new(writer))
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        check_name(name)?;
        let name = name.to_owned();
        let found = self.run(|inner| async move { inner.get(&name).await })??;
        Ok(found.map(Vec::from))
    }

    fn get_range(&self, name: &str, from: u64, len: u64) -> Result<Option<Vec<u8>>> {
        check_name(name)?;
        let name = name.to_owned();
        let found = self.run(|inner| async move { inner.get_range(&name, from, len).await })??;
        Ok(found.map(Vec::from))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Object>> {
        name_of_prefix(prefix)?;
        let prefix = prefix.to_owned();
        self.run(|inner| async move { inner.list(&prefix).await })?
    }

    fn delete(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let name = name.to_owned();
        self.run(|inner| async move { inner.delete(&name).await })?
    }

    fn trouble(&self) -> Option<String> {
        self.0.inner.trouble.now()
    }
}

/// An object that is put when it is complete, because S3 puts only whole objects on a condition.
struct S3Writer {
    store: S3Store,
    name: String,
    bytes: Vec<u8>,
}

impl ObjectWriter for S3Writer {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<bool> {
        self.store.put_whole(&self.name, self.bytes)
    }
}
