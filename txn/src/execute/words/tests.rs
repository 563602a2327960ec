//! Machine code equals the interpreter, bit for bit, on random code and random words.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use proptest::prelude::*;
use tidemill_core::StreamId;
use tidemill_table::RowAt;

use super::{Ins, KeyFrom, Machine, Move, Stop, WordCode, WordEmit, WordRow};
use crate::execute::closure::Columns;

/// A SplitMix64 generator: one seed gives one case.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// Returns a word of a kind: most often a small one, or else one at a limit.
    fn word(&mut self, kind: Kind) -> u64 {
        match kind {
            Kind::Bool => self.next() & 1,
            Kind::Int if self.below(4) > 0 => (self.below(21) as i64 - 10) as u64,
            Kind::Int => match self.below(8) {
                0 => self.next(),
                edge => [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX][edge - 1] as u64,
            },
            Kind::Float if self.below(2) > 0 => (self.below(21) as f64 / 4.0 - 2.5).to_bits(),
            Kind::Float => match self.below(10) {
                0 => self.next(),
                // A NaN that no stored float has.
                1 => 0xFFF0_0000_0000_1234,
                edge => [
                    f64::NAN,
                    0.0,
                    -0.0,
                    f64::INFINITY,
                    f64::NEG_INFINITY,
                    f64::MAX,
                    f64::MIN_POSITIVE,
                    5e-324,
                ][edge - 2]
                    .to_bits(),
            },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Int,
    Float,
    Bool,
}

const KINDS: [Kind; 3] = [Kind::Int, Kind::Float, Kind::Bool];

/// The number of words of a row. The first ones are its header.
const WIDTH: usize = 9;

/// Random code, and the kind of each register.
struct Random {
    code: WordCode,
    kinds: Vec<Kind>,
    columns: Vec<Kind>,
    rows: Vec<[Kind; WIDTH]>,
    /// The registers with a canonical NaN.
    canonical: Vec<u8>,
}

impl Random {
    fn new(dice: &mut Dice) -> Random {
        let mut kinds = Vec::new();
        let mut register = |kind: Kind| {
            kinds.push(kind);
            kinds.len() as u8 - 1
        };
        let constants = KINDS.iter().cycle().take(2 + dice.below(6));
        let constants =
            constants.map(|kind| (register(*kind), dice.word(*kind))).collect::<Vec<_>>();
        let columns: Vec<Kind> = (0..1 + dice.below(12)).map(|_| dice.pick(&KINDS)).collect();
        let columns_at = columns.iter().enumerate();
        let columns_at = columns_at.map(|(c, kind)| (c as u16, register(*kind))).collect();
        let rows: Vec<[Kind; WIDTH]> =
            (0..1 + dice.below(4)).map(|_| [(); WIDTH].map(|()| dice.pick(&KINDS))).collect();
        let mut loads = Vec::new();
        for (row, words) in rows.iter().enumerate() {
            for word in (3..WIDTH).filter(|_| dice.below(3) > 0) {
                loads.push(Move {
                    row: row as u8,
                    register: register(words[word]),
                    word: word as u16,
                });
            }
        }
        // The code begins with at least one register of each kind.
        let mut constants = constants;
        for kind in KINDS {
            constants.push((register(kind), dice.word(kind)));
        }
        let (mut code, mut canonical, mut reasons) = (Vec::new(), Vec::new(), 0);
        for _ in 0..1 + dice.below(40) {
            let ins = instruction(dice, &mut kinds, &mut reasons);
            if let Ins::Canonical(d, _) = ins {
                canonical.push(d);
            }
            code.push(ins);
        }
        // All computed values are checked: some as written, the others as emitted.
        let all: Vec<u8> = (0..kinds.len() as u8).collect();
        let (written, emitted) = all.split_at(dice.below(all.len()));
        let store = |register: &u8| Move { row: 0, register: *register, word: 3 };
        let pairs = match rows.len() {
            1 => Vec::new(),
            rows => vec![(0, 1 + dice.below(rows - 1) as u8)],
        };
        let code = WordCode {
            rows: rows.iter().map(|_| WordRow { table: 0, key: KeyFrom::Const(0) }).collect(),
            asks: false,
            pairs,
            loads,
            written: 1,
            stores: written.iter().map(store).collect(),
            columns: columns_at,
            emits: vec![WordEmit { stream: StreamId(0), registers: emitted.to_vec() }],
            streams: vec![0],
            consumed: false,
            reasons: (0..reasons).map(|n| n.to_string()).collect(),
            constants,
            code,
            machine: OnceLock::new(),
        };
        Random { code, kinds, columns, rows, canonical }
    }
}

/// Returns a random instruction on registers of the right kinds.
fn instruction(dice: &mut Dice, kinds: &mut Vec<Kind>, reasons: &mut u16) -> Ins {
    use Kind::*;
    let of = |dice: &mut Dice, kinds: &[Kind], kind: Kind| {
        let all: Vec<u8> =
            (0..kinds.len()).filter(|r| kinds[*r] == kind).map(|r| r as u8).collect();
        // New registers are preferred, so that instructions build on one another.
        match dice.below(2) {
            0 => all[all.len() - 1 - dice.below(all.len().min(3))],
            _ => dice.pick(&all),
        }
    };
    type Two = fn(u8, u8, u8) -> Ins;
    type One = fn(u8, u8) -> Ins;
    const TWO: [(Two, Kind, Kind); 19] = [
        (Ins::AddInt, Int, Int),
        (Ins::SubInt, Int, Int),
        (Ins::MulInt, Int, Int),
        (Ins::FloorDivInt, Int, Int),
        (Ins::ModInt, Int, Int),
        (Ins::AddFloat, Float, Float),
        (Ins::SubFloat, Float, Float),
        (Ins::MulFloat, Float, Float),
        (Ins::DivFloat, Float, Float),
        (Ins::And, Bool, Bool),
        (Ins::Or, Bool, Bool),
        (Ins::EqInt, Int, Bool),
        (Ins::NeInt, Int, Bool),
        (Ins::LtInt, Int, Bool),
        (Ins::LeInt, Int, Bool),
        (Ins::EqFloat, Float, Bool),
        (Ins::NeFloat, Float, Bool),
        (Ins::LtFloat, Float, Bool),
        (Ins::LeFloat, Float, Bool),
    ];
    const ONE: [(One, Kind, Kind); 7] = [
        (Ins::NegInt, Int, Int),
        (Ins::AbsInt, Int, Int),
        (Ins::NegFloat, Float, Float),
        (Ins::AbsFloat, Float, Float),
        (Ins::Canonical, Float, Float),
        (Ins::IntToFloat, Int, Float),
        (Ins::Not, Bool, Bool),
    ];
    let which = dice.below(TWO.len() + ONE.len() + 3);
    let d = kinds.len() as u8;
    if let Some((ins, from, to)) = TWO.get(which) {
        let (a, b) = (of(dice, kinds, *from), of(dice, kinds, *from));
        kinds.push(*to);
        return ins(d, a, b);
    }
    if let Some((ins, from, to)) = ONE.get(which - TWO.len()) {
        let a = of(dice, kinds, *from);
        kinds.push(*to);
        return ins(d, a);
    }
    match which - TWO.len() - ONE.len() {
        0 => {
            let kind = dice.pick(&KINDS);
            let (a, b) = (of(dice, kinds, kind), of(dice, kinds, kind));
            let c = of(dice, kinds, Bool);
            kinds.push(kind);
            Ins::Select(d, c, a, b)
        }
        1 => {
            *reasons += 1;
            Ins::Require(of(dice, kinds, Bool), *reasons - 1)
        }
        _ => {
            *reasons += 1;
            Ins::RequireLeInt(of(dice, kinds, Int), of(dice, kinds, Int), *reasons - 1)
        }
    }
}

/// Runs code in both ways on the words of rows and columns.
fn compare(dice: &mut Dice, random: &Random, machine: &Machine) -> Result<(), Stop> {
    let code = &random.code;
    let columns: Vec<[u64; 3]> =
        random.columns.iter().map(|kind| [(); 3].map(|()| dice.word(*kind))).collect();
    let columns = Columns::of(columns.iter().map(|words| &words[..]).collect());
    let mut words: Vec<[u64; WIDTH]> =
        random.rows.iter().map(|kinds| kinds.map(|kind| dice.word(kind))).collect();
    let mut rows: Vec<RowAt> = words.iter_mut().map(|w| RowAt::frame(w.as_mut_ptr())).collect();
    if dice.below(10) == 0 {
        // Two rows may be the same.
        let last = rows.len() - 1;
        rows[last] = rows[0];
    }
    let event = dice.below(3);
    let mut frames = [[0; 256]; 2];
    frames.iter_mut().for_each(|frame| code.prepare(frame));
    let [interpreted, ran] = &mut frames;
    // SAFETY: there are as many rows and columns as the code has, all with the words that it reads.
    let (wanted, got) = unsafe {
        (
            code.decide(None, &rows, &columns, event, interpreted),
            code.decide(Some(machine), &rows, &columns, event, ran),
        )
    };
    assert_eq!(wanted, got, "{code:?}");
    if wanted.is_ok() {
        for (register, kind) in random.kinds.iter().enumerate() {
            let (wanted, got) = (interpreted[register], ran[register]);
            // The bits of a NaN are visible only after it is made canonical.
            let is_nan = |word: u64| f64::from_bits(word).is_nan();
            let any = *kind == Kind::Float && !random.canonical.contains(&(register as u8));
            let same = wanted == got || any && is_nan(wanted) && is_nan(got);
            assert!(same, "register {register}: {wanted:#x} and {got:#x} in {code:?}");
        }
    }
    wanted
}

fn case(seed: u64, seen: &mut BTreeSet<String>) {
    let mut dice = Dice(seed);
    let random = Random::new(&mut dice);
    let machine = Machine::assemble(&random.code).expect("any code can be assembled");
    for _ in 0..40 {
        match compare(&mut dice, &random, &machine) {
            Ok(()) => seen.extend(random.code.code.iter().map(name)),
            Err(stop) => drop(seen.insert(format!("{stop:?}"))),
        }
    }
}

fn name(ins: &Ins) -> String {
    format!("{ins:?}").split('(').next().unwrap_or_default().to_string()
}

proptest! {
    #[test]
    fn machine_code_is_the_interpreter(seed: u64) {
        case(seed, &mut BTreeSet::new());
    }
}

#[test]
fn code_is_for_any_thread() {
    fn shared<T: Send + Sync>() {}
    shared::<WordCode>();
}

/// Otherwise the comparison above would be worth little: every instruction must run to the end.
#[test]
fn random_code_has_every_instruction() {
    let mut seen = BTreeSet::new();
    (0..300).for_each(|seed| case(seed, &mut seen));
    let instructions = seen.iter().filter(|name| !name.contains("Abort") && *name != "Trap");
    assert_eq!(instructions.count(), 29, "{seen:?}");
    assert!(seen.contains("Trap") && seen.contains("Abort(0)") && seen.contains("Abort(1)"));
}
