//! All links of a process.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_core::{Error, Result};
use tidemill_env::{Addr, Connection, Env, Listener};

use crate::hello::{self, Card, Failed};
use crate::limited::Limit;
use crate::link::{self, Link};
use crate::queue::Lane;
use crate::tls::Channel;
use crate::{frame, Event, Peer, Settings, Sink};

/// The interval between two attempts to connect, in microseconds.
const AGAIN_US: u64 = 20_000;

/// The maximum number of reads from a refused peer.
const PARTING_READS: usize = 64;

/// A side of a connection.
#[derive(Clone, Copy)]
enum Side {
    Connecting,
    Listening,
}

/// Waits until the other side has closed, within the limit of the greeting. A connection that is
/// closed with unread bytes breaks at once, and the reason might be lost.
fn part(connection: &mut dyn Connection) {
    let _ = connection.shutdown(Shutdown::Write);
    let mut bytes = [0; 4096];
    for _ in 0..PARTING_READS {
        if !matches!(connection.read(&mut bytes), Ok(1..)) {
            return;
        }
    }
}

/// The connections of this process.
pub struct Mesh {
    shared: Arc<Shared>,
}

/// The state that all threads of a mesh share.
pub(crate) struct Shared {
    pub settings: Settings,
    pub sink: Arc<dyn Sink>,
    env: Env,
    listener: Box<dyn Listener>,
    card: Card,
    links: Mutex<Links>,
    greetings: AtomicUsize,
}

#[derive(Default)]
struct Links {
    by_peer: BTreeMap<Peer, Arc<Link>>,
    count: u64,
    is_closed: bool,
}

/// Refuses an address at which this process can't listen now.
///
/// # Errors
/// If it can't, for instance because another process listens there.
pub fn check_address(env: &Env, address: &Addr) -> Result<()> {
    env.net.listen(address).map(drop).map_err(|error| not_listening(address, &error))
}

fn not_listening(address: &Addr, error: &std::io::Error) -> Error {
    Error::io(format!("listening at {address}"), error)
        .help("give an address of this machine with a port that is free, or port 0")
}

impl Mesh {
    /// Listens at an address, and passes events to the sink.
    ///
    /// # Errors
    /// If it can't listen at the address.
    pub fn listen(
        env: &Env,
        address: &Addr,
        settings: Settings,
        sink: Arc<dyn Sink>,
    ) -> Result<Mesh> {
        let listening = |error| not_listening(address, &error);
        let listener = env.net.listen(address).map_err(listening)?;
        let own = listener.local_addr().map_err(listening)?;
        let card = Card::of(&settings, settings.advertised.clone().unwrap_or(own));
        let (links, greetings) = Default::default();
        let env = env.clone();
        let shared = Arc::new(Shared { settings, sink, env, listener, card, links, greetings });
        let accepting = shared.clone();
        shared.spawn("mesh-accept", move || accepting.accept())?;
        Ok(Mesh { shared })
    }

    /// Returns the address at which others reach this process.
    pub fn address(&self) -> Addr {
        self.shared.card.address.clone()
    }

    /// Makes a link with a peer, if there is none. It connects, or waits for the peer to do so.
    pub fn link(&self, peer: Peer, dial: Option<Addr>) {
        let mut links = self.shared.links.lock();
        if links.is_closed || links.by_peer.contains_key(&peer) {
            return;
        }
        let link = links.add(peer);
        drop(links);
        self.shared.begin(peer, &link);
        let Some(address) = dial else { return };
        let (shared, dialing) = (self.shared.clone(), link.clone());
        let began = self.shared.spawn("mesh-dial", move || shared.dial(peer, &address, &dialing));
        if let Err(error) = began {
            self.shared.end(peer, &link, error.to_string());
        }
    }

    /// Sends a message. Without a link, the sink gets the event that it is down.
    pub fn send(&self, peer: Peer, lane: Lane, message: Vec<u8>) {
        let link = self.shared.links.lock().by_peer.get(&peer).cloned();
        let Some(link) = link else {
            let why = "there is no link".into();
            return self.shared.sink.take(Event::Down { peer, why });
        };
        let Settings { queue_bytes_max, message_bytes_max, .. } = self.shared.settings;
        if message.len() > message_bytes_max.min(frame::BYTES_MAX) {
            let why = format!("a message of {} bytes is longer than the limit", message.len());
            return self.shared.end(peer, &link, why);
        }
        if !link.queue.push(lane, message, queue_bytes_max) {
            let why = format!("more than {queue_bytes_max} bytes wait for it");
            self.shared.end(peer, &link, why);
        }
    }

    /// Ends the link with a peer. The sink is notified.
    pub fn unlink(&self, peer: Peer) {
        let link = self.shared.links.lock().by_peer.get(&peer).cloned();
        if let Some(link) = link {
            self.shared.end(peer, &link, "it was closed here".into());
        }
    }

    /// Returns the peers that have a link now.
    pub fn peers(&self) -> Vec<Peer> {
        let links = self.shared.links.lock();
        links.by_peer.iter().filter(|(_, link)| link.is_up()).map(|(peer, _)| *peer).collect()
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        let mut links = self.shared.links.lock();
        links.is_closed = true;
        let all = std::mem::take(&mut links.by_peer);
        drop(links);
        self.shared.listener.close();
        all.values().for_each(|link| link.close());
    }
}

impl Links {
    fn add(&mut self, peer: Peer) -> Arc<Link> {
        self.count += 1;
        let link = Link::new(self.count);
        self.by_peer.insert(peer, link.clone());
        link
    }
}

impl Shared {
    fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = self.env.threads.spawn(name, Box::new(body));
        thread.map(drop).map_err(|error| Error::io("starting a thread", &error))
    }

    /// Starts the writer of a link.
    fn begin(self: &Arc<Self>, peer: Peer, link: &Arc<Link>) {
        let (shared, own) = (self.clone(), link.clone());
        let began = self.spawn("mesh-write", move || {
            let why = link::write(&own, &shared);
            shared.end(peer, &own, why);
        });
        if let Err(error) = began {
            self.end(peer, link, error.to_string());
        }
    }

    /// Ends a link, with the first of several reasons.
    fn end(&self, peer: Peer, link: &Link, why: String) {
        let mut links = self.links.lock();
        let is_own = links.by_peer.get(&peer).is_some_and(|own| own.number == link.number);
        if is_own {
            links.by_peer.remove(&peer);
        }
        drop(links);
        link.close();
        if is_own {
            self.sink.take(Event::Down { peer, why });
        }
    }

    /// Tries to connect for as long as a greeting may take.
    fn dial(self: &Arc<Self>, peer: Peer, address: &Addr, link: &Arc<Link>) {
        let wait_us = self.settings.greeting_us;
        let until = self.env.clock.monotonic_ns() + 1000 * wait_us;
        loop {
            let is_over = || self.env.clock.monotonic_ns() > until;
            let connection = match self.env.net.connect(address, wait_us) {
                Ok(connection) => connection,
                Err(error) if is_over() => {
                    let why = format!("no process answers at {address}: {error}");
                    return self.end(peer, link, why);
                }
                Err(_) => {
                    self.env.clock.sleep_us(AGAIN_US);
                    continue;
                }
            };
            match self.greet(connection, Side::Connecting) {
                Ok((card, connection)) if card.peer == peer => {
                    return self.up(card, connection, link);
                }
                Ok((card, _)) => {
                    let why = format!("{address} belongs to another process, {}", card.peer.0);
                    return self.end(peer, link, why);
                }
                // Strangers may have taken all places for greetings.
                Err(Failed::Broken(_)) if !is_over() => self.env.clock.sleep_us(AGAIN_US),
                Err(failed) => {
                    self.refuse(Some(peer), &failed);
                    let why = format!("the greeting with {address} failed: {failed}");
                    return self.end(peer, link, why);
                }
            }
        }
    }

    /// Accepts connections.
    fn accept(self: &Arc<Self>) {
        loop {
            match self.listener.accept() {
                Ok((connection, _)) => self.meet(connection),
                Err(error) if error.kind() == std::io::ErrorKind::NotConnected => return,
                // There may be no free handle.
                Err(_) => self.env.clock.sleep_us(AGAIN_US),
            }
        }
    }

    /// Greets a peer that connects, concurrently with others.
    fn meet(self: &Arc<Self>, connection: Box<dyn Connection>) {
        if self.greetings.fetch_add(1, Ordering::AcqRel) >= self.settings.greetings_max {
            self.greetings.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let shared = self.clone();
        let began = self.spawn("mesh-greet", move || {
            let greeted = shared.greet(connection, Side::Listening);
            shared.greetings.fetch_sub(1, Ordering::AcqRel);
            match greeted {
                Ok((card, connection)) => shared.connected(card, connection),
                Err(failed) => shared.refuse(None, &failed),
            }
        });
        if began.is_err() {
            self.greetings.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Passes a new connection to the link that waits for it, or to a new link. If the peer's link
    /// is up, it has broken without this side's notice.
    fn connected(self: &Arc<Self>, card: Card, connection: Box<dyn Connection>) {
        let mut links = self.links.lock();
        if links.is_closed {
            return;
        }
        let before = links.by_peer.get(&card.peer).cloned();
        let (link, is_new, broken) = match before {
            Some(link) if !link.is_up() => (link, false, None),
            before => (links.add(card.peer), true, before),
        };
        drop(links);
        if let Some(broken) = broken {
            broken.close();
            let why = "it has connected again".into();
            self.sink.take(Event::Down { peer: card.peer, why });
        }
        if is_new {
            self.begin(card.peer, &link);
        }
        self.up(card, connection, &link);
    }

    /// Reads from a link's connection on the calling thread.
    fn up(self: &Arc<Self>, card: Card, connection: Box<dyn Connection>, link: &Arc<Link>) {
        let peer = card.peer;
        let why = match link.attach(connection, self.settings.silence_us) {
            Ok(connection) => {
                self.sink.take(Event::Up { peer, address: card.address });
                link::read(peer, connection, self)
            }
            Err(error) => format!("the connection is gone: {error}"),
        };
        self.end(peer, link, why);
    }

    /// Identifies the other side of a connection.
    fn greet(
        &self,
        connection: Box<dyn Connection>,
        side: Side,
    ) -> Result<(Card, Box<dyn Connection>), Failed> {
        let (connection, limit) = Limit::on(connection, &self.env.clock, self.settings.greeting_us);
        let mut parting = connection.try_clone()?;
        let greeted = self.greet_on(connection, side);
        match &greeted {
            Ok(_) => limit.lift(),
            Err(Failed::Refused(_)) => part(&mut *parting),
            Err(Failed::Broken(_)) => {}
        }
        greeted
    }

    fn greet_on(
        &self,
        connection: Box<dyn Connection>,
        side: Side,
    ) -> Result<(Card, Box<dyn Connection>), Failed> {
        let Settings { tls, secret, .. } = &self.settings;
        let (mut connection, channel) = match tls {
            None => (connection, Channel::default()),
            Some(tls) => {
                let (sealed, channel) = match side {
                    Side::Connecting => tls.connect(connection)?,
                    Side::Listening => tls.receive(connection)?,
                };
                (Box::new(sealed) as Box<dyn Connection>, channel)
            }
        };
        let greet = match side {
            Side::Connecting => hello::connect,
            Side::Listening => hello::receive,
        };
        let card = greet(&mut *connection, &self.card, secret, &channel, &*self.env.random)?;
        Ok((card, connection))
    }

    fn refuse(&self, peer: Option<Peer>, failed: &Failed) {
        if let Failed::Refused(why) = failed {
            self.sink.take(Event::Refused { peer, why: why.clone() });
        }
    }
}
