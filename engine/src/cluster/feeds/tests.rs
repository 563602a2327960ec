#![allow(clippy::disallowed_methods)] // The tests change files of the real disk, as users do.

use std::fmt::Write as _;

use std::sync::mpsc::channel;

use tidemill_cluster::{Events, Log, Records, Topic};
use tidemill_core::{Column, DataType, Late, Value};
use tidemill_function::Functions as _;
use tidemill_txn::program::{Batching, Builder};

use super::near::Away;
use super::*;
use crate::cluster::questions::Question;
use crate::functions::tests::Nothing;
use crate::functions::Nobody;
use crate::settings::Settings;

const FIRST: u32 = 5;

/// An app that reads two files of events with event time and one without time, all in a folder.
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
    let read = |stream: &str, path: &str| reads(stream, &folder.join(path), false);
    let sources = vec![read("moves", "moves"), SourceDecl::pushed("votes"), read("votes", "v.csv")];
    AppSpec::new(b.finish().unwrap(), sources, Settings::default())
}

fn reads(stream: &str, path: &Path, follow: bool) -> SourceDecl {
    let files = Some(serde_json::json!({"path": path, "follow": follow}));
    SourceDecl { files, ..SourceDecl::pushed(stream) }
}

/// Writes the files of the app. The id of a row is its number among all rows, and some rows can't
/// be read.
fn fill(folder: &Path) {
    std::fs::create_dir_all(folder.join("moves")).unwrap();
    let mut texts = [const { String::new() }; 3];
    for id in 0..6_000 {
        // Among equal times, rows of the first file come first.
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

/// The process that reads.
#[derive(Clone, Copy, PartialEq)]
enum At {
    Coordinator,
    Worker,
}

const BOTH: [At; 2] = [At::Coordinator, At::Worker];

struct Opened {
    /// The rows as they are read.
    rows: Arc<dyn Log>,
    feeds: Arc<Feeds>,
    // The directory is removed when this is dropped.
    _dir: Arc<tempfile::TempDir>,
}

fn open(dir: &Arc<tempfile::TempDir>, at: At) -> Result<Opened> {
    open_app(dir, &app(dir.path()), at)
}

fn open_app(dir: &Arc<tempfile::TempDir>, spec: &AppSpec, at: At) -> Result<Opened> {
    let env = Env::real();
    let functions = AppFunctions::new(spec, Arc::new(Nobody))?;
    let feeds = Arc::new(Feeds::open(spec, &functions, (FIRST, dir.path(), false), &env)?);
    let rows: Arc<dyn Log> = match at {
        At::Coordinator => feeds.rows.clone().unwrap(),
        At::Worker => near(spec, &functions, &feeds).log.clone(),
    };
    Ok(Opened { rows, feeds, _dir: dir.clone() })
}

/// Reads the files of an app as a worker.
fn near(spec: &AppSpec, functions: &Arc<AppFunctions>, feeds: &Arc<Feeds>) -> NearRows {
    let near = NearRows::start(spec, functions, FIRST, &Env::real()).unwrap();
    near.reaches(Box::new(Link::to(feeds)));
    near
}

/// A worker's link to the coordinator.
#[derive(Clone)]
struct Link {
    /// The number of the connection, and the files of the coordinator.
    now: Arc<Mutex<(u64, Arc<Feeds>)>>,
}

impl Link {
    fn to(feeds: &Arc<Feeds>) -> Link {
        Link { now: Arc::new(Mutex::new((1, feeds.clone()))) }
    }
}

impl Away for Link {
    fn connection(&self) -> Option<u64> {
        Some(self.now.lock().0)
    }

    fn ask(&self, question: &Question) -> Option<Vec<u8>> {
        let (tell, told) = channel();
        let then = Box::new(move |answer| drop(tell.send(answer)));
        let feeds = self.now.lock().1.clone();
        match Question::of(&question.bytes()).unwrap() {
            Question::Feed { feed } => feeds.describe(feed, then),
            Question::FeedRead { feed, news } => feeds.has_read(feed, &news, then),
            other => panic!("{other:?} is not about files"),
        }
        told.recv().ok()
    }

    fn served(&self) -> Option<Arc<dyn Log>> {
        Some(self.now.lock().1.rows.clone().unwrap())
    }
}

impl Opened {
    fn read(&self, source: u32, from: u64, limit: usize) -> Option<Records> {
        let (tell, told) = channel();
        let then = Box::new(move |found| tell.send(found).unwrap());
        self.rows.read(Topic::Input(source), from, Some(limit), 0, then);
        let found: Option<Records> = told.recv().unwrap();
        found.map(|Records { records, upto }| Records {
            records: records.into_iter().flat_map(one_by_one).collect(),
            upto,
        })
    }

    fn trim(&self, topic: Topic, below: u64) {
        // The coordinator trims, whoever reads.
        self.feeds.rows.as_ref().unwrap().trim(topic, below);
    }

    /// Returns why a read from an offset on fails.
    fn refusal(&self, source: u32, from: u64) -> String {
        // A worker has the coordinator read them, which finds out why.
        for _ in 0..2 {
            assert_eq!(self.read(source, from, 5), None);
        }
        self.feeds.rows.as_ref().unwrap().failed().expect("a reason").what
    }

    /// Reads all records of a source, `step` at a time.
    fn all(&self, source: u32, step: usize) -> Vec<(u64, Record)> {
        let (mut all, mut from) = (Vec::new(), 0);
        loop {
            let Records { records, upto } = self.read(source, from, step).unwrap();
            if records.is_empty() {
                assert_eq!(self.feeds.end(source), Some(from - 1));
                return all;
            }
            assert_eq!(upto, from + records.len() as u64);
            (from, all) = (upto, [all, records].concat());
        }
    }
}

/// Returns the events of a record as records of one event each.
fn one_by_one((offset, record): (u64, Record)) -> Vec<(u64, Record)> {
    let Record::Events(events) = &record else { return vec![(offset, record)] };
    assert!(events.is_run);
    let one = |row: u64| {
        let from = events.from.as_ref().map(|from| from.after(row));
        let batch = events.batch.slice(row as usize, 1);
        (offset + row, Record::Events(Events { from, batch, ..events.clone() }))
    };
    (0..events.batch.len() as u64).map(one).collect()
}

/// Returns the events of records. Rows that could not be read are left out.
fn events(records: &[(u64, Record)]) -> Vec<Vec<Value>> {
    let of = |(_, record): &(u64, Record)| match record {
        Record::Requests(requests) => requests.iter().map(|r| r.call.args.to_vec()).collect(),
        Record::Events(events) => events.batch.rows().map(|row| row.to_vec()).collect(),
        _ => Vec::new(),
    };
    let events: Vec<Vec<Value>> = records.iter().flat_map(of).collect();
    events.into_iter().filter(|event| event.len() == 2).collect()
}

#[test]
fn rows_have_their_places_wherever_reading_begins() {
    for at in BOTH {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        fill(dir.path());
        let opened = open(&dir, at).unwrap();
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
        // No read goes back beyond the trimmed offset, after any start.
        for below in [300, 900, 1_900] {
            let opened = open(&dir, at).unwrap();
            for source in [FIRST, FIRST + 1] {
                opened.trim(Topic::Input(source), below);
            }
            (0..20).for_each(|_| compare(&opened, below));
        }
        (0..20).for_each(|_| compare(&open(&dir, at).unwrap(), 1_900));
    }
}

/// Returns the error of opening the app while a file is changed. The file is then restored.
fn refused(
    at: At,
    dir: &Arc<tempfile::TempDir>,
    path: &str,
    text: &dyn Fn(&str) -> String,
) -> String {
    let path = dir.path().join(path);
    let was = std::fs::read_to_string(&path).unwrap_or_default();
    std::fs::write(&path, text(&was)).unwrap();
    let error = open(dir, at).map(drop).unwrap_err();
    match was.is_empty() {
        true => std::fs::remove_file(&path).unwrap(),
        false => std::fs::write(&path, was).unwrap(),
    }
    error.what
}

#[test]
fn what_is_not_what_it_was_is_refused() {
    for at in BOTH {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        fill(dir.path());
        let opened = open(&dir, at).unwrap();
        opened.read(FIRST, 0, 3_000).unwrap();
        let ends = opened.all(FIRST + 1, 100).len() as u64;
        drop(opened);
        for trimmed in [0, 1_000, 3_000] {
            if trimmed > 0 {
                let opened = open(&dir, at).unwrap();
                opened.trim(Topic::Input(FIRST), trimmed);
                opened.trim(Topic::Input(FIRST + 1), trimmed.min(ends));
            }
            let changed =
                refused(at, &dir, "moves/a.csv", &|text| text.replacen("\n9,", "\n8,", 1));
            assert!(changed.contains("a.csv has changed"), "{changed}");
            // The position is after the last place where rows were read together.
            let last = refused(at, &dir, "moves/a.csv", &|text| {
                text.replacen("\n4455,1113", "\n4455,1114", 1)
            });
            assert!(last.contains("a.csv has changed"), "{last}");
            let shorter = refused(at, &dir, "v.csv", &|text| text[..text.len() - 10].to_owned());
            assert!(shorter.contains("v.csv"), "{shorter}");
            let cut = refused(at, &dir, "moves/b.csv", &|text| text[..9_000].to_owned());
            assert!(cut.contains("b.csv"), "{cut}");
            if trimmed < ends {
                let longer = refused(at, &dir, "v.csv", &|text| format!("{text}1,2\n"));
                assert!(longer.contains("no snapshot has the earlier ones yet"), "{longer}");
            }
            let more = refused(at, &dir, "moves/c.csv", &|_| "id,at\n1,2\n".to_owned());
            assert_eq!(
            more,
            "stream moves reads the files a.csv, b.csv, c.csv, but its log began with a.csv, b.csv"
        );
            let damaged = refused(at, &dir, "feeds", &|text| text.replace(':', ""));
            assert!(damaged.contains("feeds is damaged"), "{damaged}");
        }
        assert!(open(&dir, at).unwrap().read(FIRST, 3_000, 5).is_some());
    }
}

#[test]
fn nothing_is_read_where_there_never_was_any() {
    for at in BOTH {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        fill(dir.path());
        let ends = open(&dir, at).unwrap().all(FIRST + 1, 4096).len() as u64;
        for _ in 0..2 {
            let opened = open(&dir, at).unwrap();
            // At the end there is nothing to read. Beyond it the input must have changed.
            assert!(opened.read(FIRST + 1, ends, 5).unwrap().records.is_empty());
            assert_eq!(opened.read(FIRST + 1, ends - 1, 5).unwrap().records.len(), 1);
            assert!(opened.refusal(FIRST + 1, ends + 1).contains("has read"));
            // The log has more than the files, and the earlier files are unknown.
            std::fs::remove_file(dir.path().join("feeds")).unwrap();
        }
    }
}

#[test]
fn a_folder_that_is_followed_goes_on_where_it_was_and_not_blindly() {
    for at in BOTH {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let (env, folder) = (Env::real(), dir.path().join("votes"));
        std::fs::create_dir(&folder).unwrap();
        let add = |name: &str, ids: std::ops::Range<u64>| {
            let rows: String = ids.map(|id| format!("{id},0\n")).collect();
            std::fs::write(folder.join(name), format!("id,at\n{rows}")).unwrap();
        };
        add("a.csv", 0..100);
        add("b.csv", 100..300);
        let mut spec = app(dir.path());
        spec.sources = vec![reads("votes", &folder, true)];
        let open = || open_app(&dir, &spec, at);
        let ids = |records: &[(u64, Record)]| -> Vec<Value> {
            events(records).into_iter().map(|event| event[0].clone()).collect()
        };
        let wanted = |ids: std::ops::Range<i64>| ids.map(Value::Int).collect::<Vec<_>>();
        let opened = open().unwrap();
        assert_eq!(ids(&opened.read(FIRST, 0, 250).unwrap().records), wanted(0..250));
        add("c.csv", 300..400);
        assert_eq!(ids(&opened.read(FIRST, 250, 100).unwrap().records), wanted(250..350));
        assert_eq!(opened.feeds.end(FIRST), None);
        // A snapshot has all of `b.csv`, so the files before may be removed.
        opened.trim(Topic::Input(FIRST), 310);
        drop(opened);
        std::fs::remove_file(folder.join("a.csv")).unwrap();
        let opened = open().unwrap();
        assert_eq!(ids(&opened.read(FIRST, 310, 100).unwrap().records), wanted(310..400));
        drop(opened);
        env.disk.remove(&dir.path().join("feeds")).unwrap();
        let why = open().unwrap().refusal(FIRST, 310);
        assert!(why.contains("the coordinator's directory does not say of which files"), "{why}");
    }
}

/// An app with batches of two streams. The first stream reads two files, each as a source.
fn app_of_batches(folder: &Path) -> AppSpec {
    let mut b = Builder::new("batches");
    let int = |name: &str| Column::new(name, DataType::Int);
    b.table("rows", &["id"], vec![int("id")]);
    let streams = ["moves", "votes"].map(|name| b.stream(name, ["id", "at"].map(int).to_vec()));
    b.event_time(streams[0], "at", Late::Side);
    streams.iter().for_each(|stream| b.batch(*stream, Batching::Count(7)));
    b.procedure("take", &streams, &[], Arc::new(Nothing));
    let program = b.finish().unwrap();
    let read = |stream: &str, path: &str| reads(stream, &folder.join(path), false);
    let sources = vec![
        read("moves", "moves/a.csv"),
        read("moves", "moves/b.csv"),
        read("votes", "v.csv"),
        SourceDecl::pushed("votes"),
    ];
    AppSpec::new(program, sources, Settings::default())
}

#[test]
fn what_waits_to_be_a_batch_is_one_where_its_stream_ends() {
    for at in BOTH {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        fill(dir.path());
        let spec = app_of_batches(dir.path());
        let moves = spec.program.streams.iter().position(|of| *of.spec.name == *"moves").unwrap();
        let functions = AppFunctions::new(&spec, Arc::new(Nobody)).unwrap();
        for _ in 0..2 {
            let opened = open_app(&dir, &spec, at).unwrap();
            for (source, newest) in [(FIRST, 1_499), (FIRST + 1, 1_499)] {
                let all = opened.all(source, 100);
                let [.., (_, Record::Requests(last)), (end, Record::End)] = &all[..] else {
                    panic!("it does not end so");
                };
                assert_eq!(opened.feeds.end(source), Some(*end));
                // The record comes after all rows of its source, and has the number of sources.
                let [last] = &last[..] else { panic!("one stream has batches") };
                assert_eq!(functions.timed(&last.call), Some((StreamId(moves as u16), newest)));
                let rest = [Value::Int(2), Value::Timestamp(newest)];
                assert_eq!(last.call.args[1..], rest);
                for from in all.len() - 2..all.len() {
                    assert_eq!(opened.read(source, from as u64, 9).unwrap().records, all[from..]);
                }
            }
            // Clients may send more events of that stream.
            let all = opened.all(FIRST + 2, 4096);
            assert_eq!(events(&all[..all.len() - 1]).len(), 2_000);
            assert_eq!(all.len() - 1, 2_004);
        }
    }
}

/// The new rows come after the record of the end, from whatever offset they are read. The waiting
/// batch is completed once more.
#[test]
fn files_that_have_grown_go_on() {
    for at in BOTH {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        fill(dir.path());
        let mut all = Vec::new();
        for round in 0..3i64 {
            let opened = open(&dir, at).unwrap();
            let from = all.len() as u64;
            let goes_on = [(FIRST, from)];
            assert_eq!(*opened.feeds.goes_on, goes_on[..usize::from(round > 0)]);
            loop {
                let at = all.len() as u64;
                let found = opened.read(FIRST, at, 700).unwrap().records;
                if found.is_empty() {
                    break;
                }
                assert_eq!(found[0].0, at);
                all.extend(found);
            }
            let end = all.len() as u64 - 1;
            assert_eq!(opened.feeds.end(FIRST), Some(end));
            let ends = all.iter().filter(|(_, record)| *record == Record::End).count();
            assert_eq!((all[end as usize].1 == Record::End, ends as i64), (true, round + 1));
            for at in (from.saturating_sub(1)..=end).step_by(97) {
                let found = opened.read(FIRST, at, 60).unwrap().records;
                assert_eq!(found, all[at as usize..all.len().min(at as usize + 60)]);
            }
            // A snapshot has everything, or everything but the record of the end.
            opened.trim(Topic::Input(FIRST), end + 1 - round.cast_unsigned() % 2);
            drop(opened);
            let path = dir.path().join("moves").join(["a.csv", "b.csv"][round as usize % 2]);
            let mut text = std::fs::read_to_string(&path).unwrap();
            for id in 0..300 {
                writeln!(text, "{},{}", 10_000 * (round + 1) + id, 5_000 * (round + 1) + id)
                    .unwrap();
            }
            std::fs::write(&path, text).unwrap();
        }
        let events = events(&all);
        let grown = |round: i64| {
            let of = move |event: &&Vec<Value>| matches!(event[0], Value::Int(id) if id >= 10_000 * round);
            events.iter().filter(of).count()
        };
        assert_eq!((grown(1), grown(2), events.len()), (600, 300, 4_600));
    }
}

/// A worker goes on with a coordinator that has been started again, and knows of new rows.
#[test]
fn a_worker_learns_of_new_rows_with_a_new_coordinator() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    fill(dir.path());
    let spec = app(dir.path());
    let functions = AppFunctions::new(&spec, Arc::new(Nobody)).unwrap();
    let first = open(&dir, At::Coordinator).unwrap();
    let link = Link::to(&first.feeds);
    let near = NearRows::start(&spec, &functions, FIRST, &Env::real()).unwrap();
    near.reaches(Box::new(link.clone()));
    let feeds = first.feeds.clone();
    let worker = Opened { rows: near.log.clone(), feeds, _dir: dir.clone() };
    let all = worker.all(FIRST, 700).len() as u64;
    worker.trim(Topic::Input(FIRST), all);
    assert!(worker.read(FIRST, all, 10).unwrap().records.is_empty());
    // The marks are written before this read is answered.
    assert!(first.read(FIRST, all, 10).unwrap().records.is_empty());
    let path = dir.path().join("moves/a.csv");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text + "9000,5000\n").unwrap();
    let second = open(&dir, At::Coordinator).unwrap();
    assert_eq!(*second.feeds.goes_on, [(FIRST, all)]);
    *link.now.lock() = (2, second.feeds.clone());
    let found = worker.read(FIRST, all, 10).unwrap().records;
    assert_eq!(events(&found), [[Value::Int(9000), Value::Int(5000)]]);
    assert_eq!(found.last(), Some(&(all + 1, Record::End)));
    assert_eq!((first.feeds.end(FIRST), second.feeds.end(FIRST)), (Some(all - 1), Some(all + 1)));
}

/// The rows are those of the coordinator's files, whatever it has given out before.
#[test]
fn a_worker_that_sees_other_files_gets_the_rows_of_the_coordinator() {
    let (dir, other) = [(); 2].map(|()| Arc::new(tempfile::tempdir().unwrap())).into();
    fill(dir.path());
    fill(other.path());
    for path in ["moves/a.csv", "moves/b.csv", "v.csv"] {
        let text = std::fs::read_to_string(other.path().join(path)).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        lines[1..].reverse();
        std::fs::write(other.path().join(path), lines.join("\n") + "\n").unwrap();
    }
    let spec = app(other.path());
    let functions = AppFunctions::new(&spec, Arc::new(Nobody)).unwrap();
    let wanted = [FIRST, FIRST + 1].map(|source| open(&dir, At::Worker).unwrap().all(source, 500));
    std::fs::remove_file(dir.path().join("feeds")).unwrap();
    for given in [0, 100, 1_500, 3_000] {
        for is_again in [false, true] {
            let mut opened = open(&dir, At::Coordinator).unwrap();
            opened.read(FIRST, 0, given).unwrap();
            opened.read(FIRST + 1, 0, given).unwrap();
            if is_again {
                drop(opened);
                opened = open(&dir, At::Coordinator).unwrap();
            }
            opened.rows = near(&spec, &functions, &opened.feeds).log.clone();
            for (nth, source) in [FIRST, FIRST + 1].into_iter().enumerate() {
                let found = opened.read(source, 0, 50).unwrap().records;
                assert_eq!(found, wanted[nth][..50], "source {source}, {given} given, {is_again}");
            }
        }
    }
}

/// A file that has not grown ends once more where another one of its stream has. This end is known
/// as soon as it has been read, whatever was read before it, and the next start knows of it.
#[test]
fn an_end_that_comes_again_is_known() {
    for at in BOTH {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        fill(dir.path());
        let spec = app_of_batches(dir.path());
        let opened = open_app(&dir, &spec, at).unwrap();
        let before = [FIRST, FIRST + 1].map(|source| opened.all(source, 100).len() as u64);
        for (source, end) in [(FIRST, before[0]), (FIRST + 1, before[1])] {
            opened.trim(Topic::Input(source), end);
        }
        drop(opened);
        let path = dir.path().join("moves/b.csv");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text + "9000,5000\n").unwrap();
        let opened = open_app(&dir, &spec, at).unwrap();
        let of = |opened: &Opened| opened.read(FIRST, before[0], 100).unwrap();
        let again = of(&opened);
        assert!(matches!(again.records[..], [(_, Record::Requests(_)), (_, Record::End)]));
        assert_eq!(opened.feeds.end(FIRST), Some(again.upto - 1));
        drop(opened);
        let opened = open_app(&dir, &spec, at).unwrap();
        assert_eq!(of(&opened), again);
        assert_eq!(opened.feeds.end(FIRST), Some(again.upto - 1));
    }
}

#[test]
fn rows_that_were_executed_before_are_left_out() {
    for at in BOTH {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        fill(dir.path());
        let (spec, env) = (app(dir.path()), Env::real());
        let rows_of = |records: &[(u64, Record)]| -> Vec<u64> {
            let row = |(_, record): &(u64, Record)| match record {
                Record::Events(events) => Some(events.from.as_ref().unwrap().row),
                _ => None,
            };
            records.iter().filter_map(row).collect()
        };
        let whole = rows_of(&open(&dir, at).unwrap().all(FIRST + 1, 4096));
        let left_out = vec![4..6, 10..11, 900..1_100];
        let stand = |decl: &SourceDecl| {
            let file = |(name, mut source): NamedFile| match decl.stream == "votes" {
                true => {
                    let place = place_of(&mut *source, &name, 3, |_| {}).unwrap();
                    FileAt { name, place, left_out: left_out.clone(), ahead: Vec::new() }
                }
                false => {
                    let (left_out, ahead) = Default::default();
                    FileAt { name, place: Place::start(), left_out, ahead }
                }
            };
            Feeds::files(decl, &spec.program, &env).unwrap().into_iter().map(file).collect()
        };
        let all = of_files(&spec).map(|decl| {
            let (files, newest_us, have_ended) = (stand(decl), None, false);
            FilesAt { decl, files, newest_us, have_ended }
        });
        Feeds::begin_at(&*env.disk, dir.path(), all.collect()).unwrap();
        let stays = |row: &u64| *row >= 3 && !left_out.iter().any(|rows| rows.contains(row));
        let wanted: Vec<u64> = whole.into_iter().filter(stays).collect();
        for step in [1, 7, 4096] {
            let opened = open(&dir, at).unwrap();
            let (mut found, mut from) = (Vec::new(), 3);
            while opened.feeds.end(FIRST + 1).is_none_or(|end| from <= end) {
                let Records { records, upto } = opened.read(FIRST + 1, from, step).unwrap();
                found.extend(records);
                from = upto;
            }
            assert_eq!(rows_of(&found), wanted, "step {step}");
            let offsets: Vec<u64> = found.iter().map(|(offset, _)| *offset).collect();
            assert!(offsets.iter().copied().eq(3..from));
        }
        // A reader that can't leave them out begins after them, and gets the rows between them.
        let functions = AppFunctions::new(&spec, Arc::new(Nobody)).unwrap();
        let inputs = [0, 5];
        let at = Feeds::stand_at(&spec, &functions, (dir.path(), &inputs), &env).unwrap();
        let file = &at[1].files[0];
        let ahead: Vec<u64> =
            file.ahead.iter().flat_map(|chunk| chunk.offsets.iter().copied()).collect();
        let between = wanted.into_iter().filter(|row| (7..1_100).contains(row));
        assert_eq!((file.place.offset, ahead), (1_100, between.collect()));
    }
}
