//! Notification of new events and changes.
//!
//! One thread waits for the engine, and only while a client follows something. Each follower looks
//! up its own news, so nothing queues up here.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidemill_core::{Error, Result};
use tidemill_engine::{App, StreamProgress};
use tidemill_env::{Env, Handle};
use tokio::sync::watch;

/// How long the thread waits at a time, in microseconds. It notices the end within this time.
const WAIT_US: u64 = 100_000;

/// Notifies followers that they should look for news.
pub(crate) struct Notifier {
    news: watch::Sender<StreamProgress>,
    closing: Mutex<bool>,
    woken: Condvar,
}

impl Notifier {
    /// Returns a bell and the thread that rings it.
    pub(crate) fn start(env: &Env, app: Arc<dyn App>) -> Result<(Arc<Notifier>, Handle)> {
        let first = StreamProgress { epoch: 0, over: false };
        let notifier = Arc::new(Notifier {
            news: watch::Sender::new(first),
            closing: Mutex::new(false),
            woken: Condvar::new(),
        });
        let of = notifier.clone();
        let thread = env
            .threads
            .spawn("tidemill-news", Box::new(move || of.ring(&*app)))
            .map_err(|e| Error::io("starting the thread that looks for news", &e))?;
        Ok((notifier, thread))
    }

    fn ring(&self, app: &dyn App) {
        let mut seen = *self.news.borrow();
        loop {
            let mut closing = self.closing.lock();
            while !*closing && self.news.receiver_count() == 0 {
                self.woken.wait_for(&mut closing, Duration::from_micros(WAIT_US));
            }
            if *closing {
                return;
            }
            drop(closing);
            let now = app.news(seen, WAIT_US);
            if now != seen {
                seen = now;
                self.news.send_modify(|news| {
                    (news.epoch, news.over) = (now.epoch, news.over || now.over);
                });
            } else if now.over {
                let mut closing = self.closing.lock();
                self.woken.wait_for(&mut closing, Duration::from_micros(WAIT_US));
            }
        }
    }

    /// Returns a follower's receiver.
    pub(crate) fn subscribe(&self) -> watch::Receiver<StreamProgress> {
        let heard = self.news.subscribe();
        self.woken.notify_all();
        heard
    }

    /// Notifies the followers that the end has been reached.
    pub(crate) fn close(&self) {
        *self.closing.lock() = true;
        self.woken.notify_all();
        self.news.send_modify(|news| news.over = true);
    }
}
