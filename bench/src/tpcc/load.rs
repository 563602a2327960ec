//! NewOrder and Payment over several processes.

use tidemill_core::{Result, Row, Value};
use tidemill_txn::Program;

use super::program::{self, TABLES};
use super::run::{Made, CALLS};
use super::straight::Straight;
use super::DISTRICTS;
use crate::args::Args;
use crate::cluster::{Ended, Load, Wanted};
use crate::events::int;
use crate::shape::Parts;

/// The number of key columns of each table.
const KEYS: [usize; 9] = [1, 2, 3, 2, 1, 3, 3, 4, 2];
/// Of unchanged rows, one in this many is compared.
const EVERY: i64 = 50;

struct Orders {
    parts: Parts,
    made: Made,
}

/// Returns the workload according to the options.
pub(crate) fn load(args: &Args, program: Program) -> Result<Box<dyn Load>> {
    let parts = program::parts(program)?;
    let made = Made::new(args, args.events.unwrap_or(CALLS))?;
    Ok(Box::new(Orders { parts, made }))
}

/// Whether a row is compared: it may have changed, or it is in the sample of unchanged rows.
fn counts(table: usize, row: &Row) -> bool {
    let last = int(&row[KEYS[table] - 1]);
    match table {
        2 => int(&row[9]) > 1 || last % EVERY == 0,
        3 => int(&row[4]) > 0 || last % EVERY == 0,
        4 => last % EVERY == 0,
        _ => true,
    }
}

impl Orders {
    fn straight(&self) -> Straight {
        Straight::new(self.made.seed, &self.made.scale)
    }
}

impl Load for Orders {
    fn parts(&self) -> &Parts {
        &self.parts
    }

    fn opening(&self, table: usize) -> Vec<Row> {
        self.straight().rows(table)
    }

    fn calls(&self) -> Vec<(usize, Row)> {
        self.made.events()
    }

    fn end(&self, order: &[usize]) -> Ended {
        let mut straight = self.straight();
        straight.run(order.iter().map(|nth| &self.made.calls[*nth]));
        let mut wanted = Vec::new();
        for (table, columns) in KEYS.into_iter().enumerate() {
            let rows = straight.rows(table).into_iter().filter(|row| counts(table, row));
            wanted.extend(rows.map(|row| Wanted::row(table, columns, row)));
        }
        // No order may follow the last one of its district.
        for row in straight.rows(1) {
            let key = [int(&row[0]), int(&row[1]), int(&row[4])].map(Value::Int);
            for table in [5, 6] {
                wanted.push(Wanted { table, key: key.to_vec(), row: None });
            }
        }
        Ended { wanted, aborts: straight.aborts }
    }

    fn holds(&self, tables: &[Vec<Row>]) -> bool {
        tables.len() == TABLES.len()
            && tables[1].len() as i64 == self.made.scale.warehouses * DISTRICTS
            && Straight::is_consistent(tables)
    }
}
