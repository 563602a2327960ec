//! The files that a worker sees: it reads those of its sources itself.
//!
//! The coordinator knows the marks of all feeds. A worker asks it for those of a feed before it
//! begins to read, and sends it new ones before it gives out rows. So the marks stay in one
//! directory, whichever process reads.
//!
//! A worker on another machine may see no file at a path, or another one. So the coordinator says
//! how the files begin and how long they are. Where that does not fit, the coordinator reads them.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tidemill_cluster::Log;
use tidemill_core::wire::take_u64;
use tidemill_core::{Error, Result};
use tidemill_env::Env;
use tidemill_host::CoordinatorLink;
use tracing::info;

use super::super::questions::Question;
use super::feed::{Described, Feed};
use super::rows::{Home, Opened, Rows};
use super::{ends_of, key_of, of_files, Shared};
use crate::functions::AppFunctions;
use crate::spec::{AppSpec, SourceDecl};

/// The longest wait for an answer. The coordinator syncs a file before it.
const ANSWER: Duration = Duration::from_secs(5);

/// The coordinator, as the reader of a worker's files reaches it.
pub(super) trait Away: Send + Sync {
    /// The number of the present connection. It is `None` while there is none.
    fn connection(&self) -> Option<u64>;

    /// Asks a question. Returns `None` without an answer.
    fn ask(&self, question: &Question) -> Option<Vec<u8>>;

    /// The log of the rows that the coordinator reads, while the worker runs.
    fn served(&self) -> Option<Arc<dyn Log>>;
}

impl Away for CoordinatorLink {
    fn connection(&self) -> Option<u64> {
        CoordinatorLink::connection(self)
    }

    fn ask(&self, question: &Question) -> Option<Vec<u8>> {
        CoordinatorLink::ask(self, question.bytes(), ANSWER)
    }

    fn served(&self) -> Option<Arc<dyn Log>> {
        CoordinatorLink::served(self)
    }
}

/// The rows of all files of an app, as a worker reads them.
pub(in crate::cluster) struct NearRows {
    /// Their log.
    pub log: Arc<Rows>,
    away: Arc<OnceLock<Box<dyn Away>>>,
}

impl NearRows {
    /// Starts to read the files of an app, as the sources from `first` on. Nothing can be read
    /// before the coordinator is known.
    ///
    /// # Errors
    /// When the thread can't be started.
    pub fn start(
        spec: &AppSpec,
        functions: &Arc<AppFunctions>,
        first: u32,
        env: &Env,
    ) -> Result<NearRows> {
        let decl = |(nth, decl): (usize, &SourceDecl)| Decl {
            key: key_of(nth, decl),
            ends: ends_of(spec, decl),
            decl: decl.clone(),
        };
        let decls: Vec<Decl> = of_files(spec).enumerate().map(decl).collect();
        let count = decls.len();
        let away = Arc::new(OnceLock::new());
        let worker = Worker {
            env: env.clone(),
            functions: functions.clone(),
            decls,
            away: away.clone(),
            connection: None,
        };
        let shared = Arc::new(Shared::of(Vec::new(), vec![None; count]));
        let log = Rows::start((first, count as u32), Vec::new(), Box::new(worker), &shared, env)?;
        Ok(NearRows { log: Arc::new(log), away })
    }

    /// Sets how the coordinator is reached. Only the first call counts.
    pub fn has(&self, coordinator: CoordinatorLink) {
        self.reaches(Box::new(coordinator));
    }

    pub(super) fn reaches(&self, away: Box<dyn Away>) {
        let _ = self.away.set(away);
    }
}

/// A declaration of files.
struct Decl {
    key: String,
    ends: Option<usize>,
    decl: SourceDecl,
}

/// A worker's process.
struct Worker {
    env: Env,
    functions: Arc<AppFunctions>,
    decls: Vec<Decl>,
    away: Arc<OnceLock<Box<dyn Away>>>,
    /// The connection to the coordinator that gave the marks of the open feeds.
    connection: Option<u64>,
}

impl Worker {
    fn ask(&self, question: &Question) -> Option<Vec<u8>> {
        self.away.get()?.ask(question)
    }
}

impl Home for Worker {
    fn is_away(&self) -> bool {
        true
    }

    fn is_new(&mut self) -> bool {
        let now = self.away.get().and_then(|away| away.connection());
        // Without a connection nothing new is known.
        let is_new = now.is_some() && now != self.connection;
        self.connection = now.or(self.connection);
        is_new
    }

    fn open(&mut self, nth: usize, from: u64) -> Result<Opened> {
        let answer = self.ask(&Question::Feed { feed: nth as u32 });
        let described = answer.and_then(|answer| serde_json::from_slice(&answer).ok());
        let Some(described): Option<Option<Described>> = described else {
            return Ok(Opened::NotNow);
        };
        let Decl { key, ends, decl } = &self.decls[nth];
        let known = (key.clone(), *ends);
        let unknown = || Error::input("the coordinator can't describe them");
        let feed = described.ok_or_else(unknown).and_then(|described| {
            Feed::open_near(decl, known, &self.functions, (described, from), &self.env)
        });
        match feed {
            Ok(feed) => Ok(Opened::Here(Box::new(feed))),
            Err(error) => Ok(self.instead(nth, &error).map_or(Opened::NotNow, Opened::Elsewhere)),
        }
    }

    fn keep(&mut self, nth: usize, feed: &Feed) -> Result<Option<u64>> {
        let news = serde_json::to_vec(&feed.news()).expect("marks are JSON");
        let answer = self.ask(&Question::FeedRead { feed: nth as u32, news });
        Ok(answer.and_then(|answer| take_u64(&mut &answer[..])))
    }

    /// The coordinator reads the files, and finds out itself whether they have changed.
    fn instead(&mut self, nth: usize, error: &Error) -> Option<Arc<dyn Log>> {
        let (stream, why) = (&*self.decls[nth].decl.stream, &*error.what);
        info!(target: "tidemill::cluster", stream, why, "the coordinator reads the files");
        self.away.get()?.served()
    }
}
