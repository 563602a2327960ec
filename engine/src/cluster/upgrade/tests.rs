//! Crashes during upgrades. The state then belongs to the old version or the new one, as a whole.

use std::io::ErrorKind;
use std::path::PathBuf;

use tidemill_cluster::load_rows;
use tidemill_core::{Column, DataType, History, Key, Schema, TableSpec, Value};
use tidemill_durable::{DirStore, Within};
use tidemill_host::{hold, FileLog};
use tidemill_sim::SimEnv;
use tidemill_txn::program::{Builder, Program};

use super::super::program_file::PROGRAM;
use super::*;
use crate::spec::AppSpec;

/// Rows by their keys.
type Rows = BTreeMap<(TableId, Key), Vec<Value>>;

const ROWS: i64 = 5;

/// Rows with a number. The second version has another column before it.
fn program(is_second: bool) -> Program {
    let mut b = Builder::new("bank");
    let int = |name: &str| Column::new(name, DataType::Int);
    let mut columns = vec![int("id"), int("balance")];
    if is_second {
        columns.insert(1, int("level").default(Value::Int(7)));
    }
    b.table("account", &["id"], columns);
    let opened = b.stream("opened", vec![int("id")]);
    let mut h = b.handler("open", opened);
    let id = h.column("id");
    h.output(&[("id", id)]);
    h.done();
    b.finish().unwrap()
}

fn key(id: i64) -> Key {
    Key::of(&[Value::Int(id)])
}

/// The rows of a version.
fn wanted(is_second: bool) -> Rows {
    let row = |id: i64| {
        let mut row = vec![Value::Int(id), Value::Int(10 * id)];
        if is_second {
            row.insert(1, Value::Int(7));
        }
        ((TableId(0), key(id)), row)
    };
    (1..ROWS).map(row).collect()
}

struct Site {
    env: Env,
    dir: PathBuf,
    log: FileLog,
    store: Arc<dyn Store>,
    ways: DeclaredSinks,
    event_time: EventTime,
}

impl Site {
    fn open(sim: &SimEnv) -> Result<Site> {
        let (env, dir) = (sim.env(), PathBuf::from("/cluster"));
        let held = hold(&env, &dir)?;
        let log = FileLog::open(&env, dir.join("log"), 1, held, 64 << 10)?;
        let store = DirStore::shared(&env, dir.join("snapshots"))?;
        let store = Arc::new(Within::new(Arc::new(store), "bank"));
        let spec = AppSpec::new(program(false), Vec::new(), Settings::default());
        let ways = DeclaredSinks::open(&spec, &spec.program, false, &env)?;
        Ok(Site { env, dir, log, store, ways, event_time: EventTime::default() })
    }

    /// Starts a version, and returns its rows.
    fn start(&self, is_second: bool, upgrade: Upgrade) -> Result<Rows> {
        let settings = Settings { upgrade, ..Settings::default() };
        let program = program(is_second);
        let starting = self.starting(&program, &settings, is_second);
        starting.agree()?;
        let manifest = starting.newest()?.manifest.unwrap_or_default();
        assert!(!manifest.is_of_before());
        let app = starting.written()?.expect("it has agreed").is.app;
        let Left { manifest, .. } = left(&self.store, &app, &manifest)?;
        let mut rows = Rows::new();
        load(&self.store, &manifest, |row| {
            let mut bytes = row.row;
            let columns = app.program.tables[row.table.index()].schema.columns.iter();
            let values = columns.map(|column| encode::decode(&column.ty, &mut bytes).unwrap());
            let had = rows.insert((row.table, Key(row.key.into())), values.collect());
            assert_eq!(had, None);
            Ok(())
        })?;
        Ok(rows)
    }

    fn starting<'a>(
        &'a self,
        program: &'a Program,
        settings: &'a Settings,
        is_second: bool,
    ) -> Starting<'a> {
        Starting {
            env: &self.env,
            dir: &self.dir,
            program,
            fingerprint: 1 + u128::from(is_second),
            read: Vec::new(),
            begins: vec![0; 2],
            event_time: &self.event_time,
            settings,
            log: &self.log,
            store: self.store.clone(),
            name: "bank",
            kept: crate::ClusterSettings::default().kept("bank"),
            sources: 2,
            ways: &self.ways,
            one: None,
            has_own_requests: true,
            has_sole_owner: false,
        }
    }

    /// Writes the data of a first version: a snapshot of two parts, the second of which removes a
    /// row.
    fn fill(&self) -> Result<()> {
        let (program, settings) = (program(false), Settings::default());
        let starting = self.starting(&program, &settings, false);
        starting.agree()?;
        starting.append(1, Record::Generation { generation: 1 })?;
        let mut first = Delta::new();
        let mut bytes = Vec::new();
        for ((table, key), row) in wanted(false) {
            bytes.clear();
            row.iter().for_each(|value| encode::value(value, &mut bytes));
            first.push(table, tidemill_place::partition(&key), &key.0, Some(&bytes));
        }
        let (last, mut second) = (key(99), Delta::new());
        first.push(TableId(0), tidemill_place::partition(&last), &last.0, Some(&bytes));
        second.push(TableId(0), tidemill_place::partition(&last), &last.0, None);
        let mut objects = Vec::new();
        for (name, delta) in [("part-1-1-5-1", first), ("part-1-2-5-1", second)] {
            objects.extend(put_rows(&*self.store, (1, 2), name, &delta)?);
        }
        let (inputs, outputs) = (vec![0; 2], vec![0; 2]);
        let manifest = Manifest {
            program: 1,
            generation: 1,
            epoch: 2,
            objects,
            inputs,
            outputs,
            ..Manifest::default()
        };
        starting.append(1, Record::Snapshot(manifest.into()))
    }
}

#[test]
fn whatever_a_crash_leaves_is_one_versions() {
    let (mut olds, mut news) = (0, 0);
    for seed in 0.. {
        let (nth, how) = (seed / 2 + 1, seed % 2);
        let sim = SimEnv::new(seed);
        let site = Site::open(&sim).unwrap();
        site.fill().unwrap();
        match how {
            0 => sim.disk.fail_nth(None, nth, ErrorKind::Other),
            _ => sim.disk.fail_from(None, nth, ErrorKind::Other),
        }
        let done = site.start(true, Upgrade::Lossless);
        drop(site);
        sim.disk.clear_faults();
        sim.disk.crash_torn();
        let site = Site::open(&sim).unwrap();
        match site.start(false, Upgrade::Off) {
            Ok(rows) => {
                assert!(done.is_err(), "seed {seed}: it was done");
                assert_eq!(rows, wanted(false), "seed {seed}");
                olds += 1;
            }
            Err(error) => {
                assert!(error.to_string().contains("another version"), "seed {seed}: {error}");
                news += u64::from(done.is_err());
            }
        }
        assert_eq!(site.start(true, Upgrade::Lossless).unwrap(), wanted(true), "seed {seed}");
        // The upgrade is complete.
        assert_eq!(site.start(true, Upgrade::Off).unwrap(), wanted(true), "seed {seed}");
        if done.is_ok() && how == 1 {
            break;
        }
    }
    assert!(
        olds > 10 && news > 0,
        "{olds} were the old version's, {news} were not known to be done"
    );
}

/// A cut without requests.
fn cut(epoch: u64, by_owner: bool) -> tidemill_cluster::CutRecord {
    tidemill_cluster::CutRecord {
        epoch,
        clock_us: 1,
        base: 0,
        count: 0,
        from: vec![0; 2],
        upto: vec![0; 2],
        times: Times::default(),
        by_owner,
        stops_on_fault: false,
    }
}

#[test]
fn what_only_the_other_version_can_execute_is_in_the_way() {
    let sim = SimEnv::new(1);
    let site = Site::open(&sim).unwrap();
    site.fill().unwrap();
    assert!(site.start(true, Upgrade::Off).unwrap_err().to_string().contains("another version"));
    let (program, settings) = (program(false), Settings::default());
    site.starting(&program, &settings, false).append(1, Record::Cut(cut(3, true))).unwrap();
    let error = site.start(true, Upgrade::Lossless).unwrap_err().to_string();
    assert!(error.contains("1 recorded cut and 0 requests come after"), "{error}");
    assert_eq!(site.start(false, Upgrade::Off).unwrap(), wanted(false));
}

#[test]
fn cuts_that_the_owner_of_all_rows_did_not_execute_as_a_whole_are_in_the_way() {
    let sim = SimEnv::new(1);
    let site = Site::open(&sim).unwrap();
    site.fill().unwrap();
    let (program, settings) = (program(false), Settings::default());
    let starting = |has_sole_owner: bool| Starting {
        has_sole_owner,
        ..site.starting(&program, &settings, false)
    };
    starting(true).append(1, Record::Cut(cut(3, true))).unwrap();
    starting(true).agree().unwrap();
    starting(true).append(1, Record::Cut(cut(4, false))).unwrap();
    let error = starting(true).agree().unwrap_err();
    assert!(error.what.contains("1 recorded cut of the cluster bank"), "{error}");
    assert!(error.help.contains("start the app with that version once more"));
    starting(false).agree().unwrap();
}

/// Returns the error of a start that is refused.
fn refused(site: &Site, is_second: bool) -> String {
    site.start(is_second, Upgrade::Lossless).unwrap_err().to_string()
}

#[test]
fn the_log_knows_of_which_program_it_is() {
    for has_snapshot in [false, true] {
        let sim = SimEnv::new(1);
        let site = Site::open(&sim).unwrap();
        match has_snapshot {
            true => site.fill().unwrap(),
            false => drop(site.start(false, Upgrade::Off).unwrap()),
        }
        // Without the directory only the same version can continue.
        site.env.disk.remove(&site.dir.join(PROGRAM)).unwrap();
        assert!(refused(&site, true).contains("to another app or another version"));
        site.start(false, Upgrade::Off).unwrap();
        site.start(true, Upgrade::Lossless).unwrap();
        site.env.disk.remove(&site.dir.join(PROGRAM)).unwrap();
        assert!(refused(&site, false).contains("to another app or another version"));
        assert_eq!(site.start(true, Upgrade::Off).unwrap().is_empty(), !has_snapshot);
    }
}

#[test]
fn a_directory_and_a_log_that_are_not_of_one_cluster_are_refused() {
    let sims = [SimEnv::new(1), SimEnv::new(2)];
    let [first, second] = sims.each_ref().map(|sim| Site::open(sim).unwrap());
    first.start(false, Upgrade::Off).unwrap();
    // The second cluster's log is empty.
    let first_s = Site {
        env: first.env.clone(),
        dir: first.dir.clone(),
        log: second.log,
        store: second.store,
        ways: first.ways,
        event_time: EventTime::default(),
    };
    let error = refused(&first_s, false);
    assert!(error.contains("belongs to a cluster with data"), "{error}");
    let Site { log, store, ways, event_time, .. } = first_s;
    let second =
        Site { log, store, dir: second.dir, env: second.env, ways: second.ways, event_time };
    second.start(true, Upgrade::Off).unwrap();
    let Site { log, store, event_time, .. } = second;
    let first = Site { env: first.env, dir: first.dir, log, store, ways, event_time };
    let error = refused(&first, false);
    assert!(error.contains("belongs to another program than /cluster"), "{error}");
}

#[test]
fn topics_keep_their_places() {
    let of = |list: &[(&str, u32)]| -> Vec<(String, u32)> {
        list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    };
    let was = of(&[("a", 2), ("b", 3)]);
    for now in [&[("a", 2), ("b", 3)][..], &[("a", 2), ("b", 4)], &[("a", 2), ("b", 3), ("c", 1)]] {
        check_topics(&was, &of(now)).unwrap();
    }
    for now in
        [&[("a", 3), ("b", 3)][..], &[("a", 2), ("b", 2)], &[("b", 3), ("a", 2)], &[("a", 2)], &[]]
    {
        let error = check_topics(&was, &of(now)).unwrap_err();
        assert!(error.to_string().contains("may only come after"), "{error}");
    }
}

#[test]
fn event_time_goes_on_where_sources_are_others_and_nothing_waits() {
    let timed = |stream: &str, source, group| TimedSource {
        stream: stream.to_owned(),
        time: "at".into(),
        source,
        group,
    };
    let was = [timed("clicks", 0, 0), timed("clicks", 1, 0), timed("votes", 0, 1)];
    let at = |time_us, offset| Position { time_us, source: tidemill_core::SourceId(1), offset };
    let times = Times {
        newest: vec![Some(7), Some(5), Some(9)],
        watermarks: vec![at(5, 8), at(9, 3)],
        idle: vec![2],
        ended: vec![0, 2],
        late: 4,
    };
    let (inputs, buffered) = (vec![4, 8], vec![4, 8]);
    let mut manifest = Manifest { inputs, buffered, times: times.clone(), ..Manifest::default() };
    assert_eq!(carried(&was, &was, &manifest).unwrap(), times);
    // The streams are in one group now, and another source comes first.
    let now = [timed("bids", 0, 0), timed("votes", 0, 0), timed("clicks", 0, 0)];
    let found = carried(&was, &now, &manifest).unwrap();
    assert_eq!(found.late, 4);
    assert_eq!(found.newest, [None, Some(9), Some(7)]);
    assert_eq!(found.ended, [1, 2]);
    assert_eq!(found.watermarks, [Position { time_us: 9, ..Position::MIN }]);
    manifest.buffered[1] = 6;
    assert_eq!(carried(&was, &was, &manifest).unwrap(), times);
    let error = carried(&was, &now, &manifest).unwrap_err().to_string();
    assert!(error.contains("events wait for their watermark"), "{error}");
}

/// The program of a table with a history, and as earlier versions of Tidemill stored it.
fn with_history() -> (Program, Program) {
    let mut b = Builder::new("bank");
    let int = |name: &str| Column::new(name, DataType::Int);
    let table = b.table("account", &["id"], vec![int("id"), int("balance")]);
    b.table("other", &["id"], vec![int("id")]);
    let opened = b.stream("opened", vec![int("id")]);
    let mut h = b.handler("open", opened);
    let id = h.column("id");
    h.output(&[("id", id)]);
    h.done();
    b.history(table, History { time_us: Some(1_000), versions: None });
    let now = b.finish().unwrap();
    let mut was = now.clone();
    was.tables[0].history = None;
    let names = ["0.id", "1.n", "2.at", "3.id", "4.balance"];
    let types = [DataType::Int, DataType::Int, DataType::Timestamp, DataType::Int, DataType::Int];
    let columns = names.into_iter().zip(types);
    let columns = columns.enumerate().map(|(nth, (name, ty))| {
        let column = Column::new(name, ty);
        if nth < 3 {
            column
        } else {
            column.nullable()
        }
    });
    let schema = Schema::new(columns.collect()).into();
    let mut versions = TableSpec::new("tidemill.versions.account", vec![0, 1], schema);
    (versions.ordered, versions.partition_prefix) = (true, Some(1));
    was.tables.insert(1, versions);
    was.forget();
    (was, now)
}

#[test]
fn versions_that_were_rows_become_versions() {
    let sim = SimEnv::new(1);
    let site = Site::open(&sim).unwrap();
    let (was, now) = with_history();
    let settings = Settings { upgrade: Upgrade::Lossless, ..Settings::default() };
    let starting = site.starting(&was, &settings, false);
    starting.agree().unwrap();
    starting.append(1, Record::Generation { generation: 1 }).unwrap();
    let mut delta = Delta::new();
    let mut push = |table: usize, row: &[Value]| {
        let (spec, mut bytes) = (&was.tables[table], Vec::new());
        let key = Key::of(spec.key.iter().map(|column| &row[*column]));
        row.iter().for_each(|value| encode::value(value, &mut bytes));
        delta.push(TableId(table as u16), partition_of_bytes(spec, &key.0), &key.0, Some(&bytes));
    };
    let (int, at) = (Value::Int, Value::Timestamp);
    push(0, &[int(7), int(30)]);
    push(1, &[int(7), int(-1), at(6), Value::Null, Value::Null]);
    for (n, balance) in [(3, 10), (4, 20), (5, 30)] {
        push(1, &[int(7), int(n), at(100 * n), int(7), int(balance)]);
    }
    push(2, &[int(9)]);
    let objects = vec![put_rows(&*site.store, (1, 2), "part-1-1-5-1", &delta).unwrap().unwrap()];
    let (inputs, outputs) = (vec![0; 2], vec![0; 2]);
    let (program, generation, epoch) = (1, 1, 2);
    let manifest =
        Manifest { program, generation, epoch, objects, inputs, outputs, ..Manifest::default() };
    starting.append(1, Record::Snapshot(manifest.into())).unwrap();

    let off = Settings::default();
    let refused = site.starting(&now, &off, true).agree().unwrap_err();
    assert!(refused.what.contains("another version of the program"), "{refused}");
    let starting = site.starting(&now, &settings, true);
    starting.agree().unwrap();
    let manifest = starting.newest().unwrap().manifest.unwrap();
    let all = (0..tidemill_place::PARTITIONS).map(Partition).collect();
    let loaded = load_rows(&site.store, 2, &manifest.objects, &all, (&now.tables, 7)).unwrap();
    let mut tables = loaded.rows;
    let found: Vec<_> = tables.tables()[0].newest().histories().collect();
    let version = |n: i64, balance: i64| {
        let row: tidemill_core::Row = [int(7), int(balance)].into();
        (n.cast_unsigned() - 3, 100 * n, row)
    };
    assert_eq!(found, [(key(7), vec![version(3, 10), version(4, 20), version(5, 30)])]);
    assert_eq!(tables.get(TableId(1), &key(9)).as_deref(), Some(&[int(9)][..]));
    tables.end_epoch();
}
