//! Places for connections, and which connection loses its place.
//!
//! A client is a *stranger* until one of its requests has been allowed: by its token, or, where
//! there are no tokens, because it comes from this machine. Strangers have places of their own, so
//! they take none from allowed clients. If these places are full, the newest stranger still gets
//! one, and an older one loses its place. It is the oldest from the address that has most places,
//! so one address crowds out only itself. An honest client has sent the head of a request long
//! before that. Questions about the app's health are answered to strangers, so they never wait for
//! a place.

use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{timeout_at, Instant};

/// How long a stranger may take to send a request that is allowed.
const PATIENCE: Duration = Duration::from_secs(10);
/// The places of strangers: one for this many places of allowed clients, but no fewer than the
/// minimum.
const SHARE: usize = 4;
const STRANGERS_MIN: usize = 16;

/// The places of all connections.
pub(crate) struct Seats {
    strangers: Mutex<Strangers>,
    strangers_max: usize,
    /// One permit for each connection of an allowed client.
    places: Arc<Semaphore>,
    patience: Duration,
}

#[derive(Default)]
struct Strangers {
    next: u64,
    /// The strangers by number, the oldest first.
    there: BTreeMap<u64, Stranger>,
    by_address: HashMap<IpAddr, usize>,
}

struct Stranger {
    address: IpAddr,
    leave: Arc<Notify>,
}

/// The place of one connection.
pub(crate) struct Seat {
    number: u64,
    seats: Arc<Seats>,
    place: OnceLock<OwnedSemaphorePermit>,
    leave: Arc<Notify>,
    until: Mutex<Instant>,
}

/// The error that no place is free.
#[derive(Debug, PartialEq)]
pub(crate) struct Full;

impl Seats {
    /// Creates places for this many connections of allowed clients. No client may be silent for
    /// longer than `idle`. Without tokens every client will be allowed, so all of them may connect
    /// before the first one sends a request.
    pub(crate) fn new(connections: usize, idle: Duration, wants_tokens: bool) -> Arc<Seats> {
        let share = if wants_tokens { SHARE } else { 1 };
        Arc::new(Seats {
            strangers: Mutex::default(),
            strangers_max: (connections / share).max(STRANGERS_MIN),
            places: Arc::new(Semaphore::new(connections)),
            patience: PATIENCE.min(idle),
        })
    }

    /// Gives a new connection a place. Also returns whether another stranger lost its place.
    pub(crate) fn take(self: &Arc<Seats>, address: IpAddr) -> (Arc<Seat>, bool) {
        let address = network(address);
        let leave = Arc::new(Notify::new());
        let mut strangers = self.strangers.lock();
        let is_full = strangers.there.len() >= self.strangers_max;
        if is_full {
            strangers.evict_oldest();
        }
        let number = strangers.next;
        strangers.next += 1;
        strangers.there.insert(number, Stranger { address, leave: leave.clone() });
        *strangers.by_address.entry(address).or_default() += 1;
        drop(strangers);
        let until = Mutex::new(Instant::now() + self.patience);
        let seat = Seat { number, seats: self.clone(), place: OnceLock::new(), leave, until };
        (Arc::new(seat), is_full)
    }
}

impl Strangers {
    /// Removes a stranger, and returns whether it was there.
    fn remove(&mut self, number: u64) -> bool {
        let Some(Stranger { address, .. }) = self.there.remove(&number) else { return false };
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
        true
    }

    /// Removes the oldest stranger of the address that has most places.
    fn evict_oldest(&mut self) {
        let most = self.by_address.values().max().copied().unwrap_or(0);
        let has_most = |stranger: &Stranger| self.by_address.get(&stranger.address) == Some(&most);
        let oldest = self.there.iter().find(|(_, stranger)| has_most(stranger));
        let Some((number, leave)) = oldest.map(|(n, stranger)| (*n, stranger.leave.clone())) else {
            return;
        };
        self.remove(number);
        leave.notify_one();
    }
}

impl Seat {
    /// Makes the client known, when the first of its requests has been allowed.
    pub(crate) fn admit(&self) -> Result<(), Full> {
        if self.is_known() {
            return Ok(());
        }
        let place = self.seats.places.clone().try_acquire_owned().map_err(|_| Full)?;
        // The stranger may have lost its place in the meantime.
        match self.seats.strangers.lock().remove(self.number) {
            true => drop(self.place.set(place)),
            false => return Err(Full),
        }
        Ok(())
    }

    /// Whether the client has been allowed.
    pub(crate) fn is_known(&self) -> bool {
        self.place.get().is_some()
    }

    /// Extends a stranger's time, after it has asked for something that every client may ask for.
    pub(crate) fn answered(&self) {
        *self.until.lock() = Instant::now() + self.seats.patience;
    }

    /// Waits until the client must leave. A known client never must.
    pub(crate) async fn evicted(&self) {
        while !self.is_known() {
            let until = *self.until.lock();
            let told = timeout_at(until, self.leave.notified()).await;
            if !self.is_known() && (told.is_ok() || *self.until.lock() <= Instant::now()) {
                return;
            }
        }
        pending().await
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.strangers.lock().remove(self.number);
    }
}

/// Returns the address that is counted: with IPv6, each client has a whole network.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => v4.into(),
            None => Ipv6Addr::from(u128::from(v6) >> 64 << 64).into(),
        },
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seats() -> Arc<Seats> {
        Seats::new(2, Duration::from_secs(30), true)
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// Returns the numbers of the strangers that are still there.
    fn there(seats: &Seats) -> Vec<u64> {
        seats.strangers.lock().there.keys().copied().collect()
    }

    #[test]
    fn the_address_with_most_gives_way() {
        let seats = seats();
        let (honest, _) = seats.take(address(1));
        let mut crowd: Vec<_> = (0..15).map(|_| seats.take(address(2))).collect();
        assert!(crowd.iter().all(|(_, turned_out)| !turned_out));
        crowd.push(seats.take(address(3)));
        crowd.extend((0..100).map(|_| seats.take(address(2))));
        let there = there(&seats);
        assert_eq!(there.len(), 16);
        // The first stranger and the one of the third address are still there.
        assert_eq!(there[..2], [0, 16]);
        assert_eq!(honest.admit(), Ok(()));
        // A stranger that has lost its place can't become known.
        assert_eq!(crowd[0].0.admit(), Err(Full));
        drop((honest, crowd));
        assert!(seats.strangers.lock().by_address.is_empty());
    }

    #[test]
    fn those_who_are_let_in_have_places_of_their_own() {
        let seats = seats();
        let take = || seats.take(address(1)).0;
        let (first, second, third) = (take(), take(), take());
        assert_eq!([first.admit(), first.admit(), second.admit()], [Ok(()), Ok(()), Ok(())]);
        assert_eq!(third.admit(), Err(Full));
        assert!(first.is_known() && !third.is_known());
        drop(first);
        assert_eq!(third.admit(), Ok(()));
        assert_eq!(there(&seats), Vec::<u64>::new());
    }

    #[test]
    fn where_all_are_let_in_all_may_connect_at_once() {
        let seats = Seats::new(40, Duration::from_secs(30), false);
        let all: Vec<_> = (0..40).map(|_| seats.take(address(1))).collect();
        assert!(all.iter().all(|(seat, turned_out)| !turned_out && seat.admit() == Ok(())));
        assert_eq!(seats.take(address(1)).0.admit(), Err(Full));
    }

    #[test]
    fn a_network_of_six_is_one_address() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.7"), of("192.0.2.7"));
    }
}
