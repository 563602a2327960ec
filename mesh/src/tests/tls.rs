//! Certificates that are accepted, and certificates that are refused. `make.sh` creates them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use tidemill_env::{Clock, Connection, Env, RealClock};

use super::{Event, Process};
use crate::sealed::Sealed;
use crate::tls::Verifier;
use crate::{Lane, Peer, Settings, Tls};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests").join(name).with_extension("pem")
}

fn open_in(env: &Env, name: &str, authority: &str) -> tidemill_core::Result<Tls> {
    Tls::open(env, &file(name), &file(name), &file(authority))
}

fn with(name: &str, authority: &str) -> impl FnOnce(&mut Settings) {
    let tls = open_in(&Env::real(), name, authority).unwrap();
    move |settings| settings.tls = Some(tls)
}

/// Sets certificates of the cluster.
pub fn member(settings: &mut Settings) {
    with("member", "authority")(settings);
}

/// Creates both sides of a connection in TLS.
pub fn pair(env: &Env) -> (Sealed, Sealed) {
    let tls = open_in(env, "member", "authority").unwrap();
    let listener = env.net.listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let near = env.net.connect(&listener.local_addr().unwrap(), 1_000_000).unwrap();
    let far = listener.accept().unwrap().0;
    let (send, come) = std::sync::mpsc::channel();
    let of = tls.clone();
    let body = move || drop(send.send(of.connect(near).map(|(near, _)| near).ok()));
    let comes = env.threads.spawn("comes", Box::new(body)).unwrap();
    let far = tls.receive(far).unwrap_or_else(|e| panic!("{e}")).0;
    comes.join().unwrap();
    (come.recv().unwrap().unwrap(), far)
}

/// A clock in another year.
struct Then(RealClock);

/// Half a year after 2000-01-01, in microseconds since 1970.
const THEN_US: i64 = (946_684_800 + 182 * 86_400) * 1_000_000;

impl Clock for Then {
    fn now_us(&self) -> i64 {
        THEN_US
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.monotonic_ns()
    }

    fn sleep_us(&self, us: u64) {
        self.0.sleep_us(us);
    }
}

fn then() -> Env {
    Env { clock: Arc::new(Then(RealClock::new())), ..Env::real() }
}

/// Checks why each of the two refuses the other, whichever connects.
fn refusals(one: &dyn Fn(u32) -> Process, other: &dyn Fn(u32) -> Process, words: [&str; 2]) {
    for one_dials in [true, false] {
        let (a, b) = (one(1), other(2));
        match one_dials {
            true => a.dial(&b, 2),
            false => b.dial(&a, 1),
        }
        for (process, words) in [(&a, words[0]), (&b, words[1])] {
            match process.next() {
                Event::Refused { why, .. } => assert!(why.contains(words), "{words}: {why}"),
                other => panic!("{words}: {other:?}"),
            }
        }
        assert!(a.mesh.peers().is_empty() && b.mesh.peers().is_empty());
    }
}

fn belongs(me: u32) -> Process {
    Process::start(me, member, |_| {})
}

#[test]
fn clear_text_and_tls_do_not_meet() {
    let clear = |me| Process::start(me, super::clear, |_| {});
    refusals(&belongs, &clear, ["does not speak TLS", "it speaks TLS"]);
}

#[test]
fn another_authority_is_turned_away() {
    // Each trusts only its own authority.
    let stranger = |me| Process::start_in(&Env::real(), me, with("stranger", "other"));
    for one_dials in [true, false] {
        let (a, b) = (belongs(1), stranger(2));
        match one_dials {
            true => a.dial(&b, 2),
            false => b.dial(&a, 1),
        }
        // The connecting side checks first.
        let (first, second) = if one_dials { (a, b) } else { (b, a) };
        for (process, words) in
            [(first, "not issued by the authority"), (second, "another authority has issued it")]
        {
            let Event::Refused { why, .. } = process.next() else { panic!("{words}") };
            assert!(why.contains(words), "{why}");
        }
    }
}

#[test]
fn an_expired_certificate_is_turned_away() {
    let old = |me| {
        Process::start_in(&then(), me, |s| {
            s.tls = Some(open_in(&then(), "old", "authority").unwrap())
        })
    };
    refusals(&belongs, &old, ["the certificate has expired", "it is not valid now"]);
}

#[test]
fn a_chain_over_others_is_believed() {
    let (a, b) = (belongs(1), Process::start_in(&Env::real(), 2, with("far", "authority")));
    a.dial(&b, 2);
    assert_eq!((a.up(), b.up()), (Peer(2), Peer(1)));
    b.mesh.send(Peer(1), Lane::Urgent, b"from far".to_vec());
    assert_eq!(a.message(), b"from far");
}

#[test]
fn who_shows_no_certificate_is_turned_away() {
    let there = belongs(1);
    let believed = Verifier::new(&Env::real(), &file("authority")).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(believed))
        .with_no_client_auth();
    let name = ServerName::try_from("nobody").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = Env::real().net.connect(&there.mesh.address(), 1_000_000).unwrap();
    let mut stream = StreamOwned::new(session, socket);
    let error = std::io::Read::read(&mut stream, &mut [0; 1]).unwrap_err();
    assert!(error.to_string().contains("CertificateRequired"), "{error}");
    let Event::Refused { why, .. } = there.next() else { panic!("it is accepted") };
    assert!(why.contains("it shows no certificate"), "{why}");
}

#[test]
fn what_is_passed_on_by_a_member_without_the_secret_proves_nothing() {
    let (there, comes) = (belongs(1), belongs(2));
    let env = Env::real();
    let tls = open_in(&env, "member", "authority").unwrap();
    let listener = env.net.listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
    comes.mesh.link(Peer(1), Some(listener.local_addr().unwrap()));
    let near = tls.receive(listener.accept().unwrap().0).unwrap_or_else(|e| panic!("{e}")).0;
    let far = env.net.connect(&there.mesh.address(), 1_000_000).unwrap();
    let far = tls.connect(far).unwrap_or_else(|e| panic!("{e}")).0;
    let pass = |mut from: Box<dyn Connection>, mut to: Box<dyn Connection>| {
        let body = move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Write);
        };
        env.threads.spawn("passes", Box::new(body)).unwrap()
    };
    let threads = [
        pass(near.try_clone().unwrap(), far.try_clone().unwrap()),
        pass(Box::new(far), Box::new(near)),
    ];
    for process in [&comes, &there] {
        let Event::Refused { why, .. } = process.next() else { panic!("it is accepted") };
        assert!(why.contains("does not know the secret"), "{why}");
    }
    threads.into_iter().for_each(|thread| drop(thread.join()));
}

#[test]
fn garbage_in_tls_ends_what_it_comes_to() {
    let there = belongs(1);
    let env = Env::real();
    // A record that is too long, one that could be a handshake, and one that is none.
    let garbage: [&[u8]; 3] = [
        &[0x16, 3, 3, 0xff, 0xff],
        &[0x16, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff],
        &[0x16, 3, 1, 0, 4, 0xff, 0, 0, 0],
    ];
    for begun in garbage {
        let mut rude = env.net.connect(&there.mesh.address(), 1_000_000).unwrap();
        rude.write_all(begun).unwrap();
        let more = [7; 64 << 10];
        for _ in 0..64 {
            if rude.write_all(&more).is_err() {
                break;
            }
        }
        let Event::Refused { why, .. } = there.next() else { panic!("it is accepted") };
        assert!(why.contains("its TLS is invalid"), "{why}");
    }
    let friend = belongs(2);
    friend.dial(&there, 1);
    assert_eq!((friend.up(), there.up()), (Peer(1), Peer(2)));
}

#[test]
fn files_that_can_not_be_are_refused() {
    let env = Env::real();
    let open = |certificate: &Path, key: &Path, authority: &Path| {
        Tls::open(&env, certificate, key, authority).unwrap_err().to_string()
    };
    let [member, authority, stranger, old, serves] =
        ["member", "authority", "stranger", "old", "serves"].map(file);
    let script = file("make").with_extension("sh");
    for (error, file, words) in [
        (open(&file("none"), &member, &authority), &file("none"), "No such file"),
        (open(&script, &member, &authority), &script, "no certificate in it"),
        (open(&member, &authority, &authority), &authority, "cluster_key its private key"),
        (open(&member, &stranger, &authority), &stranger, "KeyMismatch"),
        (open(&member, &member, &script), &script, "no certificate in it"),
        (open(&stranger, &stranger, &authority), &stranger, "not issued by the authority"),
        (open(&old, &old, &authority), &old, "has expired"),
        (open(&serves, &serves, &authority), &serves, "clients and servers"),
    ] {
        assert!(error.contains(words), "{words}: {error}");
        assert!(error.contains(&file.display().to_string()), "{error}");
    }
}

/// Prints the throughput and the round trips of both kinds of connection.
#[test]
#[ignore = "prints figures"]
fn figures() {
    const LEN: usize = 1 << 20;
    const COUNT: usize = 512;
    let clock = RealClock::new();
    for (kind, base) in [("clear text", super::clear as super::Base), ("TLS", member)] {
        let wide = |s: &mut Settings| s.queue_bytes_max = COUNT * LEN * 2;
        let (a, b) = (Process::start(1, base, wide), Process::start(2, base, wide));
        a.dial(&b, 2);
        assert_eq!((a.up(), b.up()), (Peer(2), Peer(1)));
        let random = Env::real().random;
        // The bytes are noise, because others would be packed.
        let noise: Vec<u8> = (0..LEN / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        for both in [false, true] {
            let from_ns = clock.monotonic_ns();
            for _ in 0..COUNT {
                a.mesh.send(Peer(2), Lane::Bulk, noise.clone());
                if both {
                    b.mesh.send(Peer(1), Lane::Bulk, noise.clone());
                }
            }
            for _ in 0..COUNT {
                assert_eq!(b.message().len(), LEN);
                if both {
                    assert_eq!(a.message().len(), LEN);
                }
            }
            let taken = (clock.monotonic_ns() - from_ns) as f64 / 1e9;
            let megabytes = (COUNT * LEN) as f64 / 1e6;
            let ways = if both { "both ways, each" } else { "one way" };
            println!("{kind}, {ways}: {:.0} MB/s", megabytes / taken);
        }
        let mut taken: Vec<u64> = (0..5_000)
            .map(|_| {
                let from_ns = clock.monotonic_ns();
                a.mesh.send(Peer(2), Lane::Urgent, vec![7; 200]);
                b.message();
                b.mesh.send(Peer(1), Lane::Urgent, vec![7; 200]);
                a.message();
                clock.monotonic_ns() - from_ns
            })
            .collect();
        taken.sort_unstable();
        let at = |share: usize| taken[(taken.len() - 1) * share / 100] as f64 / 1e3;
        println!("{kind}, there and back: {:.0} µs p50, {:.0} µs p99", at(50), at(99));
        let from_ns = clock.monotonic_ns();
        for _ in 0..100 {
            a.mesh.unlink(Peer(2));
            assert_eq!((a.down().0, b.down().0), (Peer(2), Peer(1)));
            a.dial(&b, 2);
            assert_eq!((a.up(), b.up()), (Peer(2), Peer(1)));
        }
        let taken = (clock.monotonic_ns() - from_ns) as f64 / 1e6 / 100.0;
        println!("{kind}, a link: {taken:.2} ms");
    }
}

/// Prints the throughput of a connection without a link. Links pack messages, which takes longer.
#[test]
#[ignore = "prints figures"]
fn figures_of_connections() {
    let env = Env::real();
    let listener = env.net.listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let near = env.net.connect(&listener.local_addr().unwrap(), 1_000_000).unwrap();
    let (sealed, clear) = (pair(&env), (near, listener.accept().unwrap().0));
    let sealed = (Box::new(sealed.0) as Box<dyn Connection>, Box::new(sealed.1) as _);
    for (kind, (mut near, mut far)) in [("clear text", clear), ("TLS", sealed)] {
        const BYTES: usize = 2 << 30;
        let from_ns = env.clock.monotonic_ns();
        let write = move || {
            let bytes = vec![7; 256 << 10];
            (0..BYTES / bytes.len()).for_each(|_| near.write_all(&bytes).unwrap());
        };
        let writer = env.threads.spawn("writes", Box::new(write)).unwrap();
        let mut bytes = vec![0; 256 << 10];
        (0..BYTES / bytes.len()).for_each(|_| far.read_exact(&mut bytes).unwrap());
        writer.join().unwrap();
        let taken = (env.clock.monotonic_ns() - from_ns) as f64;
        println!("{kind}, alone: {:.0} MB/s", BYTES as f64 * 1e3 / taken);
    }
}
