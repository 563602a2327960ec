//! The calls of clients.

use super::{Scale, DISTRICTS};
use crate::rng::Rng;

/// A call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Call {
    NewOrder(NewOrder),
    Payment(Payment),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct NewOrder {
    pub warehouse: i64,
    pub district: i64,
    pub customer: i64,
    /// The lines: item, warehouse that supplies it, quantity.
    pub lines: Vec<(i64, i64, i64)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Payment {
    pub warehouse: i64,
    pub district: i64,
    pub customer_warehouse: i64,
    pub customer_district: i64,
    /// The number of the customer; 0 when named by the last name.
    pub customer: i64,
    pub last: String,
    pub amount: i64,
    /// The id of the row of history.
    pub id: i64,
}

/// The constants that are drawn once for a run (TPC-C, clause 2.1.6.1).
#[derive(Clone, Copy)]
struct NuRand {
    last: i64,
    customer: i64,
    item: i64,
}

fn between(rng: &mut Rng, low: i64, high: i64) -> i64 {
    low + rng.below((high - low + 1) as u64) as i64
}

/// Draws a number with NURand (TPC-C, clause 2.1.6).
fn nurand(rng: &mut Rng, a: i64, c: i64, low: i64, high: i64) -> i64 {
    (((between(rng, 0, a) | between(rng, low, high)) + c) % (high - low + 1)) + low
}

/// Returns a last name of three syllables (TPC-C, clause 4.3.2.3).
pub(super) fn last_name(number: i64) -> String {
    const SYLLABLES: [&str; 10] =
        ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
    [number / 100, number / 10 % 10, number % 10].map(|n| SYLLABLES[n as usize % 10]).concat()
}

/// Returns the number of different last names.
pub(super) fn names(scale: &Scale) -> i64 {
    scale.customers().min(1000)
}

/// Generates the calls of a run from the seed.
pub(super) fn generate(seed: u64, scale: &Scale, count: usize) -> Vec<Call> {
    let mut rng = Rng::new(seed);
    let nu = NuRand {
        last: between(&mut rng, 0, 255),
        customer: between(&mut rng, 0, 1023),
        item: between(&mut rng, 0, 8191),
    };
    (0..count)
        .map(|nth| match rng.below(100) < 51 {
            true => Call::NewOrder(new_order(&mut rng, scale, nu)),
            false => Call::Payment(payment(&mut rng, scale, nu, nth as i64)),
        })
        .collect()
}

fn other(rng: &mut Rng, scale: &Scale, than: i64) -> i64 {
    match scale.warehouses {
        1 => than,
        n => (than + between(rng, 0, n - 2)) % n + 1,
    }
}

fn new_order(rng: &mut Rng, scale: &Scale, nu: NuRand) -> NewOrder {
    let warehouse = between(rng, 1, scale.warehouses);
    let district = between(rng, 1, DISTRICTS);
    let customer = nurand(rng, 1023, nu.customer, 1, scale.customers());
    let count = between(rng, 5, 15);
    let mut lines = Vec::with_capacity(count as usize);
    while (lines.len() as i64) < count {
        let item = nurand(rng, 8191, nu.item, 1, scale.items);
        let supplier = match rng.below(100) {
            0 => other(rng, scale, warehouse),
            _ => warehouse,
        };
        lines.push((item, supplier, between(rng, 1, 10)));
    }
    if rng.below(100) == 0 {
        lines.last_mut().expect("there are five").0 = scale.items + 1;
    }
    NewOrder { warehouse, district, customer, lines }
}

fn payment(rng: &mut Rng, scale: &Scale, nu: NuRand, id: i64) -> Payment {
    let warehouse = between(rng, 1, scale.warehouses);
    let district = between(rng, 1, DISTRICTS);
    let (customer_warehouse, customer_district) = match rng.below(100) < 85 {
        true => (warehouse, district),
        false => (other(rng, scale, warehouse), between(rng, 1, DISTRICTS)),
    };
    let (customer, last) = match rng.below(100) < 60 {
        true => (0, last_name(nurand(rng, 255, nu.last, 0, names(scale) - 1))),
        false => (nurand(rng, 1023, nu.customer, 1, scale.customers()), String::new()),
    };
    let amount = between(rng, 100, 500_000);
    Payment {
        warehouse,
        district,
        customer_warehouse,
        customer_district,
        customer,
        last,
        amount,
        id,
    }
}
