//! Tests the store on a real S3 server. `make test-servers` starts one and runs these tests.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Time and sockets of the tests.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidemill_core::Kind;
use tidemill_durable::{contract, Store};
use tidemill_s3::{S3Options, S3Store};

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name}: run this with make test-servers"))
}

fn options() -> S3Options {
    S3Options { endpoint: Some(variable("SERVERS_S3_ENDPOINT")), ..S3Options::default() }
}

/// Returns a place that no other test has.
fn url(name: &str) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    format!("s3://{}/{name}-{}", variable("SERVERS_S3_BUCKET"), now.as_micros())
}

fn put(store: &S3Store, name: &str, bytes: &[u8]) -> bool {
    store.put(name, bytes).unwrap()
}

fn get(store: &S3Store, name: &str) -> Option<Vec<u8>> {
    store.get(name).unwrap()
}

fn refusal(url: &str, options: &S3Options) -> String {
    let begun = Instant::now();
    let error = S3Store::open(url, options).err().expect("a refusal");
    println!("after {:.1?}: {error}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(25));
    assert_eq!(error.kind, Kind::Io);
    assert!(!error.help.is_empty());
    error.to_string()
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_bucket_keeps_the_contract() {
    let store: Arc<dyn Store> = Arc::new(S3Store::open(&url("contract"), &options()).unwrap());
    contract::store(&store);
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_two_stores_put_once() {
    let url = url("race");
    let stores = [(); 2].map(|()| S3Store::open(&url, &options()).unwrap());
    for round in 0..100 {
        let name = format!("x/{round}");
        let (send, receive) = channel();
        for (store, byte) in stores.iter().zip([1u8, 2]) {
            let (store, name, send) = (store.clone(), name.clone(), send.clone());
            std::thread::spawn(move || send.send((byte, put(&store, &name, &[byte; 1000]))));
        }
        drop(send);
        let winners: Vec<u8> = receive.iter().filter(|put| put.1).map(|put| put.0).collect();
        assert_eq!(winners.len(), 1);
        assert_eq!(get(&stores[0], &name), Some(vec![winners[0]; 1000]));
    }
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_what_is_wrong_is_said() {
    let missing = refusal("s3://no-such-bucket/x", &options());
    assert!(missing.contains("has no bucket no-such-bucket"), "{missing}");
    let wrong = S3Options { secret_access_key: Some("wrong-secret".into()), ..options() };
    let refused = refusal(&url("wrong"), &wrong);
    assert!(refused.contains("refuses the keys: SignatureDoesNotMatch"), "{refused}");
    let wrong = S3Options { access_key_id: Some("nobody".into()), ..options() };
    let refused = refusal(&url("wrong"), &wrong);
    assert!(refused.contains("refuses the keys: InvalidAccessKeyId"), "{refused}");
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    // A server that listens, and never answers.
    let endpoint = Some(format!("http://{address}"));
    let silent = S3Options { endpoint: endpoint.clone(), timeout_us: 1_000_000, ..options() };
    let refused = refusal(&url("silent"), &silent);
    assert!(refused.contains(&address.to_string()), "{refused}");
    drop(nobody);
    let refused = refusal(&url("away"), &S3Options { endpoint, ..options() });
    assert!(refused.contains("can't be reached"), "{refused}");
}

/// The connection breaks during requests and answers. Successful puts are stored. Failed ones are
/// not, or their result could not be known.
#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_bad_line_is_survived() {
    let server = variable("SERVERS_S3_ENDPOINT").trim_start_matches("http://").to_owned();
    let line = Line::new(server);
    let options =
        S3Options { endpoint: Some(line.endpoint.clone()), timeout_us: 20_000_000, ..options() };
    let store = S3Store::open(&url("line"), &options).unwrap();
    for n in 0..60u32 {
        let name = format!("x/{n}");
        let bytes = n.to_be_bytes().repeat(500);
        line.spoil.store(1 + n as usize % 3, Ordering::SeqCst);
        assert!(put(&store, &name, &bytes), "{n}");
        line.spoil.store(1 + n as usize % 2, Ordering::SeqCst);
        assert_eq!(get(&store, &name), Some(bytes));
        line.spoil.store(1, Ordering::SeqCst);
        assert!(!put(&store, &name, b"another"), "it is there already");
    }
    println!("{} requests were spoiled", line.spoiled.load(Ordering::SeqCst));
    assert!(line.spoiled.load(Ordering::SeqCst) > 50);
}

/// A proxy to the server that fails as requested.
struct Line {
    endpoint: String,
    /// The treatment of the next piece of a request: 1 loses the answer, 2 the request, 3 nothing.
    spoil: Arc<AtomicUsize>,
    spoiled: Arc<AtomicUsize>,
}

impl Line {
    fn new(server: String) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (spoil, spoiled) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let line = Line { endpoint, spoil: spoil.clone(), spoiled: spoiled.clone() };
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let Ok(server) = TcpStream::connect(&server) else { return };
                let is_answer_lost = Arc::new(AtomicBool::new(false));
                let ends = [&client, &server].map(|end| end.try_clone().unwrap());
                let (spoil, spoiled, lost) =
                    (spoil.clone(), spoiled.clone(), is_answer_lost.clone());
                std::thread::spawn(move || {
                    pass(client, server, || {
                        let how = spoil.swap(0, Ordering::SeqCst);
                        spoiled.fetch_add(usize::from(how == 1 || how == 2), Ordering::SeqCst);
                        lost.store(how == 1, Ordering::SeqCst);
                        how != 2
                    });
                });
                let [client, server] = ends;
                std::thread::spawn(move || {
                    pass(server, client, || !is_answer_lost.load(Ordering::SeqCst));
                });
            }
        });
        line
    }
}

/// Forwards data as long as it may, and then closes both ends.
fn pass(mut from: TcpStream, mut to: TcpStream, mut may: impl FnMut() -> bool) {
    let mut piece = [0; 1 << 16];
    while let Ok(n) = from.read(&mut piece) {
        if n == 0 || !may() || to.write_all(&piece[..n]).is_err() {
            break;
        }
    }
    for end in [from, to] {
        let _ = end.shutdown(std::net::Shutdown::Both);
    }
}

/// Prints measurements for people.
#[test]
#[ignore = "needs a server: make test-servers"]
fn server_figures() {
    let begun = Instant::now();
    let store = S3Store::open(&url("figures"), &options()).unwrap();
    println!("opened in {:.1?}", begun.elapsed());
    for (size, count) in [(1_000, 500), (100_000, 300), (4 << 20, 30)] {
        let bytes = vec![7; size];
        let mut taken: [Vec<f64>; 2] = Default::default();
        for n in 0..count {
            let name = format!("{size}/{n}");
            let begun = Instant::now();
            assert!(put(&store, &name, &bytes));
            taken[0].push(begun.elapsed().as_secs_f64() * 1000.0);
            let begun = Instant::now();
            assert!(get(&store, &name).is_some());
            taken[1].push(begun.elapsed().as_secs_f64() * 1000.0);
        }
        for (what, mut taken) in ["put", "got"].into_iter().zip(taken) {
            taken.sort_unstable_by(f64::total_cmp);
            let at = |share: f64| taken[((taken.len() - 1) as f64 * share) as usize];
            println!("{size} bytes {what} in {:.2} ms p50, {:.2} ms p99", at(0.5), at(0.99));
        }
    }
}
