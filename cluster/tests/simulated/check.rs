//! The checkers of a run: one for each property, independent of the checked code.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidemill_cluster::{Output, Record, Topic, Worker, POISON};
use tidemill_core::{Key, Row, StreamId, Value};
use tidemill_function::{
    Call, Event, Functions as _, Node, NodeId, Outbox, Owners, Path, Rows, Sequencing, Settings,
    Tid,
};

use super::expected::{Epoch, Expected, Taken};
use super::script::{
    asked, Answers, OnNodes, Script, ABORTED_MOVES, ABORTS, CALLS_MAX, DEPTH_MAX, LATES, POISONED,
};
use super::world::World;

/// The largest number of objects of a snapshot: a few merges of each level are late.
const OBJECTS_MAX: usize = 64;

/// Checks all properties of a run; the error says which one is violated.
pub fn check(world: &World) -> Result<(), String> {
    let answers = answers(world)?;
    let (wanted, epochs) = match world.event_time().is_empty() {
        true => {
            let epochs = epochs(world)?;
            (Expected::of(&world.script, &epochs, &answers), epochs)
        }
        false => in_time(world, &answers)?,
    };
    limits(world)?;
    acknowledged(world, &epochs, &wanted)?;
    order(world, &wanted)?;
    exactly_once(world, &epochs, &wanted)?;
    counts(world, &wanted)?;
    written(world)?;
    let found = state(world, &epochs)?;
    atomicity(&found, &wanted)?;
    recovery(world, &epochs, &found)?;
    match &world.unstable {
        None => Ok(()),
        Some(function) => Err(format!("{function} was reported as not deterministic")),
    }
}

/// Returns the epochs that the recorded cuts make of the requests. The cuts must form one sequence.
fn epochs(world: &World) -> Result<Vec<Epoch>, String> {
    let mut epochs = Vec::new();
    let sources = world.sources();
    let mut upto = vec![0; sources as usize];
    for (cut, base) in world.log.cuts() {
        let wanted = (epochs.len() as u64 + 1, base, &upto);
        if (cut.epoch, cut.base, &cut.from) != wanted {
            return Err(format!("cuts: {cut:?} does not follow {wanted:?}"));
        }
        let order = Sequencing { sources, base };
        let mut requests = Vec::new();
        for source in 0..sources {
            let records = world.log.records(Topic::Input(source));
            let at = source as usize;
            let mut nth = 0;
            for offset in cut.from[at]..cut.upto[at] {
                match records.get(offset as usize) {
                    Some(record @ (Record::Requests(_) | Record::Events(_))) => {
                        for call in Script::calls(record) {
                            requests.push((order.tid(source, nth), call));
                            nth += 1;
                        }
                    }
                    other => return Err(format!("cuts: a cut is behind the requests: {other:?}")),
                }
            }
            if nth > cut.count {
                return Err(format!("cuts: source {source} has {nth} requests in {cut:?}"));
            }
        }
        requests.sort_by_key(|(tid, _)| *tid);
        upto.clone_from(&cut.upto);
        epochs.push(Epoch { clock_us: cut.clock_us, requests });
    }
    Ok(epochs)
}

/// Returns the expected outcome and the epochs where streams are in event time.
///
/// The cuts and the reference's watermarks determine the executed requests and their order. The
/// recorded watermarks must be those of the reference.
fn in_time(world: &World, answers: &Answers) -> Result<(Expected, Vec<Epoch>), String> {
    let (mut all, mut ended): (Vec<Taken>, Vec<u32>) = (Vec::new(), Vec::new());
    let mut upto = vec![0; world.sources() as usize];
    for (cut, base) in world.log.cuts() {
        let wanted = (all.len() as u64 + 1, base, &upto);
        if (cut.epoch, cut.base, &cut.from) != wanted {
            return Err(format!("cuts: {cut:?} does not follow {wanted:?}"));
        }
        let mut requests = Vec::new();
        for source in 0..world.sources() {
            let records = world.log.records(Topic::Input(source));
            let at = source as usize;
            for record in cut.from[at]..cut.upto[at] {
                match records.get(record as usize) {
                    Some(some @ (Record::Requests(_) | Record::Events(_))) => {
                        let some = (0..).zip(Script::calls(some));
                        requests.extend(some.map(|(nth, call)| (source, record, nth, call)));
                    }
                    Some(Record::End) => {
                        let all = (0..).zip(world.event_time().sources());
                        let own = all.filter(|(_, of)| of.source == source);
                        ended.extend(own.map(|(nth, _)| nth));
                    }
                    other => return Err(format!("cuts: a cut is behind the requests: {other:?}")),
                }
            }
        }
        upto.clone_from(&cut.upto);
        let (clock_us, idle) = (cut.clock_us, cut.times.idle.clone());
        let ended = ended.clone();
        all.push(Taken { clock_us, base: cut.base, upto: upto.clone(), idle, ended, requests });
    }
    let (wanted, epochs) = Expected::in_time(&world.script, world.event_time(), &all, answers);
    let counts = epochs.iter().map(|epoch| epoch.requests.len() as u64);
    let late = std::iter::once(0).chain(wanted.lates.iter().copied());
    let marks = world.log.cuts().into_iter().zip(&wanted.watermarks);
    for ((((cut, _), watermark), count), late) in marks.zip(counts).zip(late) {
        if cut.times.late != late {
            return Err(format!("late: {late} were before {cut:?}"));
        }
        if cut.times.watermarks != [*watermark] {
            return Err(format!("watermarks: {watermark:?} was not recorded in {cut:?}"));
        }
        if count > cut.count {
            return Err(format!("cuts: {count} requests are executed in {cut:?}"));
        }
    }
    Ok((wanted, epochs))
}

/// Checks that epochs and messages stay within their limits, and that snapshots have few objects.
fn limits(world: &World) -> Result<(), String> {
    let (requests_max, columns_max, outputs_max) = world.limits();
    for source in 0..world.sources() {
        let inputs = world.log.records(Topic::Input(source));
        for (cut, _) in world.log.cuts() {
            let [from, upto] = [&cut.from, &cut.upto].map(|at| at[source as usize] as usize);
            let counts = inputs[from..upto].iter().map(|record| Script::calls(record).len() as u64);
            let counts: Vec<u64> = counts.filter(|count| *count > 0).collect();
            let has_calls = inputs[from..upto]
                .iter()
                .any(|record| matches!(record, Record::Requests(requests) if !requests.is_empty()));
            let most = if has_calls { requests_max } else { requests_max.max(columns_max) };
            if counts.len() > 1 && counts.iter().sum::<u64>() > most {
                return Err(format!("limits: {counts:?} requests of source {source} in {cut:?}"));
            }
        }
        for record in world.log.records(Topic::Output(source)) {
            let outputs = match record {
                Record::Outputs(outputs) => outputs.len(),
                Record::Emitted(emitted) => emitted.tids.len(),
                _ => 0,
            };
            if outputs > outputs_max {
                return Err(format!("limits: {outputs} outputs are one record"));
            }
        }
    }
    for record in world.log.records(Topic::Cuts) {
        let Record::Snapshot(manifest) = record else { continue };
        // Merges come after snapshots, and may fail several times.
        if manifest.objects.len() > OBJECTS_MAX {
            return Err(format!("limits: a snapshot of {:?}", manifest.objects));
        }
    }
    Ok(())
}

/// Returns all answers from outside. Each question must have one answer, and none may be asked
/// before its cut is recorded.
fn answers(world: &World) -> Result<Answers, String> {
    let mut answers = Answers::new();
    let mut verdicts = BTreeMap::new();
    for (tid, question, answer) in world.log.answers() {
        if question == POISON {
            // The first of two counts.
            verdicts.entry((tid, POISONED.to_vec())).or_insert(answer.to_vec());
            continue;
        }
        if let Some(other) = answers.insert((tid, asked(answer)), answer.to_vec()) {
            return Err(format!("outside: {tid:?} received {answer:?} and {other:?}"));
        }
    }
    answers.extend(verdicts);
    match &world.left_early {
        None => Ok(answers),
        Some(what) => Err(format!("outside: {what}")),
    }
}

/// Checks that each acknowledged request is in the log, and in an epoch or waiting for its
/// watermark.
fn acknowledged(world: &World, epochs: &[Epoch], wanted: &Expected) -> Result<(), String> {
    let mut executed = wanted.waiting.clone();
    for (_, Call { args, .. }) in epochs.iter().flat_map(|epoch| &epoch.requests) {
        if let Value::Int(id) = args[0] {
            executed.insert(id);
        }
    }
    match world.acknowledged.iter().find(|id| !executed.contains(id)) {
        None => Ok(()),
        Some(id) => Err(format!("acknowledged: request {id} is lost")),
    }
}

/// Checks that every reply and every event is the one that the order gives.
fn order(world: &World, wanted: &Expected) -> Result<(), String> {
    let mut events: BTreeMap<(Tid, Path), Vec<Value>> = BTreeMap::new();
    let mut late: BTreeMap<(Tid, Path), Vec<Value>> = BTreeMap::new();
    for output in &world.log.outputs() {
        match output {
            Output::Event { tid, path, stream: LATES, row } => {
                late.insert((*tid, path.clone()), row.to_vec());
            }
            Output::Reply { tid, outcome, .. } => {
                let outcome = outcome.clone().map_err(|abort| abort.reason);
                if wanted.replies.get(tid) != Some(&outcome) {
                    let other = wanted.replies.get(tid);
                    return Err(format!("order: {tid:?} has the reply {outcome:?}, not {other:?}"));
                }
            }
            Output::Event { tid, stream: ABORTS | ABORTED_MOVES, row, .. } => {
                let Some(Value::Str(told)) = row.last() else { unreachable!("reasons are texts") };
                match wanted.replies.get(tid) {
                    Some(Err(reason)) if **reason == **told => {}
                    other => {
                        return Err(format!("order: {tid:?} aborted with {told}, not {other:?}"))
                    }
                }
            }
            Output::Event { tid, path, row, .. } => {
                events.insert((*tid, path.clone()), row.to_vec());
            }
        }
    }
    let late: Vec<Vec<Value>> = late.into_values().collect();
    if late != wanted.late {
        return Err(format!("order: late events are {late:?}, not {:?}", wanted.late));
    }
    let events: Vec<Vec<Value>> = events.into_values().collect();
    match events == wanted.events {
        true => Ok(()),
        false => Err(format!("order: events are {events:?}, not {:?}", wanted.events)),
    }
}

/// Checks that every output has left exactly once.
fn exactly_once(world: &World, epochs: &[Epoch], wanted: &Expected) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for output in &world.log.outputs() {
        if !seen.insert(output.id()) {
            return Err(format!("exactly once: {output:?} has left twice"));
        }
    }
    let is_reported = |tid: &Tid| seen.range((*tid, Some(Path::new()))..).any(|(of, _)| of == tid);
    let aborted = wanted.replies.iter().filter(|(_, outcome)| outcome.is_err());
    if let Some((tid, _)) = aborted.into_iter().find(|(tid, _)| !is_reported(tid)) {
        return Err(format!("exactly once: the abort of {tid:?} is not reported"));
    }
    let requests = epochs.iter().flat_map(|epoch| &epoch.requests);
    // Nobody waits for the replies of events.
    let awaited = requests.filter(|(_, call)| Script::move_event(call).is_none());
    match awaited.map(|(tid, _)| tid).find(|tid| !seen.contains(&(**tid, None))) {
        None => Ok(()),
        Some(tid) => Err(format!("exactly once: {tid:?} has no reply")),
    }
}

/// Checks that each transaction was counted once, whatever was executed again.
fn counts(world: &World, wanted: &Expected) -> Result<(), String> {
    let aborted = wanted.replies.values().filter(|outcome| outcome.is_err()).count() as u64;
    let ended = wanted.replies.len() as u64 - aborted;
    let counts = world.counts();
    match (counts.ended, counts.refused) == (ended, aborted) {
        true => Ok(()),
        false => Err(format!("counts: {counts:?}, not {ended} ended and {aborted} aborted")),
    }
}

/// Checks that the sink has all events in their order, each of them once.
fn written(world: &World) -> Result<(), String> {
    let mut events = BTreeMap::new();
    for output in &world.log.outputs() {
        if let Output::Event { tid, path, stream, row } = output {
            events.insert((*stream, *tid, path.clone()), row.clone());
        }
    }
    let mut wanted: BTreeMap<StreamId, Vec<Row>> = BTreeMap::new();
    for ((stream, ..), row) in events {
        wanted.entry(stream).or_default().push(row);
    }
    match &world.sink.wrong {
        Some(what) => Err(format!("written: {what}")),
        None if world.sink.rows == wanted => Ok(()),
        None => Err(format!("written: {:?}, not {wanted:?}", world.sink.rows)),
    }
}

pub type Tables = Vec<BTreeMap<Key, Arc<[Value]>>>;

/// Returns the rows of all members together. Each member must have rows of its own partitions only.
fn state(world: &World, epochs: &[Epoch]) -> Result<Tables, String> {
    let members = world.members();
    let owners = Owners::equal(members.len() as u16);
    let program = world.script.for_reference(&[], &[], &Answers::new()).0;
    let mut found: Tables = vec![BTreeMap::new(); world.script.tables()];
    for (n, member) in members.iter().enumerate() {
        let state = world.worker(*member).and_then(Worker::state);
        let Some((state, executed)) = state else { return Err(format!("{member:?} has no state")) };
        if executed != epochs.len() as u64 {
            return Err(format!("state: {member:?} is at epoch {executed}"));
        }
        for (table, key, row) in state.iter() {
            let spec = &program.tables[table.index()];
            let owner = owners.of(tidemill_place::partition_of_bytes(spec, &key.0));
            if owner != NodeId(n as u16) {
                return Err(format!("state: {member:?} has a row of {owner:?}: {row:?}"));
            }
            found[table.index()].insert(key, row);
        }
    }
    Ok(found)
}

/// Checks that the rows of all members are those of the reference, so that no transaction is
/// written in part.
fn atomicity(found: &Tables, wanted: &Expected) -> Result<(), String> {
    for (table, (found, wanted)) in found.iter().zip(&wanted.tables).enumerate() {
        let keys: BTreeSet<&Key> = found.keys().chain(wanted.keys()).collect();
        for key in keys {
            if found.get(key) != wanted.get(key) {
                let (found, wanted) = (found.get(key), wanted.get(key));
                return Err(format!("atomicity: table {table} has {found:?}, not {wanted:?}"));
            }
        }
    }
    Ok(())
}

/// Checks that the rows equal those of an uninterrupted run on one node with the same cuts.
fn recovery(world: &World, epochs: &[Epoch], found: &Tables) -> Result<(), String> {
    let functions = Arc::new(OnNodes::new(&world.script));
    let settings = Settings { calls_max: CALLS_MAX, depth_max: DEPTH_MAX, ..Settings::default() };
    let (me, owners, tables) = (NodeId(0), Owners::equal(1), world.script.tables());
    let rows = |node: &Node| {
        let mut all: Tables = vec![BTreeMap::new(); tables];
        for (table, key, row) in node.rows().iter() {
            all[table.index()].insert(key, row);
        }
        all
    };
    let mut node = Node::new(
        me,
        functions.clone(),
        owners,
        settings,
        Rows::new(&world.script.program.tables, 7),
    );
    node.output_left(Tid(u64::MAX));
    let mut refused = BTreeMap::new();
    for (tid, asked, answer) in world.log.answers() {
        node.know(tid, asked, answer.into());
        if asked == POISON {
            refused.entry(tid).or_insert(String::from_utf8_lossy(answer));
        }
    }
    let mut states = vec![rows(&node)];
    for (n, epoch) in epochs.iter().enumerate() {
        let mut out = Outbox::default();
        let executed = |(tid, call): &(Tid, Call)| match refused.get(tid) {
            Some(reason) => (*tid, functions.refusal(reason)),
            None => (*tid, call.clone()),
        };
        node.begin(
            n as u64 + 1,
            epoch.clock_us.into(),
            epoch.requests.iter().map(executed).collect(),
            (Vec::new(), tidemill_function::ColumnPlan::default()),
            &mut out,
        );
        // This node may ask questions that the run never asked, on transient values that it re-runs
        // later.
        let mut is_over = false;
        while let Some(event) = out.events.pop() {
            match event {
                Event::Asked(question) => {
                    let answer = question.ask.now().into();
                    node.answered(&question, answer, &mut out);
                }
                Event::Committed { .. } => is_over = true,
                _ => {}
            }
        }
        if !is_over {
            return Err("recovery: an epoch on one node does not end".into());
        }
        states.push(rows(&node));
    }
    match states.last() == Some(found) {
        true => super::follows::check(world, &states),
        false => Err("recovery: the rows are not those of an uninterrupted run".into()),
    }
}
