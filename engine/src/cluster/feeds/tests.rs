#![allow(clippy::disallowed_methods)] // Files of the real disk, as a user changes them.

use std::fmt::Write as _;

use tidemill_core::{Column, DataType, Late};
use tidemill_function::{Activation, Call};
use tidemill_txn::program::{Abort, Builder};

use super::*;
use crate::functions::Begins;
use crate::settings::Settings;

const FIRST: u32 = 5;

struct Nobody;

impl Begins for Nobody {
    fn begin(
        &self,
        _: usize,
        _: &Call,
        _: bool,
    ) -> std::result::Result<Box<dyn Activation>, Abort> {
        unreachable!("nothing is opaque")
    }
}

/// An app that reads two files of events in event time, and one that has no time, all in a folder.
fn app(folder: &Path) -> AppSpec {
    let mut b = Builder::new("feeds");
    let int = |name: &str| Column::new(name, DataType::Int);
    let rows = b.table("rows", &["id"], vec![int("id"), int("n").default(Value::Int(0))]);
    for name in ["moves", "votes"] {
        let stream = b.stream(name, ["id", "at"].map(int).to_vec());
        if name == "moves" {
            b.event_time(stream, "at", Late::Side);
        }
        let mut h = b.handler(&format!("on {name}"), stream);
        let [id, at] = ["id", "at"].map(|column| h.column(column));
        let row = h.row(rows, &[id]);
        h.set(row, "n", at);
        h.done();
    }
    let read = |stream: &str, path: &str| SourceDecl {
        files: Some(serde_json::json!({"path": folder.join(path)})),
        ..SourceDecl::pushed(stream)
    };
    let sources = vec![read("moves", "moves"), SourceDecl::pushed("votes"), read("votes", "v.csv")];
    AppSpec::new(b.finish().unwrap(), sources, Settings::default())
}

/// What the app reads: each row has its number among all as its id, and some can't be read.
fn fill(folder: &Path) {
    std::fs::create_dir_all(folder.join("moves")).unwrap();
    let mut texts = [const { String::new() }; 3];
    for id in 0..6_000 {
        // Of equal times those of the first file come first.
        let of = id % 3;
        writeln!(texts[of], "{id},{}", id / 4).unwrap();
        if id % 500 == of {
            writeln!(texts[of], "{id},none").unwrap();
        }
    }
    for (path, text) in ["moves/a.csv", "moves/b.csv", "v.csv"].into_iter().zip(texts) {
        std::fs::write(folder.join(path), format!("id,at\n{text}")).unwrap();
    }
}

struct Opened {
    rows: Rows,
    // It is removed with this.
    _dir: Arc<tempfile::TempDir>,
}

fn open(dir: &Arc<tempfile::TempDir>) -> Result<Opened> {
    let (spec, env) = (app(dir.path()), Env::real());
    let functions = AppFunctions::new(&spec, Arc::new(Nobody))?;
    let feeds = Feeds::open(&spec, &functions, (FIRST, dir.path(), false), &env)?.into();
    Ok(Opened { rows: Rows { feeds, env }, _dir: dir.clone() })
}

impl Opened {
    fn read(&self, source: u32, from: u64, limit: usize) -> Option<Records> {
        let (tell, told) = channel();
        let then = Box::new(move |found| tell.send(found).unwrap());
        self.rows.read(Topic::Input(source), from, Some(limit), 0, then);
        told.recv().unwrap()
    }

    /// All of a source, in steps of so many.
    fn all(&self, source: u32, step: usize) -> Vec<(u64, Record)> {
        let (mut all, mut from) = (Vec::new(), 0);
        loop {
            let Records { records, upto } = self.read(source, from, step).unwrap();
            if records.is_empty() {
                assert_eq!(self.rows.feeds.end(source), Some(from - 1));
                return all;
            }
            assert_eq!(upto, from + records.len() as u64);
            (from, all) = (upto, [all, records].concat());
        }
    }
}

/// The events of records; those that could not be read are none.
fn events(records: &[(u64, Record)]) -> Vec<Vec<Value>> {
    let of = |(_, record): &(u64, Record)| match record {
        Record::Requests(requests) => requests.iter().map(|r| r.call.args.to_vec()).collect(),
        _ => Vec::new(),
    };
    let events: Vec<Vec<Value>> = records.iter().flat_map(of).collect();
    events.into_iter().filter(|event| event.len() == 2).collect()
}

#[test]
fn rows_have_their_places_wherever_reading_begins() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    fill(dir.path());
    let opened = open(&dir).unwrap();
    let (moves, votes) = (opened.all(FIRST, 7), opened.all(FIRST + 1, 4096));
    let wanted = |of: &[i64]| -> Vec<Vec<Value>> {
        let own = (0..6_000).filter(|id| of.contains(&(id % 3)));
        let mut own: Vec<(i64, i64, i64)> = own.map(|id| (id / 4, id % 3, id)).collect();
        own.sort_unstable();
        own.into_iter().map(|(at, _, id)| vec![Value::Int(id), Value::Int(at)]).collect()
    };
    assert_eq!(events(&moves), wanted(&[0, 1]));
    assert_eq!(events(&votes), wanted(&[2]));
    for records in [&moves, &votes] {
        assert!(records.iter().zip(0..).all(|((offset, _), nth)| *offset == nth));
        assert_eq!(records.last().map(|(_, record)| record), Some(&Record::End));
    }
    let bad = |records: &[(u64, Record)]| records.len() - 1 - events(records).len();
    assert_eq!((bad(&moves), bad(&votes)), (8, 4));
    let mut dice = 1u64;
    let mut roll = |below: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (dice >> 33) % below
    };
    let mut compare = |opened: &Opened, from: u64| {
        for (source, all) in [(FIRST, &moves), (FIRST + 1, &votes)] {
            let from = from + roll(all.len() as u64 - from + 1);
            let limit = 1 + roll(300) as usize;
            let found = opened.read(source, from, limit).unwrap().records;
            let from = from as usize;
            assert_eq!(found, all[from..(from + limit).min(all.len())], "from {from}");
        }
    };
    (0..100).for_each(|_| compare(&opened, 0));
    // Nobody goes behind that any more, whoever starts again.
    for below in [300, 900, 1_900] {
        let opened = open(&dir).unwrap();
        for source in [FIRST, FIRST + 1] {
            opened.rows.trim(Topic::Input(source), below);
        }
        (0..20).for_each(|_| compare(&opened, below));
    }
    (0..20).for_each(|_| compare(&open(&dir).unwrap(), 1_900));
}

#[test]
fn what_is_not_what_it_was_is_refused() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    fill(dir.path());
    let opened = open(&dir).unwrap();
    opened.read(FIRST, 0, 3_000).unwrap();
    let ends = opened.all(FIRST + 1, 100).len() as u64;
    opened.rows.trim(Topic::Input(FIRST), 3_000);
    opened.rows.trim(Topic::Input(FIRST + 1), ends);
    // All that was asked before has been done.
    opened.read(FIRST, 3_000, 1).unwrap();
    drop(opened);
    let refused = |path: &str, text: &dyn Fn(&str) -> String| {
        let path = dir.path().join(path);
        let was = std::fs::read_to_string(&path).unwrap_or_default();
        std::fs::write(&path, text(&was)).unwrap();
        let error = match open(&dir) {
            Err(error) => error,
            // It is found when it is read.
            Ok(opened) => {
                assert_eq!(opened.read(FIRST + 1, ends - 1, 5), None);
                opened.rows.failed().expect("a reason")
            }
        };
        match was.is_empty() {
            true => std::fs::remove_file(&path).unwrap(),
            false => std::fs::write(&path, was).unwrap(),
        }
        error.what
    };
    let changed = refused("moves/a.csv", &|text| text.replacen("\n9,", "\n8,", 1));
    assert!(changed.contains("a.csv has changed"), "{changed}");
    let shorter = refused("v.csv", &|text| text[..2_000].to_owned());
    assert!(shorter.contains("v.csv"), "{shorter}");
    let longer = refused("v.csv", &|text| format!("{text}1,2\n"));
    assert!(longer.contains("behind which there is more now"), "{longer}");
    let more = refused("moves/c.csv", &|_| "id,at\n1,2\n".to_owned());
    assert_eq!(
        more,
        "stream moves reads the files a.csv, b.csv, c.csv, and when its log was begun it read a.csv, b.csv"
    );
    let damaged = refused("feeds", &|text| text.replace(':', ""));
    assert!(damaged.contains("feeds is damaged"), "{damaged}");
    assert!(open(&dir).unwrap().read(FIRST, 3_000, 5).is_some());
}
