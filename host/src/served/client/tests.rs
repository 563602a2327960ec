//! Links that end during appends, between a served log and its client.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::OnceLock;
use std::time::Duration;

use tidemill_cluster::Output;
use tidemill_core::Value;
use tidemill_env::{Addr, Env};
use tidemill_function::Tid;
use tidemill_mesh::{Event, Peer, Secret, Settings, Sink};

use super::*;
use crate::served::{hold, serve, FileLog, Served};

const OUT: Topic = Topic::Output(0);
const LONG: Duration = Duration::from_secs(30);

/// The coordinator, which may drop requests.
struct Server {
    served: Served,
    mesh: OnceLock<Weak<Mesh>>,
    is_deaf: AtomicBool,
    dropped: Sender<()>,
}

impl Sink for Server {
    fn take(&self, event: Event) {
        let Event::Message { peer, bytes } = event else { return };
        if self.is_deaf.load(Ordering::SeqCst) {
            return self.dropped.send(()).unwrap();
        }
        let mesh = self.mesh.get().expect("it listens before the first request");
        assert!(serve(&self.served, mesh, peer, Message::of(&bytes).unwrap()).is_none());
    }
}

/// The worker, which uses the served log.
struct Asker {
    remote: OnceLock<Arc<RemoteLog>>,
    ups: Sender<()>,
}

impl Sink for Asker {
    fn take(&self, event: Event) {
        let remote = self.remote.get();
        match event {
            Event::Up { .. } => self.ups.send(()).unwrap(),
            Event::Message { bytes, .. } => {
                let message = Message::of(&bytes).unwrap();
                assert!(remote.expect("it has asked").answered(message).is_none());
            }
            Event::Down { .. } => remote.into_iter().for_each(|remote| remote.broken()),
            Event::Refused { why, .. } => panic!("{why}"),
        }
    }
}

fn listen(env: &Env, me: Peer, sink: Arc<dyn Sink>) -> Arc<Mesh> {
    let settings = Settings::new(me, Secret::new(&[7; 32]), "cluster", 1);
    let address: Addr = "127.0.0.1:0".parse().unwrap();
    Arc::new(Mesh::listen(env, &address, settings, sink).unwrap())
}

fn output(n: u64) -> Record {
    Record::Outputs(vec![Output::Reply { tid: Tid(n), id: [].into(), outcome: Ok(Value::Int(0)) }])
}

fn begins(generation: u64) -> Record {
    Record::Generation { generation }
}

type Answer = Result<u64, Refused>;

fn begin(log: &dyn Log, topic: Topic, generation: u64, record: Record) -> Receiver<Answer> {
    let (send, receive) = channel();
    let then = move |answer| send.send(answer).unwrap();
    log.append(topic, generation, record, Box::new(then));
    receive
}

fn append(log: &dyn Log, topic: Topic, generation: u64, record: Record) -> Answer {
    begin(log, topic, generation, record).recv_timeout(LONG).expect("an answer")
}

fn all(log: &dyn Log, topic: Topic) -> Vec<Record> {
    let (send, receive) = channel();
    log.read(topic, 0, None, 0, Box::new(move |found| send.send(found).unwrap()));
    let found = receive.recv_timeout(LONG).expect("an answer").expect("it is there");
    found.records.into_iter().map(|(_, record)| record).collect()
}

#[test]
fn nothing_of_a_generation_gets_in_behind_an_append_that_was_lost() {
    let env = Env::real();
    let dir = tempfile::tempdir().unwrap();
    let held = hold(&env, dir.path()).unwrap();
    let log = FileLog::open(&env, dir.path().into(), 1, held, 1 << 20).unwrap();
    let (dropped, drops) = channel();
    let is_deaf = AtomicBool::new(false);
    let log = Arc::new(log);
    let served = Served { log: Some(log.clone()), inputs: None };
    let server = Arc::new(Server { served, mesh: OnceLock::new(), is_deaf, dropped });
    let serving = listen(&env, COORDINATOR, server.clone());
    server.mesh.set(Arc::downgrade(&serving)).unwrap();
    let (ups, is_up) = channel();
    let asker = Arc::new(Asker { remote: OnceLock::new(), ups });
    let asking = listen(&env, Peer(7), asker.clone());
    let remote = RemoteLog::new(Arc::downgrade(&asking));
    let remote = asker.remote.get_or_init(|| Arc::new(remote)).clone();
    let link = || {
        asking.link(COORDINATOR, Some(serving.address()));
        is_up.recv_timeout(LONG).expect("a link");
    };

    link();
    for topic in [OUT, Topic::Output(1)] {
        append(&*remote, topic, 1, begins(1)).unwrap();
    }
    append(&*remote, OUT, 1, output(0)).unwrap();
    // The link ends during the append of a request and of an output, and neither has arrived.
    server.is_deaf.store(true, Ordering::SeqCst);
    let lost =
        [(Topic::Input(0), 10), (OUT, 1)].map(|(topic, n)| begin(&*remote, topic, 1, output(n)));
    for _ in &lost {
        drops.recv_timeout(LONG).expect("it was asked");
    }
    asking.unlink(COORDINATOR);
    for lost in lost {
        assert_eq!(lost.recv_timeout(LONG), Ok(Err(Refused::Unknown)));
    }
    server.is_deaf.store(false, Ordering::SeqCst);
    link();
    // The file would take it. Only the client that has lost the one before knows that it would
    // leave a gap.
    for n in 2..5 {
        assert_eq!(append(&*remote, OUT, 1, output(n)), Err(Refused::Unknown));
    }
    // Other topics have no gap, requests may have gaps, and the next generation knows what is
    // there.
    append(&*remote, Topic::Output(1), 1, output(5)).unwrap();
    append(&*remote, Topic::Input(0), 1, output(11)).unwrap();
    append(&*remote, OUT, 2, begins(2)).unwrap();
    append(&*remote, OUT, 2, output(6)).unwrap();
    assert!(append(&*remote, OUT, 1, output(7)).is_err());
    for log in [&*remote as &dyn Log, &*log] {
        assert_eq!(all(log, OUT), [begins(1), output(0), begins(2), output(6)]);
        assert_eq!(all(log, Topic::Output(1)), [begins(1), output(5)]);
        assert_eq!(all(log, Topic::Input(0)), [output(11)]);
    }
}
