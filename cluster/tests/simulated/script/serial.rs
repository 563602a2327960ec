//! A script's functions in the reference.

use std::sync::Arc;

use tidemill_core::{StreamId, TableId, Value};
use tidemill_function::{Call, Stop, Target, Tid};
use tidemill_txn::program::{Abort, AbortKind, Asker, Opaque, Take, Tx};

use super::machine::{Machine, Memory, Pause};
use super::{
    int, ints, row_of, said, Answers, Script, ANSWER, BEGINS, CALLS_MAX, DEPTH_MAX, ENTITIES,
    EVENTS, MOVE, ONCE, OUTBOX, POISONED, REQUESTS, TRANSFER,
};

/// The functions in the reference: a call runs at once, where it is made.
pub(super) struct Serial {
    pub(super) script: Arc<Script>,
    pub(super) output: StreamId,
    pub(super) tids: Arc<[Option<Tid>]>,
    pub(super) answers: Arc<Answers>,
}

struct OnTx<'a> {
    script: &'a Arc<Script>,
    tx: &'a mut dyn Tx,
    calls: &'a mut u32,
    depth: usize,
    replies: Vec<i64>,
    tid: Tid,
    answers: &'a Arc<Answers>,
}

impl Memory for OnTx<'_> {
    type Made = usize;

    fn get(&mut self, table: TableId, key: &[i64]) -> Result<Option<Vec<i64>>, Stop> {
        Ok(self.tx.get(table, &row_of(key))?.map(|row| ints(&row)))
    }

    fn put(&mut self, table: TableId, row: &[i64]) -> Result<(), Stop> {
        Ok(self.tx.put(table, &row_of(row))?)
    }

    fn delete(&mut self, table: TableId, key: &[i64]) -> Result<(), Stop> {
        Ok(self.tx.delete(table, &row_of(key))?)
    }

    fn find(&mut self, table: TableId, leading: &[i64], take: Take) -> Result<Vec<Vec<i64>>, Stop> {
        let rows = self.tx.find(table, &row_of(leading), take)?;
        Ok(rows.iter().map(|row| ints(row)).collect())
    }

    fn range(
        &mut self,
        table: TableId,
        from: &[i64],
        to: &[i64],
        take: Take,
    ) -> Result<Vec<Vec<i64>>, Stop> {
        let rows = self.tx.scan(table, &row_of(from), &row_of(to), take)?;
        Ok(rows.iter().map(|row| ints(row)).collect())
    }

    fn call(&mut self, call: Call, _: bool) -> Result<usize, Stop> {
        if self.depth + 1 >= DEPTH_MAX {
            let reason = format!("calls are more than {DEPTH_MAX} deep in one another");
            return Err(Abort::refused(reason).into());
        }
        *self.calls += 1;
        if *self.calls > CALLS_MAX {
            return Err(
                Abort::refused(format!("a transaction has at most {CALLS_MAX} calls")).into()
            );
        }
        let Target::Function(function) = call.target else {
            unreachable!("calls are of functions")
        };
        let mut machine = Machine::new(function, &call);
        let reason = machine.verdict();
        if self.answers.contains_key(&(self.tid, reason.clone().into_bytes())) {
            return Err(Abort { kind: AbortKind::Overdue, reason }.into());
        }
        let (script, depth, replies) = (self.script, self.depth + 1, Vec::new());
        let (tid, answers) = (self.tid, self.answers);
        let mut memory =
            OnTx { script, tx: self.tx, calls: self.calls, depth, replies, tid, answers };
        match machine.run(script, &mut memory)? {
            Pause::Done(acc) => self.replies.push(acc),
            Pause::Waits(_) => unreachable!("replies are there"),
        }
        Ok(self.replies.len() - 1)
    }

    fn reply(&mut self, made: usize) -> Option<i64> {
        Some(self.replies[made])
    }

    fn settled(&mut self, made: usize) -> Result<i64, Stop> {
        Ok(self.replies[made])
    }

    fn emit(&mut self, n: i64, acc: i64) -> Result<(), Stop> {
        Ok(self.tx.emit(EVENTS, &row_of(&[n, acc]))?)
    }

    fn now_us(&self) -> i64 {
        self.tx.now_us()
    }

    fn lookup(&mut self, question: &[u8]) -> Result<i64, Stop> {
        let (answers, key) = (self.answers.clone(), (self.tid, question.to_vec()));
        let ask = Asker::new(move || answers.get(&key).cloned().unwrap_or_default());
        let answer = self.tx.lookup(question, &ask)?;
        match answer.is_empty() {
            true => Err(Abort::refused("the question has no recorded answer").into()),
            false => Ok(said(question, &answer)),
        }
    }

    fn tarry(&mut self, _: String) -> Result<(), Stop> {
        Ok(())
    }

    fn tarry_partly(&mut self, _: u32, verdict: String) -> Result<bool, Stop> {
        Ok(self.answers.contains_key(&(self.tid, verdict.into_bytes())))
    }
}

impl Opaque for Serial {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let at = |n: usize| int(&event[n]);
        let (n, function, table, key) = (at(0), at(1) as u32, TableId(at(2) as u16), at(3));
        // Requests that are never executed have no place. No request has one in the run that
        // computes the watermarks.
        let tid = self.tids.get(n as usize).copied().flatten().unwrap_or_default();
        if let Some(reason) = self.answers.get(&(tid, POISONED.to_vec())) {
            return Err(Abort::refused(String::from_utf8_lossy(reason)));
        }
        let value = if function == ANSWER {
            match tx.get(OUTBOX, &row_of(&[key]))? {
                Some(_) => {
                    tx.delete(OUTBOX, &row_of(&[key]))?;
                    tx.emit(EVENTS, &row_of(&[key, at(5)]))?;
                    Value::Int(at(5))
                }
                None => Value::Int(-1),
            }
        } else if function == MOVE {
            let (from, to, amount) = (key, at(5), at(6));
            let has = |tx: &mut dyn Tx, key: i64| -> Result<i64, Abort> {
                let row = tx.get(ENTITIES[0], &row_of(&[key]))?;
                Ok(row.map_or(BEGINS, |row| int(&row[1])))
            };
            let left = has(tx, from)? - amount;
            if left < 0 {
                return Err(Abort::refused("too little"));
            }
            tx.put(ENTITIES[0], &row_of(&[from, left]))?;
            let more = has(tx, to)? + amount;
            tx.put(ENTITIES[0], &row_of(&[to, more]))?;
            tx.emit(EVENTS, &row_of(&[from, left]))?;
            Value::Int(0)
        } else if function == TRANSFER {
            let args = event[4..].to_vec().into();
            let target = Target::Function(function);
            let call = Call { target, table, key: [Value::Int(key)].into(), args };
            let mut rows = Vec::new();
            for (table, key) in [
                (ENTITIES[0], vec![key]),
                (ENTITIES[0], vec![at(5)]),
                (ENTITIES[1], vec![at(6)]),
                (REQUESTS, vec![key, at(4)]),
            ] {
                rows.push((table, tx.get(table, &row_of(&key))?.map(Arc::from)));
            }
            let given: Vec<_> = rows.iter().map(|(_, row)| row.clone()).collect();
            let changes = Script::transfer(&call, &given)?;
            for (n, row) in changes.rows {
                tx.put(rows[n as usize].0, &row.expect("transfers remove nothing"))?;
            }
            for (stream, event) in changes.events {
                tx.emit(stream, &event)?;
            }
            changes.value.expect("transfers return something")
        } else if let Some(done) = tx.get(REQUESTS, &row_of(&[key, at(4)]))? {
            done[2].clone()
        } else {
            let mut calls = 1;
            let (script, replies) = (&self.script, Vec::new());
            let answers = &self.answers;
            let mut memory =
                OnTx { script, tx, calls: &mut calls, depth: 0, replies, tid, answers };
            let target = Target::Function(function % ONCE);
            let args = [Value::Int(at(5)), Value::Int(at(4))].into();
            let call = Call { target, table, key: [Value::Int(key)].into(), args };
            let made = memory.call(call, true).map_err(|stop| match stop {
                Stop::Abort(abort) => abort,
                other => unreachable!("the reference never waits, and has no clock: {other:?}"),
            })?;
            let value = Value::Int(memory.replies[made]);
            tx.put(REQUESTS, &[Value::Int(key), Value::Int(at(4)), value.clone()])?;
            value
        };
        tx.emit(self.output, &[Value::Int(n), value])
    }
}
