//! The baseline, and the expected tables.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::FixedState;
use tidemill_core::{Row, Value};

use super::calls::{last_name, names, Call, NewOrder, Payment};
use super::program::note;
use super::{Scale, DISTRICTS};
use crate::rng::Rng;

type Map<K, V> = HashMap<K, V, FixedState>;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct District {
    tax: i64,
    paid: i64,
    next_order: i64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Customer {
    last: String,
    first: i64,
    good: bool,
    discount: i64,
    balance: i64,
    paid: i64,
    payments: i64,
    note: String,
}

/// All rows, by key.
#[derive(Clone, Debug, Default)]
pub(super) struct Straight {
    warehouses: Map<i64, [i64; 2]>,
    districts: Map<(i64, i64), District>,
    customers: Map<(i64, i64, i64), Customer>,
    by_name: Map<(i64, i64, String), Vec<i64>>,
    stock: Map<(i64, i64), [i64; 4]>,
    items: Vec<i64>,
    orders: Map<(i64, i64, i64), [i64; 3]>,
    lines: Map<(i64, i64, i64, i64), [i64; 4]>,
    history: Map<(i64, i64), [i64; 5]>,
    /// The sum of all replies: the totals of orders and the balances of customers.
    pub replied: i64,
    pub aborts: u64,
}

impl Straight {
    /// Returns the initial rows, generated from the seed.
    pub fn new(seed: u64, scale: &Scale) -> Straight {
        let mut rng = Rng::new(seed ^ 0x7063_6374);
        let mut one = |low: i64, high: i64| low + rng.below((high - low + 1) as u64) as i64;
        let mut made = Straight { items: vec![0], ..Straight::default() };
        made.items.extend((0..scale.items).map(|_| one(100, 10_000)));
        for w in 1..=scale.warehouses {
            made.warehouses.insert(w, [one(0, 2_000), 30_000_000]);
            for i in 1..=scale.items {
                made.stock.insert((w, i), [one(10, 100), 0, 0, 0]);
            }
            for d in 1..=DISTRICTS {
                let (tax, paid, next_order) = (one(0, 2_000), 3_000_000, 1);
                made.districts.insert((w, d), District { tax, paid, next_order });
                for c in 1..=scale.customers() {
                    let number = if c <= names(scale) { c - 1 } else { one(0, names(scale) - 1) };
                    let customer = Customer {
                        last: last_name(number),
                        first: one(0, 1 << 40),
                        good: one(1, 100) > 10,
                        discount: one(0, 5_000),
                        balance: -1_000,
                        paid: 1_000,
                        payments: 1,
                        note: String::new(),
                    };
                    let named = (w, d, customer.last.clone());
                    made.by_name.entry(named).or_default().push(c);
                    made.customers.insert((w, d, c), customer);
                }
            }
        }
        let customers = &made.customers;
        for ((w, d, _), named) in &mut made.by_name {
            named.sort_by_key(|&c| (customers[&(*w, *d, c)].first, c));
        }
        made
    }

    /// Replaces the last name in a payment by the customer's number.
    pub fn name(&self, call: &mut Call) {
        if let Call::Payment(payment) = call {
            payment.customer = self.customer(payment);
        }
    }

    /// Returns the customer who pays: of those with one last name, the middle one.
    fn customer(&self, payment: &Payment) -> i64 {
        let (w, d) = (payment.customer_warehouse, payment.customer_district);
        match payment.customer {
            0 => {
                let named = &self.by_name[&(w, d, payment.last.clone())];
                named[(named.len() - 1) / 2]
            }
            c => c,
        }
    }

    /// Executes all calls in their order.
    pub fn run<'a>(&mut self, calls: impl IntoIterator<Item = &'a Call>) {
        for call in calls {
            match call {
                Call::NewOrder(order) => self.new_order(order),
                Call::Payment(payment) => self.pay(payment),
            }
        }
    }

    fn new_order(&mut self, order: &NewOrder) {
        let (w, d, c) = (order.warehouse, order.district, order.customer);
        if order.lines.iter().any(|(i, ..)| *i as usize >= self.items.len()) {
            self.aborts += 1;
            return;
        }
        let district = self.districts.get_mut(&(w, d)).expect("it is there");
        let (number, district_tax) = (district.next_order, district.tax);
        district.next_order += 1;
        let is_local = order.lines.iter().all(|(_, supplier, _)| *supplier == w);
        self.orders.insert((w, d, number), [c, order.lines.len() as i64, is_local.into()]);
        let mut total = 0;
        for (n, &(i, supplier, quantity)) in order.lines.iter().enumerate() {
            let stock = self.stock.get_mut(&(supplier, i)).expect("it is there");
            let left = stock[0] - quantity;
            stock[0] = if left >= 10 { left } else { left + 91 };
            stock[1] += quantity;
            stock[2] += 1;
            stock[3] += i64::from(supplier != w);
            let amount = quantity * self.items[i as usize];
            total += amount;
            self.lines.insert((w, d, number, n as i64 + 1), [i, supplier, quantity, amount]);
        }
        let total = total * (10_000 - self.customers[&(w, d, c)].discount) / 10_000;
        let total = total * (10_000 + self.warehouses[&w][0] + district_tax) / 10_000;
        self.replied += total;
    }

    fn pay(&mut self, payment: &Payment) {
        let Payment { warehouse: w, district: d, amount, .. } = *payment;
        let (cw, cd) = (payment.customer_warehouse, payment.customer_district);
        self.warehouses.get_mut(&w).expect("it is there")[1] += amount;
        self.districts.get_mut(&(w, d)).expect("it is there").paid += amount;
        let c = self.customer(payment);
        let customer = self.customers.get_mut(&(cw, cd, c)).expect("it is there");
        customer.balance -= amount;
        customer.paid += amount;
        customer.payments += 1;
        if !customer.good {
            customer.note = note(&customer.note, [c, cd, cw, d, w, amount]);
        }
        self.replied += customer.balance;
        self.history.insert((w, payment.id), [d, cw, cd, c, amount]);
    }

    /// Returns the rows of a table, by its place.
    pub fn rows(&self, table: usize) -> Vec<Row> {
        fn row(ints: &[i64]) -> Row {
            ints.iter().map(|&i| Value::Int(i)).collect()
        }
        match table {
            0 => self.warehouses.iter().map(|(w, [tax, paid])| row(&[*w, *tax, *paid])).collect(),
            1 => {
                let rows = self.districts.iter();
                let one = |((w, d), it): (&(i64, i64), &District)| {
                    row(&[*w, *d, it.tax, it.paid, it.next_order])
                };
                rows.map(one).collect()
            }
            2 => self.customers.iter().map(|(key, it)| customer(*key, it)).collect(),
            3 => {
                let rows = self.stock.iter();
                rows.map(|((w, i), [a, b, c, d])| row(&[*w, *i, *a, *b, *c, *d])).collect()
            }
            4 => {
                let items = self.items.iter().enumerate().skip(1);
                items.map(|(i, price)| row(&[i as i64, *price])).collect()
            }
            5 => {
                let rows = self.orders.iter();
                rows.map(|((w, d, o), [a, b, c])| row(&[*w, *d, *o, *a, *b, *c])).collect()
            }
            6 => self.orders.keys().map(|(w, d, o)| row(&[*w, *d, *o])).collect(),
            7 => {
                let rows = self.lines.iter();
                rows.map(|((w, d, o, n), [e, f, g, h])| row(&[*w, *d, *o, *n, *e, *f, *g, *h]))
                    .collect()
            }
            _ => {
                let rows = self.history.iter();
                rows.map(|((w, id), [a, b, c, d, e])| row(&[*w, *id, *a, *b, *c, *d, *e])).collect()
            }
        }
    }

    /// Checks the consistency conditions 1 to 4 (TPC-C, clause 3.3.2) on the rows of all tables.
    pub fn is_consistent(found: &[Vec<Row>]) -> bool {
        let int = |table: usize, column: usize, at: usize| match found[table][at][column] {
            Value::Int(int) => int,
            ref other => unreachable!("{other} is where an integer is"),
        };
        let mut paid: BTreeMap<i64, i64> = BTreeMap::new();
        let mut next: BTreeMap<(i64, i64), i64> = BTreeMap::new();
        for at in 0..found[1].len() {
            let (w, d) = (int(1, 0, at), int(1, 1, at));
            *paid.entry(w).or_default() += int(1, 3, at);
            next.insert((w, d), int(1, 4, at));
        }
        // Initially, 300,000 was paid to each warehouse, and 30,000 to each district.
        let sums = (0..found[0].len()).all(|at| paid.get(&int(0, 0, at)) == Some(&int(0, 2, at)));
        let mut newest: BTreeMap<(i64, i64), i64> = BTreeMap::new();
        let mut lines: BTreeMap<(i64, i64), i64> = BTreeMap::new();
        for at in 0..found[5].len() {
            let district = (int(5, 0, at), int(5, 1, at));
            let newest = newest.entry(district).or_default();
            *newest = (*newest).max(int(5, 2, at));
            *lines.entry(district).or_default() += int(5, 4, at);
        }
        let mut open: BTreeMap<(i64, i64), (i64, i64, i64)> = BTreeMap::new();
        for at in 0..found[6].len() {
            let (first, last, count) =
                open.entry((int(6, 0, at), int(6, 1, at))).or_insert((i64::MAX, 0, 0));
            let order = int(6, 2, at);
            (*first, *last, *count) = ((*first).min(order), (*last).max(order), *count + 1);
        }
        let mut there: BTreeMap<(i64, i64), i64> = BTreeMap::new();
        for at in 0..found[7].len() {
            *there.entry((int(7, 0, at), int(7, 1, at))).or_default() += 1;
        }
        let orders = next.iter().all(|(district, next)| {
            let newest = newest.get(district).copied().unwrap_or(0);
            let (first, last, count) = open.get(district).copied().unwrap_or((1, 0, 0));
            next - 1 == newest && newest == last && last - first + 1 == count
        });
        sums && orders && lines == there
    }
}

fn customer((w, d, c): (i64, i64, i64), it: &Customer) -> Row {
    let int = Value::Int;
    [
        int(w),
        int(d),
        int(c),
        Value::str(&it.last),
        int(it.first),
        Value::Bool(it.good),
        int(it.discount),
        int(it.balance),
        int(it.paid),
        int(it.payments),
        Value::str(&it.note),
    ]
    .into()
}
