//! The load in a loop: rounds and calls one after the other, in an order from a seed. The moments
//! come from the seed, too. Many overlap, and the real order is always possible.

use crate::history::{
    is_refused, number, Do, History, Op, Transaction, Turn, Who, KEYS, NESTED, NODES, PROCEDURES,
    STREAMS,
};

/// SplitMix64.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % n
    }
}

/// Three different keys.
pub fn keys(dice: &mut Dice) -> [i64; 3] {
    let first = dice.below(KEYS);
    let step = 1 + 2 * dice.below(KEYS / 2);
    [0, 1, 2].map(|nth| ((first + nth * step) % KEYS) as i64)
}

/// The number of rounds and calls.
const STEPS: u64 = 200;

/// Runs the loop and returns its history.
pub fn run(seed: u64) -> History {
    let (mut dice, mut history) = (Dice(seed), History::default());
    for step in 1..=STEPS {
        let moment = step * 10;
        let (made, answered) = (moment - dice.below(60).min(moment), moment + 1 + dice.below(60));
        let transact = |history: &mut History, who: Who, ops: Vec<Op>, committed: bool| {
            let (mut lists, mut seen) = (history.lists.clone(), Vec::new());
            for op in ops {
                seen.push(match op {
                    Op::Append { key, number } => {
                        lists.entry(key).or_default().push(number);
                        op
                    }
                    Op::Read { key, .. } => {
                        Op::Read { key, list: lists.get(&key).cloned().unwrap_or_default() }
                    }
                });
            }
            if committed {
                history.lists = lists;
                match who {
                    Who::Call(id) => history.schedule.push(Turn::Call(id)),
                    Who::Node(node, round) => history.schedule.extend(
                        NODES[node].iter().map(|p| Turn::Procedure { procedure: *p, round }),
                    ),
                }
            }
            history.transactions.push(Transaction { who, made, answered, ops: seen, committed });
        };
        if dice.below(2) == 0 {
            let [key, other] = [(); 2].map(|()| dice.below(KEYS) as i64);
            let append = Op::Append { key, number: -(step as i64) };
            let reads = [key, other].map(|key| Op::Read { key, list: Vec::new() });
            let appends = dice.below(2) == 0;
            let ops = appends.then_some(append).into_iter().chain(reads);
            let committed = dice.below(5) > 0;
            transact(&mut history, Who::Call(step as i64), ops.collect(), committed);
            continue;
        }
        let stream = dice.below(2) as usize;
        history.rounds[stream] += 1;
        let round = history.rounds[stream];
        let keys = keys(&mut dice);
        for node in STREAMS[stream].1 {
            let does =
                NODES[*node].iter().flat_map(|p| PROCEDURES[*p].does.iter().map(|d| (*p, *d)));
            let op = |(procedure, does): (usize, Do)| match does {
                Do::Append(place) => {
                    Op::Append { key: keys[place], number: number(procedure, round) }
                }
                Do::Read(place) => Op::Read { key: keys[place], list: Vec::new() },
            };
            transact(
                &mut history,
                Who::Node(*node, round),
                does.map(op).collect(),
                !(*node == NESTED && is_refused(round)),
            );
        }
    }
    history
}
