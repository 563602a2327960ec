//! TPC-C's NewOrder and Payment, as calls of functions of entities.
//!
//! There are `--warehouses` (10), each with 10 districts of 3,000 customers and a stock of 100,000 items
//! (`--items`; customers are 3 for every 100 items). 51 % of the calls are NewOrder, the others Payment:
//!
//! | function | what it does |
//! | --- | --- |
//! | `district.new_order` | takes an order of 5 to 15 lines: numbers it, inserts it with its lines, takes each line's quantity from the stock that supplies it, and returns what it comes to. 1 % of the lines come from another warehouse; 1 % of the orders name an item that there is not, and abort |
//! | `warehouse.pay` | a customer pays 1 to 5,000: the sums of warehouse, district and customer, a row of history, and, of customers with bad credit, a note. 60 % are named by their last name, of whom the middle one by first name is meant; 15 % are customers of another warehouse |
//!
//! Keys begin with the warehouse, which chooses the partition; customers and items are drawn with NURand 1023,
//! 255 and 8191. Amounts are cents, rates are hundredths of a percent. Left out are columns that neither
//! function reads or writes (addresses, names of items), the texts that orders copy from the stock, and orders
//! that are there at the beginning: districts begin with order 1.
//!
//! What must hold: every row of every table is the one of the baseline, a straight loop over maps, and the
//! consistency conditions 1 to 4 of the specification: the sums of a warehouse's districts are its own; the
//! next order of a district is the one after its newest, and after its newest open one; open orders have no
//! gaps; and orders have as many lines as they say.
//!
//! | file | what it is |
//! | --- | --- |
//! | `calls` | the generator |
//! | `program` | the tables, and the functions in Rust |
//! | `straight` | the baseline, and what tables must be |
//! | `run` | all of it as the harness takes it |
//! | `load` | the same for several processes |

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

/// Districts of a warehouse.
const DISTRICTS: i64 = 10;
/// Why an order aborts.
const NO_ITEM: &str = "item number is not valid";
/// Notes of customers with bad credit are so long at most.
const NOTE_MAX: usize = 500;

/// How much there is.
#[derive(Clone, Copy, Debug)]
struct Scale {
    warehouses: i64,
    items: i64,
}

impl Scale {
    /// Customers of a district.
    fn customers(&self) -> i64 {
        (self.items * 3 / 100).max(3)
    }
}
