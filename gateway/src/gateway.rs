//! Start and end of the gateway.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidemill_core::Result;
use tidemill_engine::App;
use tidemill_env::{Env, Handle};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::info;
use tracing::instrument::WithSubscriber as _;

use crate::notifier::Notifier;
use crate::plan::Plan;
use crate::shared::Shared;
use crate::{routes, server};

/// How long the end waits for calls in progress, and then for connections.
const GRACE: Duration = Duration::from_secs(5);
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Answers the clients of a running app, until it is dropped.
pub struct Gateway {
    address: SocketAddr,
    shared: Arc<Shared>,
    closing: watch::Sender<bool>,
    running: Mutex<Option<(Runtime, Handle)>>,
}

impl Gateway {
    /// Starts to answer clients.
    ///
    /// # Errors
    /// If roles are needed for something that does not exist.
    pub fn start(plan: Plan, app: Arc<dyn App>, env: &Env) -> Result<Gateway> {
        let Plan { address, listener, runtime, access, tls } = plan;
        let (notifier, thread) = Notifier::start(env, app.clone())?;
        let shared = Shared::new(app.clone(), access, notifier.clone(), env.random.next_u64());
        let shared = match shared {
            Ok(shared) => Arc::new(shared),
            Err(error) => {
                notifier.close();
                return Err(error);
            }
        };
        app.answers_at(&address.to_string());
        let (at, is_tls) = (address.to_string(), tls.is_some());
        info!(target: "tidemill::http", address = at, tls = is_tls, "listening");
        let closing = watch::Sender::new(false);
        let routes = routes::of(&shared);
        let serve = server::serve(listener, tls, routes, shared.clone(), closing.subscribe());
        runtime.spawn(serve.with_current_subscriber());
        Ok(Gateway { address, shared, closing, running: Mutex::new(Some((runtime, thread))) })
    }

    /// Returns the address at which it answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Refuses new requests, and waits a bounded time for the calls in progress. Call this before
    /// the engine stops, because the engine answers those calls.
    pub fn drain(&self) {
        self.shared.stop();
        let running = self.running.lock();
        if let Some((runtime, _)) = &*running {
            let all = self.shared.limits.calls as u32;
            let room = self.shared.room.clone();
            // A call that takes longer receives its error when the engine ends.
            let _ =
                runtime.block_on(async { timeout(GRACE, room.acquire_many(all)).await.is_ok() });
        }
    }

    /// Ends all connections. Those on which no answer is due end first.
    pub fn stop(&self) {
        self.shared.stop();
        let Some((runtime, thread)) = self.running.lock().take() else { return };
        self.shared.notifier.close();
        self.closing.send_replace(true);
        // Each connection holds one of these.
        let _ = runtime.block_on(async { timeout(LAST_WORDS, self.closing.closed()).await });
        runtime.shutdown_timeout(LAST_WORDS);
        // The thread returns nothing.
        let _ = thread.join();
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop();
    }
}
