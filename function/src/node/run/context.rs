//! The operations of a function.

use std::sync::Arc;

use tidemill_core::{Key, StreamId, TableId, Value};
use tidemill_txn::program::{Abort, Asker, Take};

use super::ranges::row;
use super::{stored_key, unwanted, Turn};
use crate::gate::Access;
use crate::node::part::Answer;
use crate::node::questions;
use crate::program::{Bounds, Call, Context, Handle, Stop, Target};
use crate::size;

impl Context for Turn<'_> {
    fn get(&mut self, table: TableId, key: &[Value]) -> Result<Option<Arc<[Value]>>, Stop> {
        self.invocation.mark();
        self.functions.program().check_visible(table)?;
        let key = self.functions.program().stored_key(table, key)?;
        let owner = self.owner(table, &key);
        if owner == self.me {
            let saw = self.read(Access::Row(table, Key::of(&key)), Take::First(1))?;
            return Ok(saw.into_iter().next().flatten());
        }
        let nth = self.reach(owner, Target::Get, table, &key, &[])?;
        Ok(row(self.answer(nth)?))
    }

    fn put(&mut self, table: TableId, row: &[Value]) -> Result<(), Stop> {
        self.invocation.mark();
        if self.is_kept(table) {
            let key = self.invocation.call.key.clone();
            return self.hold(table, &key, row);
        }
        let (key, row) = self.functions.program().stored_row(table, row)?;
        self.put_row(table, &key, Some(row.into()))
    }

    fn delete(&mut self, table: TableId, key: &[Value]) -> Result<(), Stop> {
        self.invocation.mark();
        if self.is_kept(table) {
            return self.let_go(table, key);
        }
        let key = self.functions.program().stored_key(table, key)?;
        self.functions.program().check_writable(table)?;
        self.put_row(table, &key, None)
    }

    fn write(&mut self, table: TableId, key: &[Value], row: Option<&[Value]>) -> Result<(), Stop> {
        self.invocation.mark();
        let owner = self.owner(table, key);
        if owner == self.me {
            return self.write_here(table, Key::of(key), row.map(Into::into));
        }
        let (target, args) = row.map_or((Target::Remove, &[][..]), |row| (Target::Write, row));
        self.reach(owner, target, table, key, args).map(drop)
    }

    fn find(
        &mut self,
        table: TableId,
        leading: &[Value],
        take: Take,
    ) -> Result<Vec<Arc<[Value]>>, Stop> {
        self.invocation.mark();
        self.functions.program().check_ranges(table)?;
        let leading = self.functions.program().stored_bound(table, leading)?;
        self.rows(table, Bounds::Leading, (leading, Vec::new()), take)
    }

    fn range(
        &mut self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        take: Take,
    ) -> Result<Vec<Arc<[Value]>>, Stop> {
        self.invocation.mark();
        self.functions.program().check_ranges(table)?;
        let from = self.functions.program().stored_bound(table, from)?;
        let to = self.functions.program().stored_bound(table, to)?;
        self.rows(table, Bounds::Between, (from, to), take)
    }

    fn expect(
        &mut self,
        rows: &mut dyn Iterator<Item = (TableId, Vec<Value>)>,
    ) -> Result<(), Stop> {
        self.invocation.mark();
        match self.compares {
            true => Ok(()),
            false => self.ask_ahead(rows),
        }
    }

    fn call(&mut self, call: Call, wanted: bool) -> Result<Handle, Stop> {
        self.invocation.mark();
        let key = stored_key(self.functions.program(), &call)?;
        let owner = self.owner(call.table, &key);
        self.make(Call { key: key.into(), ..call }, owner, wanted).map(Handle)
    }

    fn reply(&mut self, handle: Handle) -> Option<&Value> {
        if !self.invocation.awaited.contains(&handle.0) {
            // The reply may be here, but when it arrives is a matter of chance.
            return None;
        }
        match &self.invocation.children.get(handle.0 as usize)?.reply {
            Answer::Value(value) => Some(value),
            _ => None,
        }
    }

    fn settled(&mut self, handle: Handle) -> Result<&Value, Stop> {
        self.invocation.mark();
        let child = self.invocation.children.get(handle.0 as usize);
        if !child.is_some_and(|child| child.wanted) {
            return Err(unwanted().into());
        }
        // Whether the reply is here is a matter of chance. That the function asked for it is not.
        self.invocation.awaited.insert(handle.0);
        self.answer(handle.0)
    }

    fn emit(&mut self, stream: StreamId, row: &[Value]) -> Result<(), Stop> {
        let row = self.functions.program().stored_output(stream, row)?;
        size::fits(self.functions, "an event", &row, self.settings.output_bytes_max)?;
        let (_, ordinal) = self.access()?;
        self.invocation.emits.push((ordinal, stream, row.into()));
        Ok(())
    }

    fn lookup(&mut self, question: &[u8], ask: &Asker) -> Result<Arc<[u8]>, Stop> {
        self.invocation.mark();
        let (path, _) = self.access()?;
        let asked = questions::hash(&path, &self.invocation.call, question);
        let Some(answer) = self.answers.get(&(self.tid, asked)) else {
            self.confirm()?;
            self.ask(asked, ask.clone());
            return Err(Stop::Unwind);
        };
        let max = self.settings.output_bytes_max;
        match answer.len() > max {
            true => {
                let reason = format!("an answer from outside has more than {max} bytes");
                Err(Abort::refused(reason).into())
            }
            false => Ok(answer.clone()),
        }
    }

    fn has_deadline(&self) -> bool {
        self.has_deadline && !self.compares
    }

    fn verdict(&mut self, part: u32, reason: Option<&str>) -> Result<Option<String>, Stop> {
        self.invocation.mark();
        match (self.judged(part), reason) {
            (None, Some(reason)) => {
                // It may depend on an unconfirmed value.
                self.confirm()?;
                self.judge(part, reason.into());
                self.invocation.misses = true;
                Err(Stop::Unwind)
            }
            (known, _) => Ok(known),
        }
    }

    fn random(&mut self) -> u64 {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend(self.settings.seed.to_le_bytes());
        bytes.extend(self.tid.0.to_le_bytes());
        self.here().iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        self.invocation.ordinal = self.invocation.ordinal.saturating_add(1);
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }

    fn now_us(&self) -> i64 {
        self.clock.now_us
    }

    fn mark_us(&self, stream: StreamId) -> Option<i64> {
        let found = self.clock.marks_us.iter().find(|(of, _)| *of == stream);
        found.map(|(_, mark_us)| *mark_us)
    }
}
