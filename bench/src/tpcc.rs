//! TPC-C's NewOrder and Payment, as calls of functions of entities.
//!
//! There are `--warehouses` (10), each with 10 districts of 3,000 customers and a stock of 100,000
//! items (`--items`; there are 3 customers for every 100 items). 51 % of the calls are NewOrder,
//! the others Payment:
//!
//! | function | what it does |
//! | --- | --- |
//! | `district.new_order` | takes an order of 5 to 15 lines: numbers it, inserts it with its lines, takes each line's quantity from the stock that supplies it, and returns the total. 1 % of the lines come from another warehouse; 1 % of the orders name an unknown item, and abort |
//! | `warehouse.pay` | a customer pays 1 to 5,000: updates the sums of warehouse, district and customer, adds a row of history and, for customers with bad credit, a note. 60 % are named by their last name, which means the middle one by first name; 15 % are customers of another warehouse |
//!
//! Keys begin with the warehouse, which chooses the partition. Customers and items are drawn with
//! NURand 1023, 255 and 8191. Amounts are cents, and rates are hundredths of a percent. Left out
//! are columns that neither function reads or writes (addresses, names of items), the texts that
//! orders copy from the stock, and initial orders: districts begin with order 1.
//!
//! The invariant: every row of every table equals that of the baseline, a straight loop over maps.
//! The consistency conditions 1 to 4 of the specification hold:
//!
//! 1. The sums of a warehouse's districts are its own.
//! 2. The next order of a district is the one after its newest, and after its newest open one.
//! 3. Open orders have no gaps.
//! 4. Orders have as many lines as they say.
//!
//! | file | contents |
//! | --- | --- |
//! | `calls` | the generator |
//! | `program` | the tables, and the functions in Rust |
//! | `straight` | the baseline, and the expected tables |
//! | `run` | the workload for the harness |
//! | `load` | the workload for several processes |

mod calls;
mod load;
mod program;
mod run;
mod straight;

#[cfg(test)]
mod tests;

pub(crate) use load::load;
pub(crate) use program::{note, plain_program};
pub(crate) use run::{run, Made};

/// The number of districts of a warehouse.
const DISTRICTS: i64 = 10;
/// The reason of an abort.
const NO_ITEM: &str = "item number is not valid";
/// The longest note of a customer with bad credit, in bytes.
const NOTE_MAX: usize = 500;

/// The size of the initial data.
#[derive(Clone, Copy, Debug)]
struct Scale {
    warehouses: i64,
    items: i64,
}

impl Scale {
    /// Returns the number of customers of a district.
    fn customers(&self) -> i64 {
        (self.items * 3 / 100).max(3)
    }
}
