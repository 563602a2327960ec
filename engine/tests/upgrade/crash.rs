//! Crashes and failing disks, during an upgrade and after it.

use super::*;

/// After a crash at any point, the directory belongs to the old program or the new one.
#[test]
fn a_crash_leaves_the_old_or_the_new() {
    let sim = SimEnv::new(1);
    people().written(&sim, &two());
    let renames = [("t.name", "t.called")];
    let new =
        people().with(vec![int("id"), text("called"), money("n", 2), text("note").nullable()]);
    let row =
        |id, name, n| vec![Value::Int(id), Value::str(name), Value::Decimal(n, 2), Value::Null];
    let after = [row(1, "Ann", 1000), row(2, "Ben", -700)];
    sim.disk.record();
    let mill = new.start(&sim, upgrading(&renames)).unwrap();
    assert_eq!(rows(&mill, "t"), after);
    mill.stop().unwrap();
    let trace = sim.disk.take_trace();
    let on = |disk: &Arc<SimDisk>| SimEnv { disk: disk.clone(), ..SimEnv::new(5) };
    let images = || trace.images(7, 3);
    let (mut old, mut upgraded) = (0, 0);
    for ((first, second), third) in images().zip(images()).zip(images()) {
        let place = format!("{first:?}");
        match people().start(&on(&first.disk), settings()) {
            Ok(mill) => {
                assert_eq!(rows(&mill, "t"), two(), "{place}");
                old += 1;
            }
            Err(error) => {
                assert!(error.what.contains("another version"), "{place}: {error}");
                let mill = new.start(&on(&second.disk), settings());
                let mill = mill.unwrap_or_else(|e| panic!("{place}: {e}"));
                assert_eq!(rows(&mill, "t"), after, "{place}");
                upgraded += 1;
            }
        }
        let mill = new.start(&on(&third.disk), upgrading(&renames));
        let mill = mill.unwrap_or_else(|e| panic!("{place}: {e}"));
        assert_eq!(rows(&mill, "t"), after, "{place}");
        assert_eq!(mill.sent("put").unwrap(), 2, "{place}");
        mill.stop().unwrap();
    }
    println!("{old} images of the old program, {upgraded} of the new one");
    assert!(old > 10 && upgraded > 10, "{old}, {upgraded}");
}

/// A crash with buffered events and output files. The sender continues after the known rows, and
/// in the end everything is there once.
#[test]
fn a_crash_in_an_upgraded_run_loses_and_repeats_nothing() {
    let sinks = |names: &[&str]| -> Vec<SinkDecl> {
        let sink = |name: &&str| SinkDecl {
            stream: (*name).to_owned(),
            files: Some(json!({"path": format!("/out/{name}.jsonl")})),
            kafka: None,
            at: String::new(),
        };
        names.iter().map(sink).collect()
    };
    let old = Clocked::new();
    let new = Clocked { extra: vec![text("memo").nullable()], above: Some(0), ..Clocked::new() };
    let rows_after: [&[i64]; 4] = [&[22, 1, 100], &[23, 3, 250], &[30, 1, -100], &[31, 3, 1]];
    let sim = SimEnv::new(1);
    let spec = AppSpec { sinks: sinks(&["add"]), ..old.app(settings()) };
    let mill = Mill::start(spec, sim.env()).unwrap();
    old.send(&mill, &[&[10, 1, 5], &[20, 2, 7], &[20, 1, 8], &[21, 2, -1]]);
    mill.acknowledge("events", 4).unwrap();
    mill.stop().unwrap();
    let run = |sim: &SimEnv, acknowledged: u64| {
        let settings = Settings { snapshot_us: 1, ..upgrading(&[]) };
        let spec = AppSpec { sinks: sinks(&["add", "above"]), ..new.app(settings) };
        let mill = Mill::start(spec, sim.env())?;
        let schema = new.program().streams[0].spec.schema.clone();
        let known = mill.sent("events")?;
        assert!(
            known >= acknowledged,
            "{known} rows are known, and {acknowledged} were answered for"
        );
        for row in &rows_after[known as usize - 4..] {
            let row = [Value::Int(row[0]), Value::Int(row[1]), Value::Null, Value::Int(row[2])];
            let rows = mill.send("events", Batch::from_rows(schema.clone(), [&row[..]]))?;
            mill.acknowledge("events", rows)?;
            sim.disk.mark(rows);
        }
        let summary = mill.finish()?;
        let files = sim.disk.list(Path::new("/out")).unwrap().into_iter().map(|path| {
            let mut text = String::new();
            let mut file = sim.disk.open_read(&path).unwrap();
            std::io::Read::read_to_string(&mut file, &mut text).unwrap();
            (path, text)
        });
        let files: Vec<_> = files.collect();
        let tables = (rows(&mill, "sums"), rows(&mill, "counts"));
        Ok::<_, Error>((files, tables, summary.output_hash, summary.events))
    };
    sim.disk.record();
    let whole = run(&sim, 4).unwrap();
    let trace = sim.disk.take_trace();
    assert_eq!(whole.0.len(), 2);
    assert_eq!(whole.0[0].1.lines().count(), 5);
    assert_eq!(whole.0[1].1.lines().count(), 8);
    let mut images = 0;
    for image in trace.images(3, 1) {
        let place = format!("{image:?}");
        let world = SimEnv { disk: image.disk, ..SimEnv::new(5) };
        let again = run(&world, image.mark.unwrap_or(4)).unwrap_or_else(|e| panic!("{place}: {e}"));
        assert_eq!(again, whole, "{place}");
        images += 1;
    }
    println!("{images} images");
}

/// The disk fails during the upgrade. The start fails, and the next one finds the old program or
/// the new one.
#[test]
fn a_disk_that_fails_leaves_the_old_or_the_new() {
    use std::io::ErrorKind;
    let new = people().with(vec![int("id"), text("name"), int("n"), text("note").nullable()]);
    let mut failed = 0;
    for nth in 1..60 {
        for kind in [ErrorKind::Other, ErrorKind::StorageFull] {
            let sim = SimEnv::new(nth);
            people().written(&sim, &two());
            sim.disk.fail_nth(None, nth, kind);
            let first = new.start(&sim, upgrading(&[]));
            failed += u64::from(first.is_err());
            drop(first);
            sim.disk.clear_faults();
            sim.disk.crash();
            let mill = new.start(&sim, upgrading(&[])).unwrap_or_else(|e| panic!("{nth}: {e}"));
            assert_eq!(rows(&mill, "t").len(), 2);
        }
    }
    assert!(failed > 10, "{failed}");
}
