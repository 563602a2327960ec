use proptest::prelude::*;
use smallvec::smallvec;
use tidemill_core::{
    Batch, Column, DataType, Key, LateRow, Position, Schema, SourceId, StreamId, TableId,
};
use tidemill_function::{
    Body, Bounds, Call, Cost, Counts, EventPlace, Fault, GivenRows, HandlerEvents, LentRows,
    Message, Mode, NodeId, TableChanges, Target, Verdict, Wanted,
};
use tidemill_snapshot::{DataObject, Work, SHARDS};
use tidemill_txn::program::{Abort, AbortKind, Take};

use super::*;
use crate::effect::{CutPlan, Packet, Piece, Span};
use crate::event_time::{Rank, RankReport, Ranked};
use crate::records::{
    Assignment, Buffered, CutRecord, Emitted, Events, Form, Manifest, Member, Output, Record,
    Request, RequestId, Times, Waiting, Written,
};

fn values() -> Vec<Value> {
    vec![
        Value::Null,
        Value::Bool(true),
        Value::Int(i64::MIN),
        Value::Float(-0.0),
        Value::Float(f64::NAN),
        Value::str("a\0é"),
        Value::Bytes(vec![0, 255].into()),
        Value::Timestamp(-1),
        Value::Decimal(12345, 2),
        Value::List(vec![Value::List(vec![].into()), Value::Null].into()),
        Value::Any(vec![0xc0].into()),
    ]
}

fn calls() -> Vec<Call> {
    let targets = [
        Target::Function(9),
        Target::Get,
        Target::Put,
        Target::Delete,
        Target::Write,
        Target::Remove,
        Target::Find(Bounds::Leading, Take::ALL),
        Target::Find(Bounds::Between, Take::Last(2)),
        Target::Gather(Bounds::Between, Take::First(7)),
        Target::Gather(Bounds::Leading, Take::Last(0)),
    ];
    let call = |target| Call {
        target,
        table: TableId(3),
        key: vec![Value::Int(1)].into(),
        args: values().into(),
    };
    targets.into_iter().map(call).collect()
}

fn abort(kind: AbortKind) -> Abort {
    Abort { kind, reason: "no rooms left".into() }
}

fn times() -> Times {
    let watermark = Position { time_us: -3, source: SourceId(1), offset: 9 };
    Times {
        newest: vec![None, Some(i64::MIN), None, Some(7)],
        watermarks: vec![watermark, Position::MAX],
        idle: vec![1],
        ended: vec![2, 3],
        late: 3,
    }
}

fn manifest() -> Manifest {
    Manifest {
        program: 2 << 64,
        generation: 3,
        epoch: 4,
        clock_us: -5,
        base: 6,
        inputs: vec![7, 8],
        buffered: vec![5, 8],
        waiting: Some(vec![Waiting { event_source: 2, record: 5, newest_us: Some(-8) }]),
        times: times(),
        outputs: vec![9],
        objects: vec![object("part-1"), object("merge-1")],
        written: Arc::new(Written { base: 10, outputs: vec![11, 12], note: [1, 2].into() }),
        counts: counts().into(),
    }
}

fn counts() -> Counts {
    let mut counts = Counts { events: 9, ended: 5, late: 1, slides: 2, ..Counts::default() };
    counts.reasons.add("pay", "1 is too little", 3);
    counts.reasons.add("pay", "2 is too little", 1);
    counts.reasons.add("pay", "fault: KeyError", 1);
    counts.reasons.place_at("pay", "fault: KeyError", "app.py:7");
    counts.fault = Some(fault());
    counts.slide = Some("a slide".into());
    counts
}

fn fault() -> Fault {
    Fault { what: "pay failed".into(), line: Some("app.py:7".into()) }
}

fn events(is_run: bool) -> Events {
    let columns = vec![
        Column::new("id", DataType::Int),
        Column::new("text", DataType::Str).nullable(),
        Column::new("price", DataType::Decimal(2)).default(Value::Decimal(150, 2)),
    ];
    let rows = [
        [Value::Int(1), Value::str("a"), Value::Decimal(7, 2)],
        [Value::Int(i64::MIN), Value::Null, Value::Decimal(-1, 2)],
    ];
    let batch = Batch::from_rows(Schema::new(columns).into(), rows.iter().map(|row| &row[..]));
    let from = is_run.then(|| EventPlace { name: "a.csv".into(), row: 1 << 40 });
    Events { stream: StreamId(3), from, is_run, batch }
}

fn cut() -> CutRecord {
    let (from, upto, times) = (vec![4], vec![u64::MAX], times());
    CutRecord {
        epoch: 1,
        clock_us: 2,
        base: 3,
        count: 9,
        from,
        upto,
        times,
        by_owner: true,
        stops_on_fault: true,
    }
}

fn emitted(tids: [u64; 2], ordinals: [u32; 2]) -> Record {
    let Events { batch, stream, .. } = events(true);
    Record::Emitted(Emitted { stream, tids: tids.into(), ordinals: ordinals.into(), batch })
}

fn records() -> Vec<Record> {
    let (tid, id, path): (_, RequestId, Path) =
        (Tid(77), Arc::from(*b"id"), smallvec![1, 2, 3, 4, 5, 6, 7]);
    let kinds = [AbortKind::Refused, AbortKind::Fault, AbortKind::Raised, AbortKind::Overdue];
    let reply = |outcome| Output::Reply { tid, id: Arc::from(*b"id"), outcome };
    let request = |call: &Call| Request { id: id.clone(), call: call.clone() };
    let event = Output::Event { tid, path, stream: StreamId(4), row: values().into() };
    let mut records = vec![
        Record::Generation { generation: 12 },
        Record::End,
        Record::Cut(cut()),
        Record::Withdrawn { epoch: 1, base: 1 << 40 },
        Record::Snapshot(manifest().into()),
        Record::Answer { tid, asked: 5 << 90, answer: [7, 0].into() },
        Record::Requests(vec![request(&calls()[0])]),
        Record::Requests(calls().iter().map(request).collect()),
        Record::Events(events(true)),
        Record::Events(events(false)),
        emitted([4, 4], [0, 1]),
        emitted([4, 1 << 40], [7, 7]),
        emitted([u64::MAX, 1], [0, u32::MAX]),
        Record::Outputs(vec![event, reply(Ok(Value::Null)), reply(Err(abort(kinds[0])))]),
    ];
    records.extend(values().into_iter().map(|value| Record::Outputs(vec![reply(Ok(value))])));
    records.extend(kinds.map(|kind| Record::Outputs(vec![reply(Err(abort(kind)))])));
    records
}

/// Only the names of objects were recorded. In the first versions, an ended source had the end of
/// all times as its newest time, and where buffered events begin was not recorded either.
#[test]
fn records_of_earlier_versions_are_read() {
    let put_name = |object: &DataObject, out: &mut Vec<u8>| {
        tidemill_core::wire::put_bytes(object.name.as_bytes(), out);
    };
    let mut before = manifest();
    (before.times.newest, before.times.ended) = (vec![Some(i64::MAX), Some(5)], Vec::new());
    let mut after = before.clone();
    (after.times.newest, after.times.ended, after.waiting) = (vec![None, Some(5)], vec![0], None);
    after.counts = Default::default();
    for object in &mut after.objects {
        (object.len, object.root, object.level, object.shards) = (0, 0, 0, [0; SHARDS]);
    }
    assert!(after.is_of_before() && !before.is_of_before());
    let mut bytes = vec![11];
    record::put_manifest_with(&before, &mut bytes, put_name);
    assert_eq!(take_record(&mut &bytes[..]), Some(Record::Snapshot(after.clone().into())));
    bytes[0] = 14;
    put_option(before.waiting.as_ref(), &mut bytes, |waiting, out| {
        put_list(waiting, out, record::put_waiting);
    });
    after.waiting = before.waiting;
    assert_eq!(take_record(&mut &bytes[..]), Some(Record::Snapshot(after.into())));
    // The objects are whole, but there are no counts.
    let manifest = manifest();
    let mut bytes = vec![15];
    record::put_manifest_with(&manifest, &mut bytes, DataObject::put);
    put_option(manifest.waiting.as_ref(), &mut bytes, |waiting, out| {
        put_list(waiting, out, record::put_waiting);
    });
    let wanted = Manifest { counts: Default::default(), ..manifest };
    assert_eq!(take_record(&mut &bytes[..]), Some(Record::Snapshot(wanted.into())));
}

fn packets() -> Vec<Packet> {
    let (tid, path, generation): (_, Path, _) = (Tid(77), smallvec![3], 5);
    let spent = Cost { calls: 1, uses: 3 };
    let (home, key) = (NodeId(1), Key::of([&Value::Int(7)]));
    let call = |call| Body::Call {
        tid,
        path: path.clone(),
        call,
        share: 4,
        home,
        caller: Some(home),
        mode: Mode::Cached,
        before: spent,
    };
    let mut bodies: Vec<Body> = calls().into_iter().map(call).collect();
    let failure = Some((path.clone(), abort(AbortKind::Refused)));
    bodies.extend([
        Body::Reply { tid, path: path.clone(), value: Some(Value::Null), spent },
        Body::Reply { tid, path: path.clone(), value: None, spent },
        Body::Ended {
            tid,
            share: 1,
            calls: 2,
            spent,
            failure,
            missed: Some(Mode::Sequential),
            judged: true,
        },
        Body::Finished { tid, verdict: Verdict::Commit },
        Body::Finished { tid, verdict: Verdict::Abort },
        Body::Finished { tid, verdict: Verdict::Missed(Mode::Fresh) },
        Body::Declared { tid, call: calls()[0].clone() },
        Body::AllDeclared { others: true },
        Body::Outcome { tid, outcome: Ok(Value::Int(1)) },
        Body::Outcome { tid, outcome: Err(Abort::refused("no")) },
        Body::Values { tid, rows: vec![(0, None), (1, Some(values().into()))] },
        Body::Prefetch { tid, path: path.clone(), rows: vec![(TableId(2), key.clone())] },
        Body::Prefetched {
            tid,
            path: path.clone(),
            rows: vec![(TableId(2), key.clone(), None), (TableId(0), key, Some(values().into()))],
        },
        Body::Done,
        Body::Conflicts {
            again: vec![(tid, Mode::Fresh)],
            reads: vec![(tid, tid, Mode::Cached)],
            judged: 3,
        },
    ]);
    let batch = events(true).batch;
    let tids = vec![3, 1 << 50];
    let events = vec![HandlerEvents { handler: 7, tids: tids.clone(), batch: batch.clone() }];
    let lent = LentRows { table: TableId(1), batch: batch.clone() };
    let rows = vec![GivenRows { table: TableId(2), tids, batch }];
    let one = calls().remove(0);
    let results = vec![(tid, Ok(Value::Null)), (Tid(1 << 40), Err(Abort::refused("no")))];
    bodies.extend([
        Body::Work { events: events.clone(), calls: vec![(tid, one)], is_last: false },
        Body::Work { events: Vec::new(), calls: Vec::new(), is_last: true },
        Body::Results { results, is_last: false },
        Body::Results { results: Vec::new(), is_last: true },
        Body::Events { events, others: false },
        Body::Events { events: Vec::new(), others: true },
        Body::Rows { rows },
        Body::Wanted(Wanted { last: 1 << 60, keys: vec![(TableId(3), lent.batch.clone())] }),
        Body::Lent { last: 1 << 60, rows: vec![lent] },
        Body::Lent { last: 0, rows: Vec::new() },
    ]);
    let message = |body| Packet::Node {
        generation,
        from: home,
        message: Message { epoch: 3, round: 1, body },
    };
    let mut packets: Vec<Packet> = bodies.into_iter().map(message).collect();
    let buffered = Buffered { events: 7, bytes: u64::MAX, late: 1, tables: 9 };
    let ranks = vec![
        Ranked { rank: Rank::Arrival(1), count: 2, on: 0 },
        Ranked { rank: Rank::Late(3), count: 4, on: 5 },
        Ranked { rank: Rank::OnTime(i64::MIN, u32::MAX), count: u32::MAX, on: u64::MAX },
    ];
    let piece = |end, requests, times: &[Span]| {
        let times = times.into();
        let by_column = requests % 2 == 1;
        Piece { end, requests, by_column, times }
    };
    let late = Some(LateRow { offset: 4, time_us: i64::MIN, bound_us: -6 });
    let assignment = Assignment::equal(vec![Member(4), Member(9)]);
    let form = Arc::new(Form { generation, assignment, manifest: manifest().into() });
    packets.extend([
        Packet::Beat { generation },
        Packet::Form(form.clone()),
        Packet::Formed { generation, buffered },
        Packet::Ranks {
            generation,
            from: home,
            epoch: 8,
            ranks: RankReport { ranks, by_column: true },
        },
        Packet::Prepare(form),
        Packet::Merge { generation, epoch: 3, name: "merge-1".into(), work: work().into() },
        Packet::Merged { generation, name: "merge-1".into(), part: Some(None) },
        Packet::Merged { generation, name: "merge-1".into(), part: None },
        Packet::Prepared,
        Packet::Left { generation, base: 3, ends: vec![4, 5] },
        Packet::Outside { generation, epoch: 7, rows: u64::MAX },
        Packet::Follow { generation, tables: vec![TableId(0), TableId(9)], passed: Tid(7) },
        Packet::Changed {
            generation,
            epoch: 7,
            changes: vec![
                TableChanges { table: TableId(0), rows: None },
                TableChanges {
                    table: TableId(9),
                    rows: Some(vec![
                        (Key::of([&Value::Int(1)]), Some([Value::Int(1), Value::Null].into())),
                        (Key::of([&Value::Int(2)]), None),
                    ]),
                },
            ],
        },
        Packet::Available {
            generation,
            source: 1,
            from: 2,
            pieces: vec![
                piece(
                    5,
                    3,
                    &[Span::of(0, -1), Span { late, ..Span::of(2, i64::MAX).with(i64::MIN) }],
                ),
                piece(6, 0, &[]),
            ],
        },
        Packet::Cut { generation, cut: cut().into(), plan: CutPlan::default() },
        Packet::Cut {
            generation,
            cut: cut().into(),
            plan: CutPlan {
                takes_snapshot: true,
                executes: Some(NodeId(3)),
                parts: [1, 7, u64::MAX].into(),
            },
        },
        Packet::Trial { generation, epoch: 7, part: 3, left: Tid(12) },
        Packet::Tried { generation, epoch: 7, part: 3 },
        Packet::Durable { generation, epoch: 2, released: 1 },
        Packet::Executed {
            generation,
            epoch: 1,
            buffered,
            counts: counts(),
            fault: Some((Tid(7), fault())),
            unstable: vec![("pay".into(), 3), ("take".into(), u64::MAX)],
        },
        Packet::Executed {
            generation,
            epoch: 1,
            buffered,
            counts: counts(),
            fault: None,
            unstable: Vec::new(),
        },
        Packet::Part {
            generation,
            epoch: 1,
            part: Some(Some(object("part"))),
            outputs: vec![1],
            waiting: vec![Waiting { event_source: 2, record: 3, newest_us: None }],
        },
        Packet::Snapshot { generation, epoch: 1, counts: false },
        Packet::Lost { generation, member: Member(4) },
        Packet::Leaving,
        Packet::Released,
        Packet::LeftOut { generation, from: vec![Member(4), Member(1 << 20)] },
    ]);
    packets
}

fn object(name: &str) -> DataObject {
    let mut shards = [0; SHARDS];
    (shards[0], shards[SHARDS - 1]) = (7, u64::MAX);
    DataObject { name: name.into(), len: 9, root: u64::MAX, level: 2, shards }
}

/// A merge, as eight objects of one level need one.
fn work() -> Work {
    let layout: Vec<DataObject> = (0..9).map(|nth| object(&format!("part-{nth}"))).collect();
    tidemill_snapshot::plan(&layout).expect("a merge")
}

/// Decoding gives what was encoded, and no prefix of the bytes is valid.
fn comes_back<T>(
    what: &T,
    put: impl Fn(&T, &mut Vec<u8>),
    take: impl Fn(&mut &[u8]) -> Option<T>,
) -> T {
    let mut bytes = Vec::new();
    put(what, &mut bytes);
    for len in 0..bytes.len() {
        assert!(take(&mut &bytes[..len]).is_none(), "{len} bytes of {bytes:?}");
    }
    let mut input = &bytes[..];
    let found = take(&mut input).expect("it was put");
    assert!(input.is_empty());
    let mut again = Vec::new();
    put(&found, &mut again);
    assert_eq!(bytes, again);
    found
}

#[test]
fn records_come_back() {
    for record in records() {
        assert_eq!(comes_back(&record, put_record, take_record), record);
    }
}

#[test]
fn packets_come_back() {
    for packet in packets() {
        let found = comes_back(&packet, put_packet, take_packet);
        assert_eq!(format!("{found:?}"), format!("{packet:?}"));
    }
}

#[test]
fn manifests_come_back_and_damaged_ones_do_not() {
    let mut bytes = Vec::new();
    put_manifest_object(&manifest(), &mut bytes);
    assert_eq!(take_manifest_object(&bytes), Some(manifest()));
    for at in 0..bytes.len() {
        assert_eq!(take_manifest_object(&bytes[..at]), None);
        bytes[at] ^= 0x10;
        assert_eq!(take_manifest_object(&bytes), None);
        bytes[at] ^= 0x10;
    }
}

#[test]
fn lists_without_end_are_refused() {
    let mut bytes = [8, 1, 0, 0, 0].repeat(100_000);
    bytes.push(0);
    assert_eq!(take_value(&mut &bytes[..]), None);
    // No memory is taken for absent items.
    assert_eq!(take_value(&mut &[8, 255, 255, 255, 255][..]), None);
    assert_eq!(room::<[u8; 100]>(usize::MAX, &[0; 1000]), 10);
}

proptest! {
    /// Arbitrary bytes never cause a panic, and decoded values can be encoded.
    #[test]
    fn bytes_of_any_kind_are_taken_or_refused(
        which in 0usize..1000,
        flips in prop::collection::vec((0usize..200, any::<u8>()), 0..4),
        noise in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let (records, packets) = (records(), packets());
        let mut bytes = Vec::new();
        put_record(&records[which % records.len()], &mut bytes);
        let mut packet = Vec::new();
        put_packet(&packets[which % packets.len()], &mut packet);
        for bytes in [&mut bytes, &mut packet] {
            let len = bytes.len();
            flips.iter().for_each(|(at, to)| bytes[at % len] = *to);
        }
        for bytes in [&bytes, &packet, &noise] {
            if let Some(record) = take_record(&mut &bytes[..]) {
                put_record(&record, &mut Vec::new());
            }
            if let Some(packet) = take_packet(&mut &bytes[..]) {
                put_packet(&packet, &mut Vec::new());
            }
            take_manifest_object(bytes);
            take_part_of_before(bytes);
        }
    }
}
