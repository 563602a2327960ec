use tidemill_core::rules::Binary;
use tidemill_core::{Column, DataType, Value};

use super::*;

fn small() -> Builder {
    let mut b = Builder::new("t");
    b.table("kv", &["k"], vec![Column::new("k", DataType::Int), Column::new("v", DataType::Int)]);
    b.stream("s", vec![Column::new("k", DataType::Int), Column::new("x", DataType::Float)]);
    b
}

fn refused(build: impl FnOnce(&mut Builder)) -> String {
    let mut b = small();
    build(&mut b);
    b.finish().expect_err("the program should be refused").to_string()
}

#[test]
fn a_program_survives_json() {
    let mut b = small();
    let mut h = b.handler("h", StreamId(0));
    let k = h.column("k");
    let row = h.row(tidemill_core::TableId(0), &[k]);
    let v = h.read(row, "v");
    let one = h.int(1);
    let sum = h.add(v, one);
    h.set(row, "v", sum);
    h.output(&[("v", sum)]);
    h.done();
    let program = b.finish().unwrap();
    let json = serde_json::to_string(&program).unwrap();
    let back = Program::from_json(&json).unwrap();
    back.check().unwrap();
    assert_eq!(serde_json::to_string(&back).unwrap(), json);
}

#[test]
fn wrong_names_say_the_nearest() {
    let text = refused(|b| {
        let mut h = b.handler("h", StreamId(0));
        h.column("kk");
        h.done();
    });
    assert!(text.contains("has no column 'kk'") && text.contains("did you mean 'k'?"), "{text}");
}

#[test]
fn wrong_types_are_refused() {
    let text = refused(|b| {
        let mut h = b.handler("h", StreamId(0));
        let x = h.column("x");
        h.row(tidemill_core::TableId(0), &[x]);
        h.done();
    });
    assert!(
        text.contains("key column 'k' of table kv is int, but the key given is float"),
        "{text}"
    );
    let text = refused(|b| {
        let mut h = b.handler("h", StreamId(0));
        let (k, x) = (h.column("k"), h.column("x"));
        let row = h.row(tidemill_core::TableId(0), &[k]);
        h.set(row, "v", x);
        h.done();
    });
    assert!(text.contains("'v' is int, but the value given is float"), "{text}");
    let text = refused(|b| {
        let mut h = b.handler("h", StreamId(0));
        let k = h.column("k");
        let row = h.row(tidemill_core::TableId(0), &[k]);
        h.set(row, "k", k);
        h.done();
    });
    assert!(text.contains("part of the key"), "{text}");
    let text = refused(|b| {
        let mut h = b.handler("h", StreamId(0));
        let (k, x) = (h.column("k"), h.column("x"));
        let both = h.binary(Binary::And, k, x);
        h.require(both, "no");
        h.done();
    });
    assert!(text.contains("both must be bool"), "{text}");
}

#[test]
fn new_rows_need_their_columns() {
    let text = refused(|b| {
        let mut h = b.handler("h", StreamId(0));
        let k = h.column("k");
        let row = h.row(tidemill_core::TableId(0), &[k]);
        h.insert(row, &[]);
        h.done();
    });
    assert!(text.contains("needs a value for column 'v'"), "{text}");
}

#[test]
fn handlers_that_feed_each_other_are_refused() {
    let text = refused(|b| {
        let loop_stream = b.emitted("again", vec![Column::new("k", DataType::Int)]);
        for name in ["first", "second"] {
            let mut h = b.handler(name, if name == "first" { StreamId(0) } else { loop_stream });
            let k = h.column("k");
            h.emit(loop_stream, &[k]);
            h.done();
        }
    });
    assert!(text.contains("without end: second -> second"), "{text}");
}

#[test]
fn emitting_into_an_input_is_refused() {
    let text = refused(|b| {
        let mut h = b.handler("h", StreamId(0));
        let (k, x) = (h.column("k"), h.value(Value::Float(1.0)));
        h.emit(StreamId(0), &[k, x]);
        h.done();
    });
    assert!(text.contains("can't emit into it"), "{text}");
}

#[test]
fn a_footprint_says_what_is_touched() {
    use super::{Access, Aggregate, Footprint, Window};
    use tidemill_core::History;

    let mut b = Builder::new("app");
    let columns = || vec![Column::new("id", DataType::Int), Column::new("n", DataType::Int)];
    let table = b.table("t", &["id"], columns());
    b.history(table, History { time_us: Some(10), versions: None });
    b.ordered(table);
    let events = b.stream("e", columns());
    let mut h = b.handler("h", events);
    let id = h.column("id");
    let row = h.row(table, &[id]);
    let sum = h.window(row, "n", Window::Sliding { size_us: 10 }, Aggregate::Sum);
    let other = h.row(table, &[sum]);
    h.update(other, &[("n", id)]);
    h.range(table, (&[id], &[]), "n", Aggregate::Count);
    h.done();
    let program = b.finish().unwrap();
    let found = Footprint::of(&program, 0);
    let none = Access::default();
    assert_eq!(found.rows[0].access, Access { reads: true, reads_versions: true, ..none });
    assert_eq!(found.rows[1].access, Access { reads: true, writes: true, ..none });
    assert_eq!((found.rows[0].computed, found.rows[1].computed), (false, true));
    assert_eq!(found.ranges, [table]);
    assert_eq!((found.is_known(), found.touches(table)), (false, (true, true)));
    // An update creates no row, so readers of ranges need not mind.
    assert_eq!(found.tokens(&program, table), (true, false));
}

#[test]
fn windows_beyond_the_history_are_refused() {
    use super::{Aggregate, Window};
    use tidemill_core::History;

    let refusal = |history: Option<History>, window: Window, column: &str| {
        let mut b = Builder::new("app");
        let columns = vec![Column::new("id", DataType::Int), Column::new("s", DataType::Str)];
        let table = b.table("t", &["id"], columns);
        if let Some(history) = history {
            b.history(table, history);
        }
        let events = b.stream("e", vec![Column::new("id", DataType::Int)]);
        let mut h = b.handler("h", events);
        let id = h.column("id");
        let row = h.row(table, &[id]);
        h.window(row, column, window, Aggregate::Sum);
        h.done();
        b.finish().err().map(|e| e.what)
    };
    let kept = |time_us, versions| Some(History { time_us, versions });
    let sliding = |size_us| Window::Sliding { size_us };
    assert_eq!(refusal(kept(Some(10), None), sliding(10), "id"), None);
    for (history, window, column, what) in [
        (None, sliding(1), "id", "table t has no history over which windows could be read"),
        (kept(None, None), sliding(1), "id", "table t: its history retains nothing"),
        (kept(Some(0), None), sliding(1), "id", "table t: a history of 0 us retains nothing"),
        (
            kept(Some(10), None),
            sliding(11),
            "id",
            "the window needs 11 us of the history of table t, which retains 10 us",
        ),
        (
            kept(Some(10), None),
            Window::Hopping { size_us: 8, slide_us: 3 },
            "id",
            "the window needs 11 us of the history of table t, which retains 10 us",
        ),
        (
            kept(None, Some(3)),
            Window::Last { versions: 4 },
            "id",
            "the window needs 4 versions of the history of table t, which retains 3 versions of a row",
        ),
        (
            kept(Some(10), None),
            Window::Last { versions: 1 },
            "id",
            "the window needs 1 versions of the history of table t, which retains versions by time \
             only",
        ),
        (kept(Some(10), None), sliding(0), "id", "a window's size must be more than 0"),
        (kept(Some(10), None), sliding(1), "s", "column 's' of table t is str: it has no sum"),
    ] {
        assert_eq!(refusal(history, window, column).as_deref(), Some(what));
    }
}
