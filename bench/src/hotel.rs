//! DeathStarBench's hotel reservation (Styx, section 9.1), as calls of functions of entities in
//! Python.
//!
//! - 60 % of the calls search: the five nearest of 80 hotels within 10 km, and the prices of those
//!   that are among the 28 with a rate.
//! - 39 % ask for a recommendation among 79 hotels: the nearest, the best rated or the cheapest.
//! - 0.5 % are logins of one of 501 users.
//! - 0.5 % book one of 100 hotels and one of 100 flights. Both must have room, 10 at first;
//!   otherwise the whole booking aborts.
//!
//! The invariant: rooms, seats and bookings equal those of the baseline, row by row, and nothing
//! else has changed.

use std::collections::BTreeMap;

use serde_json::{json, Map, Value as Json};
use tidemill_core::{Batch, Column, DataType, Key, Result, Row, Value};
use tidemill_txn::program::Builder;
use tidemill_txn::Program;

use crate::args::Args;
use crate::cluster::{Ended, Load, Wanted};
use crate::mixed::{self, Mixed};
use crate::report::Report;
use crate::rng::Rng;
use crate::shape::{self, Parts};
use crate::Given;

#[cfg(test)]
mod tests;

/// The default number of calls.
const CALLS: usize = 100_000;
const PLACES: i64 = 80;
const ADVICE: i64 = 79;
const USERS: i64 = 501;
const HOTELS: i64 = 100;
const FLIGHTS: i64 = 100;
/// The initial number of rooms and seats.
const ROOM: i64 = 10;

/// A booking.
#[derive(Clone, Debug)]
struct Booking {
    id: i64,
    user: String,
    hotel: i64,
    flight: i64,
}

struct Hotel {
    parts: Parts,
    calls: Vec<(usize, Row)>,
    bookings: Vec<Booking>,
}

/// The baseline: the rooms and seats left, and the bookings.
struct Straight {
    rooms: Vec<i64>,
    seats: Vec<i64>,
    bookings: BTreeMap<i64, Booking>,
    refused: usize,
    /// The number of hotels and logins in the replies.
    found: usize,
}

/// Runs the workload.
pub(crate) fn run(args: &Args, given: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    mixed::run(args, &made(args, mixed::given(args, given)?)?, progress)
}

/// Returns the workload for several processes.
pub(crate) fn load(args: &Args, program: Program) -> Result<Box<dyn Load>> {
    Ok(Box::new(made(args, program)?))
}

fn made(args: &Args, program: Program) -> Result<Hotel> {
    let parts = shape::parts("the hotels", program, &frame()?)?;
    let (calls, bookings) = generate(args.seed, args.events.unwrap_or(CALLS));
    Ok(Hotel { parts, calls, bookings })
}

/// Builds the tables and streams.
fn frame() -> Result<Program> {
    let int = |name: &str| Column::new(name, DataType::Int);
    let float = |name: &str| Column::new(name, DataType::Float);
    let text = |name: &str| Column::new(name, DataType::Str);
    let mut b = Builder::new("hotel");
    b.table("city", &["id"], vec![int("id"), text("name")]);
    let place = vec![int("city"), int("hotel"), float("lat"), float("lon")];
    let places = b.table("place", &["city", "hotel"], place.clone());
    b.ordered(places);
    let advice = [place, vec![float("rating"), int("price")]].concat();
    let advice = b.table("advice", &["city", "hotel"], advice);
    b.ordered(advice);
    b.table("rate", &["hotel"], vec![int("hotel"), int("price")]);
    b.table("user", &["name"], vec![text("name"), text("password")]);
    b.table("hotel", &["id"], vec![int("id"), int("rooms")]);
    b.table("flight", &["id"], vec![int("id"), int("seats")]);
    let booking = vec![int("id"), text("user"), int("hotel"), int("flight"), text("state")];
    b.table("booking", &["id"], booking);
    b.stream("city.search.calls", vec![int("id"), float("lat"), float("lon")]);
    let columns = vec![int("id"), text("by"), float("lat"), float("lon")];
    b.stream("city.recommend.calls", columns);
    b.stream("user.login.calls", vec![text("name"), text("password")]);
    let columns = vec![int("id"), text("who"), int("hotel_id"), int("flight_id")];
    b.stream("booking.make.calls", columns);
    b.finish()
}

fn name(user: i64) -> String {
    format!("Cornell_{user}")
}

fn password(user: i64) -> String {
    user.to_string().repeat(10)
}

fn generate(seed: u64, count: usize) -> (Vec<(usize, Row)>, Vec<Booking>) {
    let mut rng = Rng::new(seed);
    let (mut calls, mut bookings) = (Vec::with_capacity(count), Vec::new());
    for id in 0..count as i64 {
        let mut below = |n: u64| rng.below(n) as i64;
        let kind = below(1000);
        let lat = Value::Float(38.0235 + (below(482) as f64 - 240.5) / 1000.0);
        let lon = Value::Float(-122.095 + (below(326) as f64 - 157.0) / 1000.0);
        calls.push(match kind {
            0..600 => (0, [Value::Int(0), lat, lon].into()),
            600..990 => {
                let by = ["distance", "rating", "price"][below(3) as usize];
                (1, [Value::Int(0), Value::str(by), lat, lon].into())
            }
            990..995 => {
                let user = below(USERS as u64);
                // One user in ten has forgotten the password.
                let said = if below(10) == 0 { "forgotten".into() } else { password(user) };
                (2, [Value::str(&name(user)), Value::str(&said)].into())
            }
            _ => {
                let user = name(below(USERS as u64));
                let (hotel, flight) = (below(HOTELS as u64), below(FLIGHTS as u64));
                let row = [id, hotel, flight].map(Value::Int);
                let [number, hotel_id, flight_id] = row;
                let row = [number, Value::str(&user), hotel_id, flight_id];
                bookings.push(Booking { id, user, hotel, flight });
                (3, row.into())
            }
        });
    }
    (calls, bookings)
}

fn float(value: &Value) -> f64 {
    match value {
        Value::Float(float) => *float,
        other => unreachable!("{other} is where a float is"),
    }
}

/// Returns the distance along the surface, in kilometres.
fn distance_km(lat: f64, lon: f64, place: &Row) -> f64 {
    let (a, b) = (lat.to_radians(), float(&place[2]).to_radians());
    let (x, y) = (((b - a) / 2.0).sin(), ((float(&place[3]) - lon).to_radians() / 2.0).sin());
    2.0 * 6371.0 * (x * x + a.cos() * b.cos() * y * y).sqrt().asin()
}

/// Returns how many of the five nearest hotels have a rate.
fn search(call: &Row, places: &[Row], rates: &[Row]) -> usize {
    let (lat, lon) = (float(&call[1]), float(&call[2]));
    let mut near: Vec<(f64, &Row)> =
        places.iter().map(|place| (distance_km(lat, lon, place), place)).collect();
    near.retain(|(away, _)| *away <= 10.0);
    near.sort_by(|a, b| a.0.total_cmp(&b.0));
    let has_rate = |place: &Row| rates.iter().any(|rate| rate[0] == place[1]);
    near.iter().take(5).filter(|(_, place)| has_rate(place)).count()
}

/// Returns how many hotels are the best.
fn recommend(call: &Row, advice: &[Row]) -> usize {
    let (lat, lon) = (float(&call[2]), float(&call[3]));
    let mark = |row: &Row| match &call[1] {
        Value::Str(by) if &**by == "distance" => distance_km(lat, lon, row),
        Value::Str(by) if &**by == "rating" => -float(&row[4]),
        _ => match row[5] {
            Value::Int(price) => price as f64,
            _ => unreachable!("a price is an integer"),
        },
    };
    let marks: Vec<f64> = advice.iter().map(mark).collect();
    let best = marks.iter().copied().fold(f64::INFINITY, f64::min);
    marks.into_iter().filter(|mark| *mark == best).count()
}

impl Straight {
    fn book(&mut self, booking: &Booking) {
        let room = &mut self.rooms[booking.hotel as usize];
        let seat = &mut self.seats[booking.flight as usize];
        if *room == 0 || *seat == 0 {
            self.refused += 1;
            return;
        }
        (*room, *seat) = (*room - 1, *seat - 1);
        self.bookings.insert(booking.id, booking.clone());
    }
}

/// Returns the number of key columns of a table.
fn keys(table: usize) -> usize {
    1 + usize::from((1..=2).contains(&table))
}

impl Load for Hotel {
    fn parts(&self) -> &Parts {
        &self.parts
    }

    fn opening(&self, table: usize) -> Vec<Row> {
        self.rows(&self.straight(), table)
    }

    fn calls(&self) -> Vec<(usize, Row)> {
        self.calls.clone()
    }

    fn end(&self, order: &[usize]) -> Ended {
        let mut straight = self.straight();
        // The number of a booking is that of its call.
        let by_number: BTreeMap<i64, &Booking> =
            self.bookings.iter().map(|it| (it.id, it)).collect();
        let booked: Vec<&Booking> =
            order.iter().filter_map(|nth| by_number.get(&(*nth as i64)).copied()).collect();
        booked.iter().for_each(|booking| straight.book(booking));
        let rows = |table| self.rows(&straight, table).into_iter().map(move |row| (table, row));
        let rows = (0..self.parts.tables.len()).flat_map(rows);
        let mut wanted: Vec<Wanted> =
            rows.map(|(table, row)| Wanted::row(table, keys(table), row)).collect();
        let refused = booked.iter().filter(|it| !straight.bookings.contains_key(&it.id));
        wanted.extend(refused.map(|it| {
            let table = self.parts.tables.len() - 1;
            Wanted { table, key: vec![Value::Int(it.id)], row: None }
        }));
        Ended { wanted, aborts: straight.refused as u64 }
    }
}

impl Mixed for Hotel {
    type Straight = Straight;

    fn parts(&self) -> &Parts {
        &self.parts
    }

    fn straight(&self) -> Straight {
        let (rooms, seats) = (vec![ROOM; HOTELS as usize], vec![ROOM; FLIGHTS as usize]);
        Straight { rooms, seats, bookings: BTreeMap::new(), refused: 0, found: 0 }
    }

    fn rows(&self, straight: &Straight, table: usize) -> Vec<Row> {
        let int = Value::Int;
        let at = |n: i64| {
            let (lat, lon) = (37.7835 + n as f64 / 500.0 * 3.0, -122.41 + n as f64 / 500.0 * 4.0);
            [Value::Float(lat), Value::Float(lon)]
        };
        let place = |n: i64| {
            let [lat, lon] = at(n);
            [int(0), int(n), lat, lon]
        };
        match table {
            0 => vec![[int(0), Value::str("San Francisco")].into()],
            1 => (1..=PLACES).map(|n| place(n).into()).collect(),
            2 => (1..=ADVICE)
                .map(|n| {
                    let rating = Value::Float(100.0 + (n * 37 % 100) as f64 / 10.0);
                    let price = int(9_000 + n * 7_919 % 12_000);
                    place(n).into_iter().chain([rating, price]).collect()
                })
                .collect(),
            3 => (1..=PLACES)
                .filter(|n| *n <= 3 || (*n > 6 && n % 3 == 0))
                .map(|n| [int(n), int(10_000 + n * 6_113 % 9_000)].into())
                .collect(),
            4 => (0..USERS)
                .map(|n| [Value::str(&name(n)), Value::str(&password(n))].into())
                .collect(),
            5 | 6 => {
                let left = if table == 5 { &straight.rooms } else { &straight.seats };
                left.iter()
                    .enumerate()
                    .map(|(n, left)| [int(n as i64), int(*left)].into())
                    .collect()
            }
            _ => {
                let row = |it: &Booking| {
                    let booked = Value::str("booked");
                    [int(it.id), Value::str(&it.user), int(it.hotel), int(it.flight), booked].into()
                };
                straight.bookings.values().map(row).collect()
            }
        }
    }

    fn calls(&self) -> Vec<(usize, Row)> {
        self.calls.clone()
    }

    fn execute(&self, straight: &mut Straight) {
        let [places, advice, rates] = [1, 2, 3].map(|table| self.rows(straight, table));
        for (kind, row) in &self.calls {
            straight.found += match kind {
                0 => search(row, &places, &rates),
                1 => recommend(row, &advice),
                _ => 0,
            };
        }
        self.bookings.iter().for_each(|booking| straight.book(booking));
    }

    fn is_right(&self, straight: &Straight, tables: &[Batch]) -> bool {
        (0..tables.len()).all(|table| {
            mixed::same_rows(self.rows(straight, table), tables[table].rows().collect(), |row| {
                Key::of(&row[..keys(table)])
            })
        })
    }

    fn details(&self, straight: &Straight) -> Map<String, Json> {
        let (booked, refused) = (straight.bookings.len(), straight.refused);
        let details = json!({ "booked": booked, "refused": refused, "told": straight.found });
        details.as_object().expect("it is one").clone()
    }
}
