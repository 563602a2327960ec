//! SQLite in this process, without any round trips. A vote is a few prepared statements, and this
//! code computes the parts that a procedure would compute.
//!
//! The database has a write-ahead log, exclusive access to the file, memory for all pages, rare
//! checkpoints, and an index to delete votes by candidate. Each vote commits by itself, unless
//! several form one transaction.

use std::path::Path;
use std::time::Instant;

use rusqlite::{params, Connection, OptionalExtension, Row};

use crate::show::{Ended, Show, Tables, Wrong, TABLES};

const SCHEMA: &str = "
create table candidates (candidate integer primary key, votes integer not null, recent integer not null);
create table votes (phone integer primary key, candidate integer not null);
create index votes_by_candidate on votes (candidate);
create table tally (id integer primary key, accepted integer not null);
create table recent (place integer primary key, candidate integer not null);
create table boards (board integer primary key, first, first_votes, second, second_votes, third, third_votes);
create table removed (candidate integer primary key, votes integer not null, accepted integer not null);
insert into tally values (0, 0);
";

/// Runs a show in a new database, with `group` votes in a transaction.
pub fn run(folder: &Path, show: &Show, synchronous: &str, group: usize) -> Result<Ended, Wrong> {
    let file = tempfile::Builder::new().prefix("sqlite").tempdir_in(folder)?;
    let db = Connection::open(file.path().join("votes.db"))?;
    db.execute_batch(&format!(
        "pragma locking_mode = exclusive; pragma journal_mode = wal; pragma synchronous = {synchronous};
         pragma cache_size = -524288; pragma wal_autocheckpoint = 20000; pragma temp_store = memory;"
    ))?;
    db.set_prepared_statement_cache_capacity(64);
    db.execute_batch(SCHEMA)?;
    for candidate in 1..=show.candidates {
        db.execute("insert into candidates values (?1, 0, 0)", [candidate])?;
    }
    let begun = Instant::now();
    let mut refused = 0;
    for votes in show.votes.chunks(group) {
        db.prepare_cached("begin immediate")?.execute([])?;
        for (phone, candidate) in votes {
            refused += i64::from(!vote(&db, (*phone).into(), (*candidate).into(), show.every)?);
        }
        db.prepare_cached("commit")?.execute([])?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let mut tables = Tables::new();
    for (name, columns) in TABLES {
        let key = columns.split(',').next().unwrap_or_default();
        let mut statement = db.prepare(&format!("select {columns} from {name} order by {key}"))?;
        let width = statement.column_count();
        let row = |row: &Row<'_>| (0..width).map(|column| row.get(column)).collect();
        let rows = statement.query_map([], row)?.collect::<Result<_, _>>()?;
        tables.insert(name.into(), rows);
    }
    Ok(Ended { seconds, refused, tables })
}

/// Executes the three procedures on a vote; returns whether it is accepted.
fn vote(db: &Connection, phone: i64, candidate: i64, every: i64) -> rusqlite::Result<bool> {
    let inserted = db
        .prepare_cached(
            "insert into votes select ?1, ?2 where exists (select 1 from candidates where candidate = ?2)
             on conflict (phone) do nothing",
        )?
        .execute([phone, candidate])?;
    if inserted == 0 {
        return Ok(false);
    }
    let accepted: i64 = db
        .prepare_cached("update tally set accepted = accepted + 1 where id = 0 returning accepted")?
        .query_row([], |row| row.get(0))?;
    let place = (accepted - 1) % 100;
    let leaves: Option<i64> = db
        .prepare_cached("select candidate from recent where place = ?1")?
        .query_row([place], |row| row.get(0))
        .optional()?;
    if leaves != Some(candidate) {
        db.prepare_cached("insert or replace into recent values (?1, ?2)")?
            .execute([place, candidate])?;
    }
    let mut add = db.prepare_cached(
        "update candidates set votes = votes + ?2, recent = recent + ?3 where candidate = ?1",
    )?;
    add.execute([candidate, 1, i64::from(leaves != Some(candidate))])?;
    if let Some(leaves) = leaves.filter(|leaves| *leaves != candidate) {
        add.execute([leaves, 0, -1])?;
    }
    let mut running = boards(db)?;
    if accepted % every == 0 && running.len() > 1 {
        running.sort_by_key(|[candidate, votes, _]| (*votes, *candidate));
        let [gone, had, _] = running[0];
        db.execute("delete from votes where candidate = ?1", [gone])?;
        db.execute("delete from candidates where candidate = ?1", [gone])?;
        db.execute("insert into removed values (?1, ?2, ?3)", [gone, had, accepted])?;
        boards(db)?;
    }
    Ok(true)
}

/// Returns the rank of a candidate on a leaderboard, its number, and the displayed votes.
type Order = fn(&[i64; 3]) -> (i64, i64, i64);

/// Writes the leaderboards that have changed; returns the running candidates.
fn boards(db: &Connection) -> rusqlite::Result<Vec<[i64; 3]>> {
    let three = |row: &Row<'_>| Ok([row.get(0)?, row.get(1)?, row.get(2)?]);
    let running: Vec<[i64; 3]> = db
        .prepare_cached("select candidate, votes, recent from candidates")?
        .query_map([], three)?
        .collect::<Result<_, _>>()?;
    let orders: [Order; 3] = [
        |[c, votes, _]| (-votes, *c, *votes),
        |[c, votes, _]| (*votes, *c, *votes),
        |[c, _, recent]| (-recent, *c, *recent),
    ];
    for (number, order) in (0i64..).zip(orders) {
        let mut first = [(i64::MAX, 0, 0); 3];
        for candidate in &running {
            let mut next = order(candidate);
            for place in &mut first {
                if next < *place {
                    std::mem::swap(place, &mut next);
                }
            }
        }
        let [(_, a, an), (_, b, bn), (_, c, cn)] = first;
        db.prepare_cached(
            "insert into boards values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             on conflict (board) do update set first = ?2, first_votes = ?3, second = ?4,
               second_votes = ?5, third = ?6, third_votes = ?7
             where (first, first_votes, second, second_votes, third, third_votes)
               is not (?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![number, a, an, b, bn, c, cn])?;
    }
    Ok(running)
}
