#![allow(clippy::disallowed_methods)] // Tests that wait for real sockets.

use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proptest::prelude::*;
use tidemill_env::{Addr, Env};

use crate::{frame, Event, Lane, Mesh, Peer, Secret, Settings, Sink};

pub mod tls;

/// A change to the settings of all tests: with certificates, or without.
type Base = fn(&mut Settings);

fn clear(_: &mut Settings) {}

/// Runs each of these tests over both kinds of connection.
macro_rules! over_both {
    ($($name:ident),* $(,)?) => {
        mod in_clear_text {
            $(#[test] fn $name() { super::$name(super::clear) })*
        }
        mod in_tls {
            $(#[test] fn $name() { super::$name(super::tls::member) })*
        }
    };
}

over_both! {
    messages_arrive_in_their_order_whatever_their_length,
    what_is_sent_before_the_link_is_up_arrives,
    both_sides_are_told_of_the_end_once_and_can_meet_again,
    whoever_does_not_belong_is_turned_away_with_a_reason,
    a_stranger_sends_garbage_or_nothing_and_others_come_in,
    whoever_is_slow_is_turned_away_in_time,
    a_silent_peer_is_given_up_and_a_living_one_is_not,
    what_nobody_takes_ends_the_link_and_not_the_memory,
}

struct Events(Mutex<Sender<Event>>);

impl Sink for Events {
    fn take(&self, event: Event) {
        let _ = self.0.lock().send(event);
    }
}

struct Process {
    mesh: Mesh,
    events: Receiver<Event>,
}

impl Process {
    fn start(me: u32, base: Base, change: impl FnOnce(&mut Settings)) -> Process {
        Process::start_in(&Env::real(), me, |s| {
            base(s);
            change(s);
        })
    }

    fn start_in(env: &Env, me: u32, change: impl FnOnce(&mut Settings)) -> Process {
        let (send, events) = channel();
        let secret = Secret::new(b"nobody knows it");
        let mut settings = Settings::new(Peer(me), secret, "ledger", 7);
        settings.greeting_us = 500_000;
        change(&mut settings);
        let address: Addr = "127.0.0.1:0".parse().unwrap();
        let sink = Arc::new(Events(Mutex::new(send)));
        Process { mesh: Mesh::listen(env, &address, settings, sink).unwrap(), events }
    }

    fn dial(&self, other: &Process, peer: u32) {
        self.mesh.link(Peer(peer), Some(other.mesh.address()));
    }

    fn next(&self) -> Event {
        self.events.recv_timeout(Duration::from_secs(20)).expect("something happens")
    }

    fn up(&self) -> Peer {
        match self.next() {
            Event::Up { peer, .. } => peer,
            other => panic!("{other:?}"),
        }
    }

    fn message(&self) -> Vec<u8> {
        match self.next() {
            Event::Message { bytes, .. } => bytes,
            other => panic!("{other:?}"),
        }
    }

    fn down(&self) -> (Peer, String) {
        loop {
            if let Event::Down { peer, why } = self.next() {
                return (peer, why);
            }
        }
    }
}

fn pair(base: Base) -> (Process, Process) {
    let (a, b) = (Process::start(1, base, |_| {}), Process::start(2, base, |_| {}));
    a.dial(&b, 2);
    assert_eq!((a.up(), b.up()), (Peer(2), Peer(1)));
    (a, b)
}

fn messages_arrive_in_their_order_whatever_their_length(base: Base) {
    let (a, b) = pair(base);
    let message = |n: usize| vec![(n % 251) as u8; (n * 7919) % 100_000 + 1];
    for n in 0..200 {
        a.mesh.send(Peer(2), Lane::Urgent, message(n));
        b.mesh.send(Peer(1), Lane::Bulk, message(n));
    }
    for n in 0..200 {
        assert_eq!(b.message(), message(n));
        assert_eq!(a.message(), message(n));
    }
    assert_eq!(a.mesh.peers(), [Peer(2)]);
}

fn what_is_sent_before_the_link_is_up_arrives(base: Base) {
    let (a, b) = (Process::start(1, base, |_| {}), Process::start(2, base, |_| {}));
    b.mesh.link(Peer(1), None);
    b.mesh.send(Peer(1), Lane::Urgent, b"early".to_vec());
    a.dial(&b, 2);
    a.mesh.send(Peer(2), Lane::Urgent, b"too".to_vec());
    assert_eq!((a.up(), b.up()), (Peer(2), Peer(1)));
    assert_eq!((a.message(), b.message()), (b"early".to_vec(), b"too".to_vec()));
}

fn both_sides_are_told_of_the_end_once_and_can_meet_again(base: Base) {
    let (a, b) = pair(base);
    b.mesh.unlink(Peer(1));
    assert_eq!((a.down().0, b.down().0), (Peer(2), Peer(1)));
    b.mesh.send(Peer(1), Lane::Urgent, b"lost".to_vec());
    assert_eq!(b.down().1, "there is no link");
    a.dial(&b, 2);
    assert_eq!((a.up(), b.up()), (Peer(2), Peer(1)));
    drop(b);
    assert_eq!(a.down().0, Peer(2));
    a.mesh.link(Peer(3), None);
    assert_eq!(a.down(), (Peer(3), "it has not connected".into()));
}

fn whoever_does_not_belong_is_turned_away_with_a_reason(base: Base) {
    let there = Process::start(1, base, |_| {});
    type Change = fn(&mut Settings);
    let cases: [(&str, Change); 7] = [
        ("secret", |s| s.secret = Secret::new(b"guessed")),
        ("not 'other'", |s| s.cluster = "other".into()),
        ("differs in its number of sources", |s| s.app ^= 8),
        ("differs in the code of its functions or its Python; start", |s| s.app ^= 8 << 32),
        ("handlers or sinks, and in the code", |s| s.app ^= 0x0101 << 56),
        ("same release", |s| s.version = 3),
        ("same number", |s| s.me = Peer(1)),
    ];
    for (why, change) in cases {
        let stranger = Process::start(9, base, change);
        stranger.dial(&there, 1);
        match stranger.next() {
            Event::Refused { why: found, .. } => assert!(found.contains(why), "{found}"),
            other => panic!("{other:?}"),
        }
        assert!(stranger.down().1.contains("the greeting with"));
        assert!(matches!(there.next(), Event::Refused { peer: None, .. }));
    }
    assert!(there.mesh.peers().is_empty());
}

fn a_stranger_sends_garbage_or_nothing_and_others_come_in(base: Base) {
    let there = Process::start(1, base, |s| s.greetings_max = 4);
    let env = Env::real();
    let silent: Vec<_> =
        (0..3).map(|_| env.net.connect(&there.mesh.address(), 1_000_000).unwrap()).collect();
    let mut rude = env.net.connect(&there.mesh.address(), 1_000_000).unwrap();
    rude.write_all(&[b'x'; 100]).unwrap();
    assert!(matches!(there.next(), Event::Refused { .. }));
    let friend = Process::start(2, base, |_| {});
    friend.dial(&there, 1);
    assert_eq!((friend.up(), there.up()), (Peer(1), Peer(2)));
    drop(silent);
}

fn whoever_is_slow_is_turned_away_in_time(base: Base) {
    let there = Process::start(1, base, |_| {});
    let env = Env::real();
    // The beginning of a greeting of either kind, followed by a byte now and then.
    for begun in [&[0x16, 3, 1, 0x40, 0, 1][..], b"tidemesh\x02"] {
        let mut slow = env.net.connect(&there.mesh.address(), 1_000_000).unwrap();
        let from_ns = env.clock.monotonic_ns();
        slow.write_all(begun).unwrap();
        slow.set_read_timeout(Some(50_000)).unwrap();
        loop {
            match slow.read(&mut [0; 64]) {
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {}
                Ok(1..) => {}
                Ok(0) | Err(_) => break,
            }
            let _ = slow.write_all(&[0]);
            let taken_ns = env.clock.monotonic_ns() - from_ns;
            assert!(taken_ns < 10_000_000_000, "it is still there");
        }
    }
    assert!(there.mesh.peers().is_empty());
}

fn a_silent_peer_is_given_up_and_a_living_one_is_not(base: Base) {
    let there = Process::start(1, base, |s| s.silence_us = 600_000);
    let friend = Process::start(2, base, |s| s.silence_us = 600_000);
    friend.dial(&there, 1);
    assert_eq!((friend.up(), there.up()), (Peer(1), Peer(2)));
    // The link is idle but alive. Machines also stop for a while.
    Env::real().clock.sleep_us(1_500_000);
    friend.mesh.send(Peer(1), Lane::Urgent, b"still here".to_vec());
    assert_eq!(there.message(), b"still here");
    // A process that sends nothing.
    let silent = Process::start(3, base, |s| s.silence_us = 60_000_000);
    silent.dial(&there, 1);
    assert_eq!(there.up(), Peer(3));
    assert_eq!(there.down().0, Peer(3));
}

fn what_nobody_takes_ends_the_link_and_not_the_memory(base: Base) {
    struct Slow;
    impl Sink for Slow {
        fn take(&self, event: Event) {
            if matches!(event, Event::Message { .. }) {
                Env::real().clock.sleep_us(u64::from(u32::MAX));
            }
        }
    }
    let a = Process::start(1, base, |s| {
        (s.queue_bytes_max, s.silence_us) = (4 << 20, 60_000_000);
    });
    let secret = Secret::new(b"nobody knows it");
    let mut settings = Settings::new(Peer(2), secret, "ledger", 7);
    base(&mut settings);
    let address: Addr = "127.0.0.1:0".parse().unwrap();
    let slow = Mesh::listen(&Env::real(), &address, settings, Arc::new(Slow)).unwrap();
    a.mesh.link(Peer(2), Some(slow.address()));
    assert_eq!(a.up(), Peer(2));
    // Bytes that can't be packed.
    let env = Env::real();
    let noise: Vec<u8> = (0..1 << 17).flat_map(|_| env.random.next_u64().to_le_bytes()).collect();
    for _ in 0..64 {
        a.mesh.send(Peer(2), Lane::Bulk, noise.clone());
    }
    let (peer, why) = a.down();
    assert!(peer == Peer(2) && why.contains("bytes wait"), "{why}");
}

proptest! {
    /// Reading gives the messages that were put, and damaged streams end in errors.
    #[test]
    fn frames_come_back(
        message in prop::collection::vec(0u8..4, 0..20_000),
        at in any::<prop::sample::Index>(),
        to in any::<u8>(),
    ) {
        let (mut packer, mut unpacker) = (frame::Packer::new(true), frame::Unpacker::default());
        let mut bytes = Vec::new();
        packer.put(&message, &mut bytes);
        packer.put(&message, &mut bytes);
        frame::put_alive(&mut bytes);
        let mut stream = &bytes[..];
        prop_assert_eq!(&unpacker.read(&mut stream, 1 << 20).unwrap(), &message);
        prop_assert_eq!(&unpacker.read(&mut stream, 1 << 20).unwrap(), &message);
        prop_assert!(unpacker.read(&mut stream, 1 << 20).unwrap().is_empty());
        prop_assert!(stream.is_empty());
        let at = at.index(bytes.len());
        bytes[at] = to;
        let mut stream = &bytes[..at.max(4)];
        while unpacker.read(&mut stream, 1 << 20).is_ok() {}
    }
}
