//! The protocol of functions, with messages in any possible order: the outcome must be the
//! reference's.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::script::{asked, Answers, OnNodes, Script, CALLS_MAX, DEPTH_MAX};
use crate::{Dice, Epoch, Expected};
use tidemill_core::Value;
use tidemill_function::{
    Call, Event, Message, Node, NodeId, Outbox, Owners, Path, Question, Rows, Sequencing, Settings,
    Tid,
};

/// The nodes and the messages between each two of them.
struct Net {
    nodes: Vec<Node>,
    wires: BTreeMap<(NodeId, NodeId), VecDeque<Message>>,
    /// The questions of nodes to the outside, and the answers so far.
    questions: Vec<(NodeId, Question)>,
    answers: Answers,
    events: Vec<(Tid, Path, Vec<Value>)>,
    found: Expected,
    committed: usize,
    not_deterministic: usize,
    tables: usize,
}

impl Net {
    fn new(script: &Arc<Script>, nodes: u16, settings: Settings) -> Net {
        let owners = Owners::equal(nodes);
        let program = Arc::new(OnNodes::new(script));
        let node = |n| {
            let store = Rows::new(&script.program.tables, 7);
            Node::new(NodeId(n), program.clone(), owners.clone(), settings, store)
        };
        Net {
            nodes: (0..nodes).map(node).collect(),
            wires: BTreeMap::new(),
            questions: Vec::new(),
            answers: Answers::new(),
            events: Vec::new(),
            found: Expected::default(),
            committed: 0,
            not_deterministic: 0,
            tables: script.tables(),
        }
    }

    fn take(&mut self, from: NodeId, out: Outbox) {
        for (to, message) in out.messages {
            self.wires.entry((from, to)).or_default().push_back(message);
        }
        for event in out.events {
            match event {
                Event::Replied { tid, outcome } => {
                    let outcome = outcome.map_err(|abort| abort.reason);
                    let twice = self.found.replies.insert(tid, outcome);
                    assert_eq!(twice, None, "{tid:?} has two replies");
                }
                Event::Emitted { tid, path, row, .. } => {
                    self.events.push((tid, path, row.to_vec()))
                }
                Event::Asked(question) => self.questions.push((from, question)),
                Event::Outbox { .. } => {}
                Event::Columns(outcome) => {
                    assert!(outcome.outputs.is_empty(), "there are calls only")
                }
                Event::Failed => panic!("a message does not fit"),
                Event::Committed { .. } => self.committed += 1,
                Event::NotDeterministic { .. } => self.not_deterministic += 1,
            }
        }
    }

    /// Executes an epoch; returns whether it ended.
    fn run(
        &mut self,
        number: u64,
        clock_us: i64,
        homes: Vec<Vec<(Tid, Call)>>,
        dice: &mut Dice,
    ) -> bool {
        self.committed = 0;
        let mut homes: Vec<_> = homes.into_iter().map(Some).collect();
        loop {
            let mut choices: Vec<(NodeId, NodeId)> =
                self.wires.iter().filter(|(_, w)| !w.is_empty()).map(|(&pair, _)| pair).collect();
            let begins = homes.iter().enumerate().filter(|(_, h)| h.is_some());
            choices.extend(begins.map(|(n, _)| (NodeId(n as u16), NodeId(n as u16))));
            let questions = self.questions.len() as u64;
            if questions > 0 && (choices.is_empty() || dice.chance(20)) {
                let (at, question) = self.questions.swap_remove(dice.below(questions) as usize);
                let answer = question.ask.now();
                let twice = self.answers.insert((question.tid, asked(&answer)), answer.clone());
                assert_eq!(twice, None, "{question:?} is asked twice");
                let mut out = Outbox::default();
                self.nodes[usize::from(at.0)].answered(&question, answer.into(), &mut out);
                self.take(at, out);
                continue;
            }
            if choices.is_empty() {
                break;
            }
            let (from, to) = *dice.pick(&choices);
            let mut out = Outbox::default();
            if from == to {
                let home = homes[usize::from(to.0)].take().unwrap();
                self.nodes[usize::from(to.0)].begin(
                    number,
                    clock_us.into(),
                    home,
                    (Vec::new(), tidemill_function::ColumnPlan::default()),
                    &mut out,
                );
            } else {
                let message = self.wires.get_mut(&(from, to)).unwrap().pop_front().unwrap();
                self.nodes[usize::from(to.0)].receive(from, message, &mut out);
            }
            self.take(to, out);
        }
        self.committed == self.nodes.len()
    }

    fn finish(mut self) -> Expected {
        self.events.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        self.found.events = self.events.into_iter().map(|(_, _, row)| row).collect();
        self.found.tables = vec![BTreeMap::new(); self.tables];
        for node in &self.nodes {
            for (table, key, row) in node.rows().iter() {
                self.found.tables[table.index()].insert(key, row);
            }
        }
        self.found
    }
}

/// Returns whether the run of a seed ended, its outcome, and the expected outcome.
fn run(seed: u64) -> (bool, Expected, Expected) {
    let mut dice = Dice::new(seed);
    let keys = 2 + dice.below(12) as i64;
    let script = Script::random(&mut dice, keys);
    let nodes = 1 + dice.below(4) as u16;
    let cache = dice.chance(75);
    let rounds_max = 2 + dice.below(5) as u32;
    let begins_max = *dice.pick(&[0, 1, 2, 16]);
    let settings = Settings {
        calls_max: CALLS_MAX,
        depth_max: DEPTH_MAX,
        rounds_max,
        begins_max,
        cache,
        ..Settings::default()
    };
    let mut net = Net::new(&script, nodes, settings);
    let mut order = Sequencing { sources: nodes.into(), base: 0 };
    let (mut epochs, mut id) = (Vec::new(), 0);
    let mut ended = true;
    for number in 0..1 + dice.below(4) {
        let counts: Vec<u64> = (0..nodes).map(|_| dice.below(12)).collect();
        let mut homes = Vec::new();
        for (source, &count) in counts.iter().enumerate() {
            let mut home = Vec::new();
            for nth in 0..count {
                id += 1;
                let given = if dice.chance(5) { id / 2 } else { id };
                home.push((order.tid(source as u32, nth), script.request(&mut dice, given)));
            }
            homes.push(home);
        }
        let clock_us = 1_000 * (number as i64 + 1);
        let mut requests: Vec<(Tid, Call)> = homes.concat();
        requests.sort_by_key(|(tid, _)| *tid);
        epochs.push(Epoch { clock_us, requests });
        order = order.next(counts.iter().copied().max().unwrap_or(0));
        ended &= net.run(number, clock_us, homes, &mut dice);
        if !ended {
            break;
        }
    }
    assert_eq!(net.not_deterministic, 0);
    let wanted = Expected::of(&script, &epochs, &net.answers);
    (ended, net.finish(), wanted)
}

fn cases() -> u64 {
    let named = std::env::var("TIDEMILL_CASES").ok();
    named.and_then(|n| n.parse().ok()).unwrap_or(2_000)
}

#[test]
fn any_order_of_messages_comes_to_the_reference() {
    let named = std::env::var("TIDEMILL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = named.map_or(0..cases(), |seed: u64| seed..seed + 1);
    for seed in seeds {
        let (ended, found, wanted) = run(seed);
        assert!(ended, "seed {seed}: an epoch did not end");
        assert_eq!(found.replies, wanted.replies, "seed {seed}: replies");
        assert_eq!(found.events, wanted.events, "seed {seed}: events");
        assert_eq!(found.tables, wanted.tables, "seed {seed}: tables");
    }
}

#[test]
fn keys_that_are_none_are_refused() {
    let mut dice = Dice::new(7);
    let script = Script::random(&mut dice, 5);
    let mut net = Net::new(&script, 3, Settings::default());
    let keys =
        [vec![Value::Null], vec![], vec![Value::Int(1), Value::Int(2)], vec![Value::str("1")]];
    let mut home = Vec::new();
    for (n, key) in keys.iter().enumerate() {
        for call in [script.request(&mut dice, n as i64), script.request(&mut dice, n as i64)] {
            let tid = Tid(home.len() as u64 + 1);
            home.push((tid, Call { key: key.clone().into(), ..call }));
        }
    }
    let call = script.request(&mut dice, 9);
    home.push((Tid(100), Call { table: tidemill_core::TableId(77), ..call }));
    let count = home.len();
    assert!(net.run(1, 1_000, vec![home, Vec::new(), Vec::new()], &mut dice));
    assert_eq!(net.found.replies.values().filter(|reply| reply.is_err()).count(), count);
}
