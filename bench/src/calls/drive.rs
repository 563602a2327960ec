//! Nodes on threads. Each has a queue; they share nothing else.

use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;

use tidemill_core::{Error, Key, Result, Row, TableId};
use tidemill_env::Env;
use tidemill_function::{
    Call, Counters, Event, Functions, Message, Node, NodeId, Outbox, Owners, Rows, Sequencing,
    Settings, Tid,
};

/// The outcome of a run.
pub(super) struct Ended {
    pub ns: u64,
    pub rows: Vec<(TableId, Row)>,
    pub replies: usize,
    pub counters: Counters,
}

/// The requests of an epoch that arrive at one node.
type Epoch = Vec<(Tid, Call)>;

struct Worker {
    node: Node,
    epochs: Vec<Epoch>,
    queue: Receiver<(NodeId, Message)>,
    others: Vec<Sender<(NodeId, Message)>>,
    me: NodeId,
    replies: usize,
}

impl Worker {
    /// Executes all epochs.
    fn run(mut self) -> (Node, usize) {
        for (number, requests) in std::mem::take(&mut self.epochs).into_iter().enumerate() {
            let mut out = Outbox::default();
            let (epoch, clock) = (number as u64 + 1, (number as i64).into());
            self.node.begin(
                epoch,
                clock,
                requests,
                (Vec::new(), tidemill_function::ColumnPlan::default()),
                &mut out,
            );
            self.take(&mut out);
            while self.node.is_running() {
                let (from, message) = self.queue.recv().expect("the others are there");
                self.node.receive(from, message, &mut out);
                // All messages in the queue are received before anything is sent.
                while let Ok((from, message)) = self.queue.try_recv() {
                    self.node.receive(from, message, &mut out);
                }
                self.take(&mut out);
            }
        }
        (self.node, self.replies)
    }

    fn take(&mut self, out: &mut Outbox) {
        for (to, message) in out.messages.drain(..) {
            // A node that has ended needs no more messages.
            let _ = self.others[usize::from(to.0)].send((self.me, message));
        }
        let replies = out.events.drain(..).filter(|e| matches!(e, Event::Replied { .. }));
        self.replies += replies.count();
    }
}

/// Executes requests on this many threads.
pub(super) fn run(
    env: &Env,
    threads: usize,
    functions: Arc<dyn Functions>,
    settings: Settings,
    rows: &[(TableId, Row)],
    requests: &[Call],
    epoch: usize,
) -> Result<Ended> {
    let owners = Owners::equal(threads as u16);
    let program = functions.program();
    let owner = |table: TableId, key: &[tidemill_core::Value]| {
        usize::from(owners.of_key(program, table, key).expect("a whole key").0)
    };
    let mut stores: Vec<Rows> = (0..threads).map(|_| Rows::new(&program.tables, 7)).collect();
    for (table, row) in rows {
        let spec = &program.tables[table.index()];
        let key: Vec<_> = spec.key.iter().map(|&column| row[column].clone()).collect();
        let store = &mut stores[owner(*table, &key)];
        store.apply(Tid(0), *table, &Key::of(&key), Some(row.clone().into()));
    }
    let mut epochs: Vec<Vec<Epoch>> = vec![Vec::new(); threads];
    let mut order = Sequencing { sources: 1, base: 0 };
    for requests in requests.chunks(epoch) {
        epochs.iter_mut().for_each(|epochs| epochs.push(Vec::new()));
        for (nth, call) in requests.iter().enumerate() {
            let at = owner(call.table, &call.key);
            let last = epochs[at].last_mut().expect("it was pushed");
            last.push((order.tid(0, nth as u64), call.clone()));
        }
        order = order.next(requests.len() as u64);
    }
    let (sends, queues): (Vec<_>, Vec<_>) = (0..threads).map(|_| channel()).unzip();
    let (done, ended) = channel();
    let begun = env.clock.monotonic_ns();
    let mut running = Vec::new();
    for (n, ((store, epochs), queue)) in stores.into_iter().zip(epochs).zip(queues).enumerate() {
        let me = NodeId(n as u16);
        let node = Node::new(me, functions.clone(), owners.clone(), settings, store);
        let others = sends.clone();
        let worker = Worker { node, epochs, queue, others, me, replies: 0 };
        let done = done.clone();
        let body = move || drop(done.send(worker.run()));
        let thread = env.threads.spawn("bench-node", Box::new(body));
        running.push(thread.map_err(|e| Error::io("starting a thread", &e))?);
    }
    drop((sends, done));
    let mut all = Ended { ns: 0, rows: Vec::new(), replies: 0, counters: Counters::default() };
    let nodes: Vec<(Node, usize)> = ended.iter().collect();
    all.ns = env.clock.monotonic_ns() - begun;
    for thread in running {
        thread.join().map_err(|panic| Error::internal(format!("a node: {panic}")))?;
    }
    for (node, replies) in nodes {
        all.replies += replies;
        let counters = node.counters();
        // Rounds and epochs are equal on all nodes.
        (all.counters.rounds, all.counters.epochs) = (counters.rounds, counters.epochs);
        all.counters.calls += counters.calls;
        all.counters.cached += counters.cached;
        all.counters.messages += counters.messages;
        let rows = node.rows().iter();
        all.rows.extend(rows.map(|(table, _, row)| (table, row.iter().cloned().collect())));
    }
    Ok(all)
}
