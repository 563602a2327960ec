//! The commit: the last version of each row goes to its table.

use std::sync::atomic::Ordering;
use std::sync::Mutex;

use tidemill_table::{Seq, Table};

use super::shape::{FLAGS_WORDS, PRESENT, WRITTEN};
use super::state::States;
use crate::plan::graph::{From, Graph, List, Lists};
use crate::pool::Pool;
use crate::reference::word_value;

/// The versions of a graph whose first transactions, `until` of them, are final. The number of the
/// first one is `first`.
pub(crate) struct Commit<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) states: &'a States,
    pub(crate) words: &'a [std::sync::atomic::AtomicU64],
    pub(crate) until: u32,
    pub(crate) first: Seq,
}

impl Commit<'_> {
    /// Writes the tables, each by one thread.
    pub(crate) fn run(&self, pool: &dyn Pool, lists: &[Lists], tables: &mut [Table]) {
        let tables: Vec<Mutex<&mut Table>> = tables.iter_mut().map(Mutex::new).collect();
        pool.run(&|thread| {
            for (number, table) in tables.iter().enumerate().skip(thread).step_by(pool.threads()) {
                let mut table = table.lock().expect("no thread has panicked here");
                let is_its = |list: &List| usize::from(list.table) == number;
                // Asking for a slot looks at the table, and writing one changes it.
                let table = std::cell::RefCell::new(&mut **table);
                for lists in lists {
                    let ahead = |list: &List| {
                        if is_its(list) {
                            let table = table.borrow();
                            table.prefetch(table.hash(list.key));
                        }
                    };
                    let write = |list: &List| {
                        if is_its(list) {
                            self.row(list, &mut table.borrow_mut());
                        }
                    };
                    lists.each(ahead, write);
                }
            }
        });
    }

    /// The last version that counts, and the number of its transaction.
    fn last(&self, list: &List) -> Option<(u32, Seq)> {
        let mut access = list.last_write()?;
        loop {
            let found = self.graph.access(access);
            let txn = self.graph.vertex(found.vertex()).txn;
            if txn < self.until && !self.states.is_aborted(txn) {
                let flags = self.words[found.at as usize].load(Ordering::Relaxed);
                if flags & WRITTEN != 0 {
                    return Some((access, self.first + u64::from(txn)));
                }
            }
            match found.from() {
                From::Access(before) => access = before,
                _ => return None,
            }
        }
    }

    fn row(&self, list: &List, table: &mut Table) {
        let Some((access, seq)) = self.last(list) else { return };
        let version = &self.words[self.graph.access(access).at as usize..];
        if version[0].load(Ordering::Relaxed) & PRESENT == 0 {
            let spec = table.spec();
            let key = word_value(&spec.schema.columns[spec.key[0]].ty, list.key);
            table.put(&[key], None, seq);
            return;
        }
        let hash = table.hash(list.key);
        let base = match table.find(list.key, hash) {
            Some(base) => base,
            None => table.take(list.key, hash),
        };
        for (to, from) in table.write(base, seq).iter_mut().zip(&version[FLAGS_WORDS..]) {
            *to = from.load(Ordering::Relaxed);
        }
    }
}
