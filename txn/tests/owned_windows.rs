//! Windows that belong to a handler, compared with their definition. The test finds the active rows
//! again among all rows so far.

use std::sync::Arc;

use proptest::prelude::*;
use tidemill_core::{encode, rules, Column, DataType, Late, StreamId, TableId, Value};
use tidemill_reference::{CutAt, InputRow};
use tidemill_txn::program::Aggregate::{self, First, Max, Min};
use tidemill_txn::program::{
    Abort, Builder, Extent, On, Opaque, OwnedWindow, Program, Tx, WindowId,
};

const WINDOW: WindowId = WindowId(0);

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(int) | Value::Timestamp(int) => *int,
        other => unreachable!("{other}"),
    }
}

/// Puts each event into the window. Then it emits the active rows and the aggregates of their
/// groups: of all existing groups, and of each possible one.
struct Owner([StreamId; 3]);

impl Opaque for Owner {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        tx.window_insert(WINDOW, &event[1..])?;
        for row in tx.window_rows(WINDOW)? {
            tx.emit(self.0[0], &row)?;
        }
        for group in tx.window_groups(WINDOW, None)? {
            tx.emit(self.0[1], &group)?;
        }
        for group in 0..GROUPS {
            for group in tx.window_groups(WINDOW, Some(&Value::Int(group)))? {
                tx.emit(self.0[2], &group)?;
            }
        }
        Ok(())
    }
}

/// Reports that the window has slid.
struct Slid(StreamId);

impl Opaque for Slid {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        assert_eq!(int(&event[1]), tx.window_rows(WINDOW)?.len() as i64);
        tx.emit(self.0, event)
    }
}

/// The number of groups, whose keys are below it.
const GROUPS: i64 = 3;

/// Returns the aggregates of each group: of ints, decimals and floats, some of which are nullable.
fn along() -> Vec<(String, Aggregate, &'static str)> {
    use Aggregate::{Avg, Count, First, Last, Max, Min, Sum};
    let all = [Count, Sum, Avg, Min, Max, First, Last];
    let mut made = Vec::new();
    for column in ["v", "o", "d", "f"] {
        for of in all.iter().filter(|of| column != "f" || !matches!(of, Sum | Avg)) {
            made.push((format!("{column} {of:?}"), of.clone(), column));
        }
    }
    made
}

/// Returns the columns of a window's rows.
fn columns() -> Vec<Column> {
    let mut columns = vec![Column::new("k", DataType::Int), Column::new("v", DataType::Int)];
    let nullable = [("o", DataType::Int), ("d", DataType::Decimal(2)), ("f", DataType::Float)];
    columns.extend(nullable.map(|(name, ty)| {
        let mut column = Column::new(name, ty);
        column.nullable = true;
        column
    }));
    columns
}

/// Makes a program whose one handler has a window, with all possible aggregates.
fn program(extent: Extent, group: Option<&str>) -> (Program, [StreamId; 4]) {
    let mut b = Builder::new("windows");
    let ints = |names: &[&str]| names.iter().map(|name| Column::new(name, DataType::Int)).collect();
    let input =
        b.stream("input", [vec![Column::new("at", DataType::Timestamp)], columns()].concat());
    b.event_time(input, "at", Late::Side);
    b.source("source", input, 0);
    let active = b.emitted("active", columns());
    let mut shown: Vec<Column> = ints(&["group", "rows"]);
    for (name, of, column) in along() {
        let column = columns().into_iter().find(|c| *c.name == *column).unwrap();
        let ty = match of {
            Aggregate::Count => DataType::Int,
            Aggregate::Avg if column.ty == DataType::Int => DataType::Float,
            _ => column.ty,
        };
        shown.push(Column { nullable: true, ..Column::new(&name, ty) });
    }
    let [groups, each] = ["groups", "each"].map(|name| b.emitted(name, shown.clone()));
    let slides = b.emitted("slides", ints(&["end", "rows", "came"]));
    let owner = b.opaque("owner", input, Arc::new(Owner([active, groups, each])));
    b.emits(owner, &[active, groups, each]);
    let along = along();
    let made: Vec<(&str, Aggregate, &str)> =
        along.iter().map(|(name, of, column)| (&**name, of.clone(), *column)).collect();
    b.window("window", owner, extent, columns(), group, &made);
    b.trigger("slid", On::Slid(WINDOW), &[slides], Arc::new(Slid(slides)));
    (b.finish().unwrap(), [active, groups, each, slides])
}

/// Returns the aggregates of these rows, by the rules of values.
fn straight(group: i64, rows: &[&Given]) -> Vec<Value> {
    let mut shown = vec![Value::Int(group), Value::Int(rows.len() as i64)];
    for (_, of, column) in along() {
        let at = columns().iter().position(|c| *c.name == *column).unwrap();
        let all: Vec<Value> = rows.iter().map(|row| row.values()[1 + at].clone()).collect();
        let there: Vec<&Value> = all.iter().filter(|value| !value.is_null()).collect();
        let order = |value: &&&Value| {
            let mut bytes = Vec::new();
            encode::value(value, &mut bytes);
            bytes
        };
        let exact = there.iter().map(|v| v.word().map_or(0, |word| i128::from(word as i64))).sum();
        let ty = &columns()[at].ty;
        let or_null = |value: Option<&Value>| value.cloned().unwrap_or(Value::Null);
        shown.push(match of {
            Aggregate::Count => Value::Int(there.len() as i64),
            Aggregate::Sum => rules::sum_of(exact, ty).unwrap(),
            Aggregate::Avg if there.is_empty() => Value::Null,
            Aggregate::Avg => rules::mean_of(exact, there.len() as u64, ty),
            Aggregate::Min => or_null(there.iter().min_by_key(order).copied()),
            Aggregate::Max => or_null(there.iter().max_by_key(order).copied()),
            Aggregate::First => or_null(all.first()),
            Aggregate::Last => or_null(all.last()),
            Aggregate::Fold(_) => unreachable!("none is asked for"),
        });
    }
    shown
}

/// An input row: its time, its group, and its values.
#[derive(Clone, Debug)]
struct Given {
    at: i64,
    k: i64,
    v: i64,
    o: Option<i64>,
    d: Option<i64>,
    f: Option<f64>,
}

impl Given {
    fn values(&self) -> Vec<Value> {
        vec![
            Value::Timestamp(self.at),
            Value::Int(self.k),
            Value::Int(self.v),
            self.o.map_or(Value::Null, Value::Int),
            self.d.map_or(Value::Null, |units| Value::Decimal(units, 2)),
            self.f.map_or(Value::Null, Value::Float),
        ]
    }
}

/// Returns the active rows after the last of `rows`.
fn active(extent: Extent, rows: &[Given]) -> &[Given] {
    match extent {
        Extent::Rows { size, slide } => {
            let (size, slide) = (size as usize, slide as usize);
            match rows.len().checked_sub(size) {
                None => &[],
                Some(more) => &rows[more / slide * slide..][..size],
            }
        }
        Extent::Time { size_us, slide_us } => {
            let now = rows.last().expect("one has come").at;
            let end = now.div_euclid(slide_us) * slide_us;
            let from = rows.partition_point(|row| row.at < end - size_us);
            &rows[from..rows.partition_point(|row| row.at < end)]
        }
    }
}

/// Returns the ends of windows that hold rows, or held rows one slide before. Each has the number
/// of rows, and the number of new ones.
fn ends(rows: &[Given], size_us: i64, slide_us: i64) -> Vec<Vec<i64>> {
    let mut slides = Vec::new();
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return slides };
    let count =
        |from: i64, to: i64| rows.iter().filter(|r| from <= r.at && r.at < to).count() as i64;
    let mut end = first.at.div_euclid(slide_us) * slide_us + slide_us;
    // After the end of the input, no window is empty.
    while end <= last.at || count(end - size_us, end) > 0 {
        let (held, before) =
            (count(end - size_us, end), count(end - slide_us - size_us, end - slide_us));
        if held > 0 || before > 0 {
            slides.push(vec![end, held, count(end - slide_us, end)]);
        }
        end += slide_us;
    }
    slides
}

fn extents() -> impl Strategy<Value = Extent> {
    let by_count =
        (1..9u64, 1..9u64).prop_map(|(a, b)| Extent::Rows { size: a.max(b), slide: a.min(b) });
    let by_time = (1..20i64, 1..20i64)
        .prop_map(|(a, b)| Extent::Time { size_us: a.max(b), slide_us: a.min(b) });
    prop_oneof![by_count, by_time]
}

/// Generates input rows, all but their times.
fn givens() -> impl Strategy<Value = Given> {
    let large = prop_oneof![4 => -5..5i64, 1 => Just(i64::MAX / 100), 1 => Just(i64::MIN / 100)];
    let float = prop_oneof![
        4 => (-4..4i64).prop_map(|n| n as f64 / 2.0),
        1 => Just(f64::NAN),
        1 => Just(-0.0),
        1 => Just(f64::NEG_INFINITY),
    ];
    let some = prop::option::weighted(0.7, -5..5i64);
    let decimal = prop::option::weighted(0.7, -500..500i64);
    (0..GROUPS, large, some, decimal, prop::option::weighted(0.7, float))
        .prop_map(|(k, v, o, d, f)| Given { at: 0, k, v, o, d, f })
}

proptest! {
    #[test]
    fn what_is_active_is_what_the_definition_says(
        extent in extents(),
        group in prop::option::of(Just("k")),
        events in prop::collection::vec((0..6i64, givens()), 0..60),
        from in -30..30i64,
    ) {
        let (program, [actives, groups, each, slides]) = program(extent, group);
        let mut now = from;
        let mut rows: Vec<Given> = Vec::new();
        for (step, given) in events {
            // Sometimes no row arrives for a long time.
            now += if step == 5 { 40 } else { step };
            rows.push(Given { at: now, ..given });
        }
        let input = rows.iter().enumerate();
        let input = input.map(|(n, row)| InputRow { offset: n as u64, values: row.values() });
        let cut = CutAt {
            offsets: vec![rows.len() as u64],
            clock_us: 0,
            idle: Vec::new(),
            ended: vec![tidemill_core::SourceId(0)], ..Default::default() };
        let outcome = tidemill_reference::run(&program, &[input.collect()], &[cut]);
        let (mut wanted, mut wanted_groups, mut wanted_each) = (vec![], vec![], vec![]);
        for come in 1..=rows.len() {
            let active = active(extent, &rows[..come]);
            wanted.extend(active.iter().map(|row| row.values()[1..].to_vec()));
            for k in 0..GROUPS {
                // Without a group column all rows are one group, whichever is requested.
                let own: Vec<&Given> =
                    active.iter().filter(|row| group.is_none() || row.k == k).collect();
                let shown = straight(if group.is_none() { 0 } else { k }, &own);
                if !own.is_empty() && (group.is_some() || k == 0) {
                    wanted_groups.push(shown.clone());
                }
                wanted_each.push(shown);
            }
        }
        let bits = |rows: Vec<Vec<Value>>| -> Vec<Vec<u8>> {
            let encoded = |row: Vec<Value>| {
                let mut bytes = Vec::new();
                row.iter().for_each(|value| encode::value(value, &mut bytes));
                bytes
            };
            rows.into_iter().map(encoded).collect()
        };
        let rows_of = |stream: StreamId| -> Vec<Vec<Value>> {
            let found = outcome.outputs.get(&stream).into_iter().flatten();
            found.map(|(_, row)| row.to_vec()).collect()
        };
        prop_assert_eq!(outcome.aborts, 0);
        prop_assert_eq!(bits(rows_of(actives)), bits(wanted));
        prop_assert_eq!(bits(rows_of(groups)), bits(wanted_groups));
        prop_assert_eq!(bits(rows_of(each)), bits(wanted_each));
        let slid: Vec<Vec<i64>> =
            rows_of(slides).iter().map(|row| row.iter().map(int).collect()).collect();
        match extent {
            Extent::Rows { size, slide } => {
                let slides = (rows.len() as u64 + slide).saturating_sub(size) / slide;
                prop_assert_eq!(slid.len() as u64, slides);
                prop_assert!(slid.iter().all(|s| s[0] == 0 && s[1] == size as i64));
            }
            Extent::Time { size_us, slide_us } => {
                prop_assert_eq!(&slid, &ends(&rows, size_us, slide_us));
            }
        }
        // The window bounds the size of its tables.
        let held = |table: TableId| outcome.tables[table.index()].len();
        let window = &program.windows[0];
        if let Extent::Rows { size, slide } = extent {
            prop_assert!(held(window.rows) as u64 <= size + slide);
        }
        let queues = along().iter().filter(|(_, of, _)| matches!(of, Min | Max | First)).count();
        // The input has ended, and with it all windows that had rows.
        let now = match extent {
            Extent::Rows { .. } if !rows.is_empty() => active(extent, &rows).len(),
            Extent::Time { .. } if !slid.is_empty() => slid[slid.len() - 1][1] as usize,
            _ => 0,
        };
        prop_assert!(held(window.queues) <= queues * now);
        prop_assert!(held(window.groups) <= now.min(GROUPS as usize));
    }
}

#[test]
fn at_the_end_of_time_windows_slide_no_further() {
    for (size_us, slide_us) in [(1, 1), (7, 3), (5, 5)] {
        let (program, _) = program(Extent::Time { size_us, slide_us }, Some("k"));
        let times = [i64::MIN, i64::MIN, 0, i64::MAX - 8, i64::MAX - 1, i64::MAX, i64::MAX];
        let row = |(n, at): (usize, &i64)| InputRow {
            offset: n as u64,
            values: Given { at: *at, k: 0, v: 1, o: None, d: None, f: None }.values(),
        };
        let input: Vec<InputRow> = times.iter().enumerate().map(row).collect();
        let offsets = vec![times.len() as u64];
        let ended = vec![tidemill_core::SourceId(0)];
        let cut = CutAt { offsets, clock_us: 0, idle: Vec::new(), ended, ..Default::default() };
        let outcome = tidemill_reference::run(&program, &[input], &[cut]);
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
    struct Fills;
    impl Opaque for Fills {
        fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
            tx.window_insert(WINDOW, &event[1..])
        }
    }
    let mut b = Builder::new("windows");
    let input = b.stream("input", ints(&["n", "k", "v"]));
    b.source("source", input, 0);
    let owner = b.opaque("owner", input, Arc::new(Fills));
    let other = b.opaque("other", input, Arc::new(Looks(false)));
    let extent = Extent::Rows { size: 1, slide: 1 };
    b.window("window", owner, extent, ints(&["k", "v"]), None, &[]);
    b.trigger("again", On::Slid(WINDOW), &[], Arc::new(Looks(true)));
    let aborted = [owner, other].map(|handler| b.aborted(handler));
    let program = b.finish().unwrap();
    let row = InputRow { offset: 0, values: vec![Value::Int(0); 3] };
    let cut =
        CutAt { offsets: vec![1], clock_us: 0, idle: vec![], ended: vec![], ..Default::default() };
    let outcome = tidemill_reference::run(&program, &[vec![row]], &[cut]);
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

#[test]
fn only_a_sum_that_is_read_may_be_out_of_range() {
    struct Sums(StreamId);
    impl Opaque for Sums {
        fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
            if int(&event[0]) == 0 {
                return tx.window_insert(WINDOW, &event[1..]);
            }
            let groups = tx.window_groups(WINDOW, Some(&Value::Int(0)))?;
            tx.emit(self.0, &groups[0][2..])
        }
    }
    let ints = |names: &[&str]| names.iter().map(|name| Column::new(name, DataType::Int)).collect();
    let mut b = Builder::new("windows");
    let input = b.stream("input", ints(&["look", "v"]));
    b.source("source", input, 0);
    let sums = b.emitted("sums", ints(&["sum"]));
    let owner = b.opaque("owner", input, Arc::new(Sums(sums)));
    b.emits(owner, &[sums]);
    let extent = Extent::Rows { size: 2, slide: 1 };
    b.window("window", owner, extent, ints(&["v"]), None, &[("sum", Aggregate::Sum, "v")]);
    let aborted = b.aborted(owner);
    let program = b.finish().unwrap();
    let given = [(0, i64::MAX), (0, i64::MAX), (1, 0), (0, -7), (1, 0), (0, i64::MIN), (1, 0)];
    let row = |(n, (look, v)): (usize, &(i64, i64))| InputRow {
        offset: n as u64,
        values: vec![Value::Int(*look), Value::Int(*v)],
    };
    let input: Vec<InputRow> = given.iter().enumerate().map(row).collect();
    let cut =
        CutAt { offsets: vec![7], clock_us: 0, idle: vec![], ended: vec![], ..Default::default() };
    let outcome = tidemill_reference::run(&program, &[input], &[cut]);
    let sums: Vec<i64> = outcome.outputs[&sums].iter().map(|(_, row)| int(&row[0])).collect();
    assert_eq!(sums, [i64::MAX - 7]);
    let reasons = outcome.outputs[&aborted].iter();
    let reasons: Vec<String> = reasons.map(|(_, row)| row.last().unwrap().to_string()).collect();
    assert!(reasons.iter().all(|reason| reason.contains("overflow")), "{reasons:?}");
    assert_eq!(reasons.len(), 2);
}

#[test]
fn what_can_not_go_along_is_refused() {
    let refused = |made: &[(&str, Aggregate, &str)]| {
        let mut b = Builder::new("windows");
        let input = b.stream("input", columns());
        b.source("source", input, 0);
        let owner = b.opaque("owner", input, Arc::new(Slid(input)));
        let mut columns = columns();
        columns.push(Column::new("s", DataType::Str));
        columns.push(Column::new("any", DataType::Any));
        let extent = Extent::Rows { size: 2, slide: 1 };
        b.window("w", owner, extent, columns, Some("k"), made);
        b.finish().unwrap_err().to_string()
    };
    for (made, what) in [
        (&[("a", Aggregate::Sum, "f")][..], "column 'f' is float, whose sums are not exact"),
        (&[("a", Aggregate::Avg, "f")], "column 'f' is float, whose sums are not exact"),
        (&[("a", Aggregate::Sum, "s")], "column 's' of window w is str: it has no sum"),
        (&[("a", Aggregate::Avg, "s")], "column 's' of window w is str: it has no mean"),
        (&[("a", Min, "any")], "column 'any' of window w is any: it has no order"),
        (&[("rows", Min, "v")], "the name 'rows' is taken"),
        (&[("k", Min, "v")], "two columns named 'k'"),
        (&[("a", Min, "v"), ("a", Max, "v")], "two columns named 'a'"),
    ] {
        let said = refused(made);
        assert!(said.contains(what), "{said}");
    }
}

#[test]
fn windows_that_were_written_before_there_were_aggregates_are_read() {
    let (program, _) = program(Extent::Rows { size: 3, slide: 2 }, Some("k"));
    let mut written = serde_json::to_value(&program).unwrap();
    let window = written["windows"][0].as_object_mut().unwrap();
    assert!(window.remove("aggregates").is_some() && window.remove("queues").is_some());
    window.insert("sums".into(), vec![1].into());
    let read: Program = serde_json::from_value(written).unwrap();
    assert_eq!(read.windows[0].queues, OwnedWindow::NO_QUEUES);
    // Old programs are read for comparison with new ones, not to be run.
    assert!(read.check().is_err());
}

/// A trigger's abort undoes its writes, but the window has slid all the same, with its new rows.
#[test]
fn a_slide_whose_trigger_aborts_is_one_without_it() {
    struct Fills;
    impl Opaque for Fills {
        fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
            tx.window_insert(WINDOW, &event[1..])
        }
    }
    struct Refuses(StreamId);
    impl Opaque for Refuses {
        fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
            tx.emit(self.0, event)?;
            match int(&event[0]) {
                20 => Err(Abort::refused("twenty")),
                _ => Ok(()),
            }
        }
    }
    let ints = |names: &[&str]| names.iter().map(|name| Column::new(name, DataType::Int)).collect();
    let mut b = Builder::new("windows");
    let input = b.stream("input", ints(&["at", "v"]));
    b.event_time(input, "at", Late::Side);
    b.source("source", input, 0);
    let owner = b.opaque("owner", input, Arc::new(Fills));
    let slides = b.emitted("slides", ints(&["end", "rows", "came"]));
    let extent = Extent::Time { size_us: 10, slide_us: 10 };
    b.window("window", owner, extent, ints(&["v"]), None, &[]);
    b.trigger("slid", On::Slid(WINDOW), &[slides], Arc::new(Refuses(slides)));
    let program = b.finish().unwrap();
    let row = |(n, at): (usize, &i64)| InputRow {
        offset: n as u64,
        values: vec![Value::Int(*at), Value::Int(1)],
    };
    let input: Vec<InputRow> = [1, 11, 21, 29].iter().enumerate().map(row).collect();
    let ended = vec![tidemill_core::SourceId(0)];
    let cut =
        CutAt { offsets: vec![4], clock_us: 0, idle: Vec::new(), ended, ..Default::default() };
    let outcome = tidemill_reference::run(&program, &[input], &[cut]);
    let ends: Vec<i64> = outcome.outputs[&slides].iter().map(|(_, row)| int(&row[0])).collect();
    assert_eq!((ends, outcome.aborts), (vec![10, 30], 1));
    // Rows that have left the window are gone, and its own rows are there.
    assert_eq!(outcome.tables[program.windows[0].rows.index()].len(), 2);
}
