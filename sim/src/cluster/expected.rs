//! What the one guarantee says that a run comes to.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_core::{Key, SourceId, StreamId, Value};
use tidemill_function::{Call, Tid};
use tidemill_txn::reference::{self, CutAt, InputRow};

use super::script::{Script, EVENTS};

/// Requests that were executed as one epoch, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Epoch {
    /// The cut's clock.
    pub clock_us: i64,
    /// The requests.
    pub requests: Vec<(Tid, Call)>,
}

/// State, replies and events of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expected {
    /// Rows by key, for each table.
    pub tables: Vec<BTreeMap<Key, Arc<[Value]>>>,
    /// What each request returned, or why it aborted.
    pub replies: BTreeMap<Tid, Result<Value, String>>,
    /// Events in their order.
    pub events: Vec<Vec<Value>>,
}

impl Expected {
    /// Executes the requests one after the other, by the reference.
    pub fn of(script: &Arc<Script>, epochs: &[Epoch]) -> Expected {
        let program = script.for_reference();
        let mut tids = Vec::new();
        let (mut rows, mut cuts) = (Vec::new(), Vec::new());
        for epoch in epochs {
            for (tid, call) in &epoch.requests {
                assert!(tids.last().is_none_or(|last| last < tid), "epochs are in the order");
                let offset = tids.len() as u64;
                rows.push(InputRow { offset, values: Script::event(offset as i64, call) });
                tids.push(*tid);
            }
            let (offsets, clock_us) = (vec![rows.len() as u64], epoch.clock_us);
            cuts.push(CutAt { offsets, clock_us, idle: Vec::new(), ended: Vec::new() });
        }
        if let Some(last) = cuts.last().cloned() {
            let clock_us = last.clock_us + 1;
            cuts.push(CutAt { clock_us, ended: vec![SourceId(0)], ..last });
        }
        let outcome = reference::run(&program, &[rows], &cuts);
        let handler = &program.handlers[0];
        let of = |stream: StreamId| outcome.outputs.get(&stream).into_iter().flatten();
        let index = |value: &Value| match value {
            Value::Int(n) => tids[*n as usize],
            other => unreachable!("{other} is no number of a request"),
        };
        let mut replies = BTreeMap::new();
        for (_, row) in of(handler.output.expect("calls return something")) {
            replies.insert(index(&row[0]), Ok(row[1].clone()));
        }
        for (_, row) in of(handler.aborted) {
            let Some(Value::Str(reason)) = row.last() else { unreachable!("a reason is a text") };
            replies.insert(index(&row[0]), Err(reason.to_string()));
        }
        let rows = |table: &BTreeMap<Key, Box<[Value]>>| {
            table.iter().map(|(key, row)| (key.clone(), row.clone().into())).collect()
        };
        let tables = outcome.tables.iter().map(rows).collect();
        let events = of(EVENTS).map(|(_, row)| row.to_vec()).collect();
        Expected { tables, replies, events }
    }
}
