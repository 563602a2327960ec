//! Windows that belong to a handler, beside their definition: what is active is found anew among all rows
//! that have ever come.

use std::sync::Arc;

use proptest::prelude::*;
use tidemill_core::{Column, DataType, Late, StreamId, Value};
use tidemill_txn::program::{Abort, Builder, Extent, On, Opaque, Program, Tx, WindowId};
use tidemill_txn::reference::{self, CutAt, InputRow};

const WINDOW: WindowId = WindowId(0);

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(int) | Value::Timestamp(int) => *int,
        other => unreachable!("{other}"),
    }
}

/// Puts each event into the window, and says what is active then.
struct Owner(StreamId);

impl Opaque for Owner {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        tx.window_insert(WINDOW, &event[1..])?;
        for row in tx.window_rows(WINDOW)? {
            tx.emit(self.0, &[Value::Int(0), row[0].clone(), row[1].clone()])?;
        }
        for group in tx.window_groups(WINDOW, None)? {
            tx.emit(self.0, &group)?;
        }
        Ok(())
    }
}

/// Says that the window has slid.
struct Slid(StreamId);

impl Opaque for Slid {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        assert_eq!(int(&event[1]), tx.window_rows(WINDOW)?.len() as i64);
        tx.emit(self.0, event)
    }
}

/// A program whose one handler has a window of groups `k` with sums of `v`.
fn program(extent: Extent) -> (Program, [StreamId; 2]) {
    let mut b = Builder::new("windows");
    let ints = |names: &[&str]| names.iter().map(|name| Column::new(name, DataType::Int)).collect();
    let mut columns: Vec<Column> = vec![Column::new("at", DataType::Timestamp)];
    columns.extend::<Vec<Column>>(ints(&["k", "v"]));
    let input = b.stream("input", columns);
    b.event_time(input, "at", Late::Side);
    b.source("source", input, 0);
    let active = b.emitted("active", ints(&["n", "k", "v"]));
    let slides = b.emitted("slides", ints(&["end", "rows", "came"]));
    let owner = b.opaque("owner", input, Arc::new(Owner(active)));
    b.emits(owner, &[active]);
    b.window("window", owner, extent, ints(&["k", "v"]), Some("k"), &["v"]);
    b.trigger("slid", On::Slid(WINDOW), &[slides], Arc::new(Slid(slides)));
    (b.finish().unwrap(), [active, slides])
}

/// The rows that are active when the last of `rows` (time, k, v) has come.
fn active(extent: Extent, rows: &[(i64, i64, i64)]) -> &[(i64, i64, i64)] {
    match extent {
        Extent::Rows { size, slide } => {
            let (size, slide) = (size as usize, slide as usize);
            match rows.len().checked_sub(size) {
                None => &[],
                Some(more) => &rows[more / slide * slide..][..size],
            }
        }
        Extent::Time { size_us, slide_us } => {
            let now = rows.last().expect("one has come").0;
            let end = now.div_euclid(slide_us) * slide_us;
            let from = rows.partition_point(|row| row.0 < end - size_us);
            &rows[from..rows.partition_point(|row| row.0 < end)]
        }
    }
}

fn extents() -> impl Strategy<Value = Extent> {
    let by_count =
        (1..9u64, 1..9u64).prop_map(|(a, b)| Extent::Rows { size: a.max(b), slide: a.min(b) });
    let by_time = (1..20i64, 1..20i64)
        .prop_map(|(a, b)| Extent::Time { size_us: a.max(b), slide_us: a.min(b) });
    prop_oneof![by_count, by_time]
}

proptest! {
    #[test]
    fn what_is_active_is_what_the_definition_says(
        extent in extents(),
        events in prop::collection::vec((0..6i64, 0..3i64, -5..5i64), 0..60),
        from in -30..30i64,
    ) {
        let (program, [actives, slides]) = program(extent);
        let mut now = from;
        let mut rows: Vec<(i64, i64, i64)> = Vec::new();
        for (step, k, v) in events {
            // Now and then nothing comes for long.
            now += if step == 5 { 40 } else { step };
            rows.push((now, k, v));
        }
        let values = |(at, k, v): &(i64, i64, i64)| {
            vec![Value::Timestamp(*at), Value::Int(*k), Value::Int(*v)]
        };
        let input = rows.iter().enumerate();
        let input = input.map(|(n, row)| InputRow { offset: n as u64, values: values(row) });
        let cut = CutAt {
            offsets: vec![rows.len() as u64],
            clock_us: 0,
            idle: Vec::new(),
            ended: vec![tidemill_core::SourceId(0)],
        };
        let outcome = reference::run(&program, &[input.collect()], &[cut]);
        let mut wanted = Vec::new();
        for come in 1..=rows.len() {
            let active = active(extent, &rows[..come]);
            wanted.extend(active.iter().map(|(_, k, v)| [0, *k, *v]));
            for group in 0..3 {
                let own: Vec<i64> = active.iter().filter(|r| r.1 == group).map(|r| r.2).collect();
                if !own.is_empty() {
                    wanted.push([group, own.len() as i64, own.iter().sum()]);
                }
            }
        }
        let rows_of = |stream: StreamId| -> Vec<[i64; 3]> {
            let found = outcome.outputs.get(&stream).into_iter().flatten();
            found.map(|(_, row)| [int(&row[0]), int(&row[1]), int(&row[2])]).collect()
        };
        prop_assert_eq!(rows_of(actives), wanted);
        prop_assert_eq!(outcome.aborts, 0);
        let slid = rows_of(slides);
        match extent {
            Extent::Rows { size, slide } => {
                let slides = (rows.len() as u64 + slide).saturating_sub(size) / slide;
                prop_assert_eq!(slid.len() as u64, slides);
                prop_assert!(slid.iter().all(|s| s[0] == 0 && s[1] == size as i64));
            }
            Extent::Time { slide_us, .. } => {
                prop_assert!(slid.windows(2).all(|two| two[0][0] < two[1][0]));
                prop_assert!(slid.iter().all(|s| s[0] % slide_us == 0));
            }
        }
        // What the tables hold is bounded by the window.
        let held = outcome.tables[program.windows[0].rows.index()].len();
        if let Extent::Rows { size, slide } = extent {
            prop_assert!(held as u64 <= size + slide);
        }
    }
}

#[test]
fn at_the_end_of_time_windows_slide_no_further() {
    for (size_us, slide_us) in [(1, 1), (7, 3), (5, 5)] {
        let (program, _) = program(Extent::Time { size_us, slide_us });
        let times = [i64::MIN, i64::MIN, 0, i64::MAX - 8, i64::MAX - 1, i64::MAX, i64::MAX];
        let row = |(n, at): (usize, &i64)| InputRow {
            offset: n as u64,
            values: vec![Value::Timestamp(*at), Value::Int(0), Value::Int(1)],
        };
        let input: Vec<InputRow> = times.iter().enumerate().map(row).collect();
        let offsets = vec![times.len() as u64];
        let ended = vec![tidemill_core::SourceId(0)];
        let cut = CutAt { offsets, clock_us: 0, idle: Vec::new(), ended };
        let outcome = reference::run(&program, &[input], &[cut]);
        assert_eq!(outcome.aborts, 0);
    }
}

#[test]
fn others_can_not_see_it_and_triggers_can_not_fill_it() {
    struct Looks(bool);
    impl Opaque for Looks {
        fn call(&self, _: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
            match self.0 {
                true => tx.window_insert(WINDOW, &[Value::Int(1), Value::Int(1)]),
                false => tx.window_rows(WINDOW).map(|_| ()),
            }
        }
    }
    let ints = |names: &[&str]| names.iter().map(|name| Column::new(name, DataType::Int)).collect();
    let mut b = Builder::new("windows");
    let input = b.stream("input", ints(&["n", "k", "v"]));
    b.source("source", input, 0);
    let active = b.emitted("active", ints(&["n", "k", "v"]));
    let owner = b.opaque("owner", input, Arc::new(Owner(active)));
    let other = b.opaque("other", input, Arc::new(Looks(false)));
    let extent = Extent::Rows { size: 1, slide: 1 };
    b.window("window", owner, extent, ints(&["k", "v"]), None, &[]);
    b.trigger("again", On::Slid(WINDOW), &[], Arc::new(Looks(true)));
    let aborted = [owner, other].map(|handler| b.aborted(handler));
    let program = b.finish().unwrap();
    let row = InputRow { offset: 0, values: vec![Value::Int(0); 3] };
    let cut = CutAt { offsets: vec![1], clock_us: 0, idle: vec![], ended: vec![] };
    let outcome = reference::run(&program, &[vec![row]], &[cut]);
    let reason = |stream| outcome.outputs[&stream][0].1.last().unwrap().to_string();
    assert!(
        reason(aborted[0]).contains("its triggers can't put rows into it"),
        "{}",
        reason(aborted[0])
    );
    assert!(
        reason(aborted[1]).contains("window window belongs to owner"),
        "{}",
        reason(aborted[1])
    );
}
