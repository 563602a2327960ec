//! The changes of tables that clients follow.

use tidemill_core::TableId;
use tidemill_function::Tid;

use super::{Stage, Worker};
use crate::effect::{Effect, Packet};

impl Worker {
    /// Follows tables. Clients know what transactions up to `passed` have changed, so there is no
    /// verdict on these any more.
    pub(super) fn follow(&mut self, tables: &[TableId], passed: Tid) {
        if let Stage::Running(running) = &mut self.stage {
            running.node.follow(tables);
            if passed > running.left {
                running.left = passed;
                running.node.output_left(passed);
            }
        }
    }

    /// Reports what an epoch, which has been executed, has changed in own rows of followed tables.
    pub(super) fn report_changes(&mut self, epoch: u64, effects: &mut Vec<Effect>) {
        let generation = self.generation;
        let Stage::Running(running) = &mut self.stage else { return };
        if !running.node.follows() {
            return;
        }
        let own = running.form.assignment.partitions(running.own);
        let changes = running.node.take_changes(&own);
        if !changes.is_empty() {
            self.send(Packet::Changed { generation, epoch, changes }, effects);
        }
    }
}
