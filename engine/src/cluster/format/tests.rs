use proptest::prelude::*;
use serde_json::json;
use tidemill_core::{Column, DataType, StreamId};
use tidemill_function::Tid;
use tidemill_txn::program::Builder;

use super::*;
use crate::functions::Nobody;
use crate::settings::Settings;
use crate::spec::AppSpec;

fn format() -> Json {
    let mut b = Builder::new("bank");
    let int = |name: &str| Column::new(name, DataType::Int);
    b.table("account", &["id"], vec![int("id"), int("balance")]);
    let opened = b.stream("opened", vec![int("id")]);
    let mut h = b.handler("open", opened);
    let id = h.column("id");
    h.output(&[("id", id)]);
    h.done();
    let spec = AppSpec::new(b.finish().unwrap(), Vec::new(), Settings::default());
    Json::new(AppFunctions::new(&spec, Arc::new(Nobody)).unwrap(), 7)
}

fn message<'a>(value: &'a [u8], headers: &[(&'a str, &'a [u8])]) -> Message<'a> {
    Message {
        key: Some(b"the key"),
        value: Some(value),
        headers: headers.to_vec(),
        timestamp_ms: None,
        partition: 0,
        offset: 0,
    }
}

/// Returns the id of each request, and why it is refused, if it is.
fn taken(record: Record) -> Vec<(String, Option<String>)> {
    let Record::Requests(requests) = record else { panic!("{record:?} is no request") };
    let refused = format().functions.unreadable("").target;
    let of = |Request { id, call }: Request| {
        let why = (call.target == refused).then(|| match &call.args[0] {
            Value::Str(why) => why.to_string(),
            other => panic!("{other} is no reason"),
        });
        (String::from_utf8_lossy(&id).into_owned(), why)
    };
    requests.into_iter().map(of).collect()
}

fn of(value: &str, headers: &[(&str, &[u8])]) -> Vec<(String, Option<String>)> {
    taken(format().requests(&message(value.as_bytes(), headers)))
}

#[test]
fn a_message_is_a_request_or_a_list_of_them() {
    let one = r#"{"event": "opened", "row": {"id": 1}}"#;
    assert_eq!(of(one, &[("request-id", b"a")]), [("a".into(), None)]);
    assert_eq!(of(one, &[]), [("the key".into(), None)]);
    let named = r#"{"request-id": "x", "event": "opened", "row": {"id": 1}}"#;
    assert_eq!(of(named, &[("request-id", b"a")]), [("x".into(), None)]);
    // A request in a list has only the id of its own field.
    let list = format!(" [{named}, {one}]");
    assert_eq!(of(&list, &[("request-id", b"a")]), [("x".into(), None), (String::new(), None)]);
}

#[test]
fn events_without_ids_are_taken_by_column() {
    let event = |id: i64| format!(r#"{{"event": "opened", "row": {{"id": {id}}}}}"#);
    let json = |list: &[String]| format!("[{}]", list.join(","));
    let list = json(&[event(1), event(2), event(3)]);
    let record = format().requests(&message(list.as_bytes(), &[("request-id", b"a")]));
    let Record::Events(events) = record else { panic!("{record:?} is not by column") };
    assert_eq!((events.stream, events.is_run, &events.from), (StreamId(0), false, &None));
    let ids: Vec<Value> = events.batch.rows().map(|row| row[0].clone()).collect();
    assert_eq!(ids, [Value::Int(1), Value::Int(2), Value::Int(3)]);
    // All others are requests, each with its own verdict.
    let named = r#"{"request-id": "x", "event": "opened", "row": {"id": 2}}"#.to_owned();
    let unreadable = r#"{"event": "opened", "row": {"id": "one"}}"#.to_owned();
    let unknown = r#"{"event": "closed", "row": {}}"#.to_owned();
    for (other, is_refused) in [(named, false), (unreadable, true), (unknown, true)] {
        for list in [json(&[event(1), other.clone()]), json(&[other.clone(), event(1)])] {
            let refused = of(&list, &[]).into_iter().map(|(_, why)| why.is_some());
            assert_eq!(refused.filter(|refused| *refused).count(), usize::from(is_refused));
        }
    }
}

#[test]
fn of_a_list_only_what_cannot_be_read_is_refused() {
    let list = r#"[{"request-id": "1", "event": "opened", "row": {"id": 1}},
        {"request-id": "2", "event": "opened", "row": {"id": "one"}},
        {"request-id": "3", "event": "closed", "row": {}},
        {"request-id": "4", "evnt": "opened"},
        5,
        {"request-id": "6", "event": "opened", "row": {"id": 6}}]"#;
    let found = of(list, &[]);
    let ids: Vec<&str> = found.iter().map(|(id, _)| &**id).collect();
    assert_eq!(ids, ["1", "2", "3", "4", "", "6"]);
    let refused: Vec<bool> = found.iter().map(|(_, why)| why.is_some()).collect();
    assert_eq!(refused, [false, true, true, true, true, false]);
    assert!(found[1].1.as_ref().unwrap().contains("column 'id'"), "{found:?}");
    // The reason names the place of a request without an id.
    assert!(found[4].1.as_ref().unwrap().contains("element 4 of the list"), "{found:?}");
    assert!(!found[3].1.as_ref().unwrap().contains("element"), "{found:?}");
}

#[test]
fn what_would_come_back_too_large_is_cut() {
    let long = "x".repeat(ID_BYTES_MAX + 1);
    let one = r#"{"event": "opened", "row": {"id": 1}}"#;
    let named = format!(r#"{{"request-id": "{long}", "event": "opened", "row": {{"id": 1}}}}"#);
    for found in [of(one, &[("request-id", long.as_bytes())]), of(&named, &[])] {
        let [(id, Some(why))] = &found[..] else { panic!("{found:?}") };
        assert!(
            id.len() == ID_BYTES_MAX && why.contains("has 257 bytes, and may have 256"),
            "{why}"
        );
    }
    assert_eq!(of(one, &[("request-id", &long.as_bytes()[1..])])[0].1, None);
    // The reason is always short.
    let wrong = [
        format!(r#"{{"call": "{long}", "args": {{}}}}"#),
        format!(r#"{{"{long}": 1}}"#),
        format!(r#"{{"event": "opened", "row": {{"{long}": 1}}}}"#),
    ];
    for value in wrong.map(|value| value.replace(&long, &"ä".repeat(100_000))) {
        let found = of(&value, &[]);
        assert!(found[0].1.as_ref().unwrap().len() < 1100, "{found:?}");
    }
}

#[test]
fn own_records_hold_as_many_as_lists() {
    let format = format();
    let call = format.functions.only_event("opened", &[Value::Int(1)]).unwrap();
    for (count, is_refused) in [(0, true), (1, false), (1000, false), (1001, true)] {
        let request = Request { id: (*b"a").into(), call: call.clone() };
        let Outgoing { value, headers, .. } =
            format.encode(&Record::Requests(vec![request; count]));
        let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let found = taken(format.requests(&message(&value, &headers)));
        assert_eq!(found.len(), if is_refused { 1 } else { count });
        assert_eq!(found[0].1.is_some(), is_refused, "{:?}", found[0]);
    }
}

#[test]
fn what_is_no_list_is_one_request_that_is_refused() {
    let many = format!("[{}]", vec!["{}"; TOGETHER_MAX + 1].join(","));
    for value in ["[", "[]", "[1,]", "", "{", "null", &many] {
        let found = of(value, &[("request-id", b"a")]);
        assert_eq!(found.len(), 1, "{value}");
        assert_eq!(found[0].0, "a");
        assert!(found[0].1.is_some(), "{value}");
    }
    let none = Message { value: None, ..message(b"", &[("request-id", b"a")]) };
    assert!(taken(format().requests(&none))[0].1.as_ref().unwrap().contains("no value"));
}

fn outputs() -> Vec<Output> {
    let reply = |tid, id: &[u8], outcome| Output::Reply { tid: Tid(tid), id: id.into(), outcome };
    let abort = Abort::refused("no \"rooms\"");
    let fault = Abort::failed("KeyError: 7", Some("app.py:3"));
    let row: tidemill_core::Row = vec![Value::Int(7)].into();
    vec![
        reply(4, b"a", Ok(Value::Decimal(150, 2))),
        reply(12, &[0xff, 1], Err(abort)),
        reply(20, b"b", Err(fault)),
        Output::Event { tid: Tid(4), path: [0, 2].into_iter().collect(), stream: StreamId(0), row },
    ]
}

#[test]
fn outputs_together_say_what_they_say_alone() {
    let format = format();
    let together = format.encode(&Record::Outputs(outputs()));
    let said: serde_json::Value = serde_json::from_slice(&together.value).unwrap();
    let wanted = json!([
        {"id": "4/", "request-id": "a", "reply": "1.50"},
        {"id": "12/", "request-id-hex": "ff01", "aborted": "no \"rooms\""},
        {"id": "20/", "request-id": "b", "aborted": "fault: KeyError: 7"},
        {"id": "4/0.2", "stream": "opened", "row": {"id": 7}},
    ]);
    assert_eq!(said, wanted);
    for output in outputs() {
        let alone = format.encode(&Record::Outputs(vec![output.clone()]));
        let header = |name: &str| alone.headers.iter().find(|(of, _)| of == name).map(|(_, v)| v);
        assert_eq!(header(ID).unwrap(), place(&output).as_bytes());
        let said: serde_json::Value = serde_json::from_slice(&alone.value).unwrap();
        match &output {
            Output::Reply { id, .. } => assert_eq!(header(REQUEST_ID).unwrap(), &**id),
            Output::Event { .. } => {
                assert_eq!(header(STREAM).unwrap(), b"opened");
                assert_eq!(said, json!({"id": 7}));
            }
        }
    }
}

#[test]
fn own_records_come_back() {
    let format = format();
    let call = format.functions.only_event("opened", &[Value::Int(1)]).unwrap();
    let request = Request { id: (*b"a").into(), call };
    let come_back = |record: &Record, take: &dyn Fn(&Message<'_>) -> Option<Record>| {
        let Outgoing { key, value, headers } = format.encode(record);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let message = Message { key: key.as_deref(), ..message(&value, &headers) };
        assert_eq!(take(&message).as_ref(), Some(record));
    };
    come_back(&Record::Requests(vec![request.clone(), request]), &|m| Some(format.requests(m)));
    come_back(&Record::Outputs(outputs()), &|m| format.decode(m));
    let answer = Record::Answer { tid: Tid(4), asked: 7, answer: (*b"+").into() };
    assert!(format.encode(&answer).value.is_empty());
    come_back(&answer, &|m| format.decode(m));
    come_back(&Record::Outputs(outputs()[..1].to_vec()), &|m| format.decode(m));
}

#[test]
fn requests_for_another_version_are_refused() {
    let functions = format().functions;
    let call = functions.only_event("opened", &[Value::Int(1)]).unwrap();
    let record = Record::Requests(vec![Request { id: (*b"a").into(), call }; 2]);
    let Outgoing { value, headers, .. } = Json::new(functions, 8).encode(&record);
    let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    let found = taken(format().requests(&message(&value, &headers)));
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|(id, why)| id == "a" && why.as_ref().unwrap().contains("version")));
    // A request without a version is accepted.
    let found = format().requests(&message(&value, &headers[..1]));
    assert_eq!(taken(found), [("a".into(), None), ("a".into(), None)]);
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        any::<f64>().prop_map(Value::Float),
        any::<i64>().prop_map(Value::Timestamp),
        (any::<i64>(), 0u8..18).prop_map(|(units, scale)| Value::Decimal(units, scale)),
        ".{0,40}".prop_map(|text| Value::str(&text)),
        prop::collection::vec(0u8..0x30, 0..20)
            .prop_map(|bytes| Value::str(&String::from_utf8(bytes).unwrap())),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(|bytes| Value::Bytes(bytes.into())),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(|bytes| Value::Any(bytes.into())),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop::collection::vec(inner, 0..4).prop_map(|items| Value::List(items.into()))
    })
}

proptest! {
    /// The estimate bounds the exact size, and the exact size bounds the message.
    #[test]
    fn a_message_is_no_larger_than_what_is_counted(value in value()) {
        use tidemill_function::{output_bytes, Functions as _};
        let format = format();
        let one = std::slice::from_ref(&value);
        let counted = format.functions.output_bytes(one);
        prop_assert!(counted <= output_bytes(one), "{counted} of {value:?}");
        let reply = Output::Reply { tid: Tid(4), id: (*b"a").into(), outcome: Ok(value.clone()) };
        let Outgoing { value, headers, .. } = format.encode(&Record::Outputs(vec![reply]));
        let bytes = value.len() + headers.iter().map(|(_, value)| value.len()).sum::<usize>();
        prop_assert!(bytes <= counted + 200, "{bytes}, not {counted}");
    }

    /// Any message gives at least one request.
    #[test]
    fn bytes_of_any_kind_are_requests(
        noise in prop::collection::vec(any::<u8>(), 0..40),
        cut in 0usize..90,
        flips in prop::collection::vec((0usize..90, any::<u8>()), 0..3),
    ) {
        let list = br#"[{"request-id": "1", "event": "opened", "row": {"id": 1}}, {"call": "x", "args": {}}]"#;
        let mut value = list[..cut.min(list.len())].to_vec();
        flips.iter().filter(|(at, _)| *at < cut.min(list.len())).for_each(|(at, to)| value[*at] = *to);
        let format = format();
        for value in [&value[..], &noise] {
            let found = format.requests(&message(value, &[("record", &noise)]));
            prop_assert!(matches!(found, Record::Requests(requests) if !requests.is_empty()));
        }
    }
}
