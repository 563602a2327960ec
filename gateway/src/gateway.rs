//! Starting and ending.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidemill_core::{Error, Result};
use tidemill_engine::App;
use tidemill_env::{Env, Handle};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::face::Face;
use crate::news::Bell;
use crate::plan::Plan;
use crate::{routes, server};

/// Threads that answer, at most: what they do is short, and the cores are the engine's.
const THREADS_MAX: usize = 4;
/// How long calls under way are waited for at the end, and how long connections after that.
const GRACE: Duration = Duration::from_secs(5);
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Answers the clients of a running app. Dropped, it ends.
pub struct Gateway {
    address: SocketAddr,
    face: Arc<Face>,
    closing: watch::Sender<bool>,
    running: Mutex<Option<(Runtime, Handle)>>,
}

impl Gateway {
    /// Begins to answer.
    ///
    /// # Errors
    /// When the address can't be had, or roles are needed for what is not there.
    pub fn start(plan: Plan, app: Arc<dyn App>, env: &Env) -> Result<Gateway> {
        let Plan { address, access, tls } = plan;
        let runtime = Builder::new_multi_thread()
            .worker_threads(env.threads.cores().min(THREADS_MAX))
            .thread_name("tidemill-http")
            .enable_io()
            .enable_time()
            .build()
            .map_err(|e| Error::io("starting the threads that answer", &e))?;
        let listening = runtime.block_on(TcpListener::bind(address));
        let listening = listening.and_then(|l| Ok((l.local_addr()?, l)));
        let (address, listener) =
            listening.map_err(|e| Error::io(format!("listening on {address}"), &e))?;
        let (bell, thread) = Bell::hang(env, app.clone())?;
        let face = Face::new(app.clone(), access, bell.clone(), env.random.next_u64());
        let face = match face {
            Ok(face) => Arc::new(face),
            Err(error) => {
                bell.close();
                return Err(error);
            }
        };
        app.answers_at(&address.to_string());
        let closing = watch::Sender::new(false);
        let routes = routes::of(&face);
        runtime.spawn(server::serve(listener, tls, routes, face.clone(), closing.subscribe()));
        Ok(Gateway { address, face, closing, running: Mutex::new(Some((runtime, thread))) })
    }

    /// Where it answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins nothing new, and waits for the calls that are under way, not for ever: to be called before
    /// the engine stops, which answers them.
    pub fn drain(&self) {
        self.face.stop();
        let running = self.running.lock();
        if let Some((runtime, _)) = &*running {
            let all = self.face.limits.calls as u32;
            let room = self.face.room.clone();
            // Who waits longer than this is told when the engine ends.
            let _ =
                runtime.block_on(async { timeout(GRACE, room.acquire_many(all)).await.is_ok() });
        }
    }

    /// Ends all connections, those first that wait for nothing.
    pub fn stop(&self) {
        self.face.stop();
        let Some((runtime, thread)) = self.running.lock().take() else { return };
        self.face.bell.close();
        self.closing.send_replace(true);
        // Each connection holds one of these.
        let _ = runtime.block_on(async { timeout(LAST_WORDS, self.closing.closed()).await });
        runtime.shutdown_timeout(LAST_WORDS);
        // Its end has no news.
        let _ = thread.join();
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop();
    }
}
