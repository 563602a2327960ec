//! DeathStarBench's movie reviews (Styx, section 9.1), as calls of functions of entities in Python.
//!
//! Every call composes a review by one of 1,000 users, of one of 1,000 titles, with a rating from 0
//! to 10 and 256 characters of text. It calls four functions: the one that numbers the review, the
//! user, the movie, which calls its rating, and the text. Each of these calls the review and sets
//! its part of it. No caller awaits a reply.
//!
//! The invariant: reviews, counters, users, ratings and texts equal those of the baseline, row by
//! row.

use serde_json::{Map, Value as Json};
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
const USERS: usize = 1_000;
const MOVIES: usize = 1_000;
const TEXT: usize = 256;
/// The number of counters that number reviews.
const COUNTERS: i64 = 16;

/// A review, by its place among all.
#[derive(Clone, Debug)]
struct Review {
    user: usize,
    movie: usize,
    rating: i64,
    text: String,
}

struct Movie {
    parts: Parts,
    reviews: Vec<Review>,
}

/// The baseline's state.
struct Straight {
    given: Vec<i64>,
    /// The number of reviews of each user.
    reviews: Vec<i64>,
    /// The ratings of each movie: sum and count.
    ratings: Vec<(i64, i64)>,
    /// The number of each review; `None` where there is no review.
    numbers: Vec<Option<i64>>,
}

/// Runs the workload.
pub(crate) fn run(args: &Args, given: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    mixed::run(args, &made(args, mixed::given(args, given)?)?, progress)
}

/// Returns the workload for several processes.
pub(crate) fn load(args: &Args, program: Program) -> Result<Box<dyn Load>> {
    Ok(Box::new(made(args, program)?))
}

fn made(args: &Args, program: Program) -> Result<Movie> {
    let parts = shape::parts("the reviews", program, &frame()?)?;
    let mut rng = Rng::new(args.seed);
    let letters = b"abcdefghijklmnopqrstuvwxyz ";
    let mut review = || {
        let mut below = |n: usize| rng.below(n as u64) as usize;
        let (user, movie, rating) = (below(USERS), below(MOVIES), below(11) as i64);
        let text = (0..TEXT).map(|_| letters[below(letters.len())] as char).collect();
        Review { user, movie, rating, text }
    };
    let reviews = (0..args.events.unwrap_or(CALLS)).map(|_| review()).collect();
    Ok(Movie { parts, reviews })
}

/// Builds the tables and streams.
fn frame() -> Result<Program> {
    let int = |name: &str| Column::new(name, DataType::Int);
    let zero = |name: &str| int(name).default(Value::Int(0));
    let text = |name: &str| Column::new(name, DataType::Str);
    let empty = || text("text").default(Value::str(""));
    let mut b = Builder::new("movie");
    let parts = ["number", "user", "movie", "rating"].map(zero);
    let review = [vec![int("id")], parts.to_vec(), vec![empty()]].concat();
    b.table("review", &["id"], review);
    b.table("counter", &["id"], vec![int("id"), zero("given")]);
    b.table("user", &["name"], vec![text("name"), int("id"), zero("reviews")]);
    b.table("movie", &["title"], vec![text("title"), int("id")]);
    b.table("rating", &["movie"], vec![int("movie"), zero("total"), zero("count")]);
    b.table("text", &["review"], vec![int("review"), empty()]);
    let columns = vec![int("id"), text("name"), text("title"), int("given"), text("written")];
    b.stream("review.compose.calls", columns);
    b.finish()
}

fn user(n: usize) -> Value {
    Value::str(&format!("user_{n}"))
}

fn title(n: usize) -> Value {
    Value::str(&format!("The Story of {n}"))
}

impl Straight {
    fn compose(&mut self, id: usize, it: &Review) {
        let counter = id as i64 % COUNTERS;
        let given = &mut self.given[counter as usize];
        *given += 1;
        self.numbers[id] = Some(*given * COUNTERS + counter);
        self.reviews[it.user] += 1;
        let (total, count) = &mut self.ratings[it.movie];
        (*total, *count) = (*total + it.rating, *count + 1);
    }
}

impl Load for Movie {
    fn parts(&self) -> &Parts {
        &self.parts
    }

    fn opening(&self, table: usize) -> Vec<Row> {
        self.rows(&self.straight(), table)
    }

    fn calls(&self) -> Vec<(usize, Row)> {
        Mixed::calls(self)
    }

    fn end(&self, order: &[usize]) -> Ended {
        let mut straight = self.straight();
        order.iter().for_each(|nth| straight.compose(*nth, &self.reviews[*nth]));
        let rows = |table| self.rows(&straight, table).into_iter().map(move |row| (table, row));
        let rows = (0..self.parts.tables.len()).flat_map(rows);
        let wanted = rows.map(|(table, row)| Wanted::row(table, 1, row)).collect();
        Ended { wanted, aborts: 0 }
    }
}

impl Mixed for Movie {
    type Straight = Straight;

    fn parts(&self) -> &Parts {
        &self.parts
    }

    fn straight(&self) -> Straight {
        Straight {
            given: vec![0; COUNTERS as usize],
            reviews: vec![0; USERS],
            ratings: vec![(0, 0); MOVIES],
            numbers: vec![None; self.reviews.len()],
        }
    }

    fn rows(&self, straight: &Straight, table: usize) -> Vec<Row> {
        let int = Value::Int;
        let written = self.reviews.iter().zip(&straight.numbers).enumerate();
        let written = written.filter_map(|(id, (it, number))| Some((id, (it, number.as_ref()?))));
        match table {
            0 => written
                .map(|(id, (it, number))| {
                    let parts = [id as i64, *number, it.user as i64, it.movie as i64, it.rating];
                    parts.map(int).into_iter().chain([Value::str(&it.text)]).collect()
                })
                .collect(),
            1 => (0..COUNTERS)
                .filter(|n| straight.given[*n as usize] > 0)
                .map(|n| [int(n), int(straight.given[n as usize])].into())
                .collect(),
            2 => (0..USERS)
                .map(|n| [user(n), int(n as i64), int(straight.reviews[n])].into())
                .collect(),
            3 => (0..MOVIES).map(|n| [title(n), int(n as i64)].into()).collect(),
            4 => {
                let rated =
                    straight.ratings.iter().enumerate().filter(|(_, (_, count))| *count > 0);
                let row = |(n, (total, count)): (usize, &(i64, i64))| {
                    [n as i64, *total, *count].map(int).into()
                };
                rated.map(row).collect()
            }
            _ => {
                written.map(|(id, (it, _))| [int(id as i64), Value::str(&it.text)].into()).collect()
            }
        }
    }

    fn calls(&self) -> Vec<(usize, Row)> {
        let call = |(id, it): (usize, &Review)| -> (usize, Row) {
            let (id, rating) = (Value::Int(id as i64), Value::Int(it.rating));
            (0, [id, user(it.user), title(it.movie), rating, Value::str(&it.text)].into())
        };
        self.reviews.iter().enumerate().map(call).collect()
    }

    fn execute(&self, straight: &mut Straight) {
        self.reviews.iter().enumerate().for_each(|(id, it)| straight.compose(id, it));
    }

    fn is_right(&self, straight: &Straight, tables: &[Batch]) -> bool {
        (0..tables.len()).all(|table| {
            let found = tables[table].rows().collect();
            mixed::same_rows(self.rows(straight, table), found, |row| Key::of(&row[..1]))
        })
    }

    fn details(&self, _: &Straight) -> Map<String, Json> {
        Map::new()
    }
}
