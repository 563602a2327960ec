//! The events of Stock Exchange Analysis.

use crate::args::Args;
use crate::events::Events;
use crate::keys::Keys;
use crate::rng::Rng;

/// The number of stocks.
const STOCKS: u64 = 1000;
/// The largest amount.
const AMOUNT_MAX: u64 = 100;
/// The highest price.
const PRICE_MAX: u64 = 10_000;

/// A quote or a trade, packed for the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuple {
    pub(super) user: u32,
    pub(super) stock: u16,
    pub(super) price: u16,
    pub(super) amount: u8,
    /// The number of its stream.
    pub(super) side: u8,
}

impl Tuple {
    /// Returns the amount times the price.
    #[inline(always)]
    pub(super) fn value(&self) -> i64 {
        i64::from(self.amount) * i64::from(self.price)
    }
}

/// Generates the events of a run from the options.
pub(super) fn generate(args: &Args) -> Vec<Tuple> {
    let mut rng = Rng::new(args.seed);
    let mut users = Keys::new(args, args.skew, rng.next_u64());
    let tuple = |_| {
        let impossible = rng.unit() < args.abort;
        let (user, stock) = (users.draw(&mut rng), rng.below(STOCKS) as u16);
        let (amount, price) = (1 + rng.below(AMOUNT_MAX) as u8, 1 + rng.below(PRICE_MAX) as u16);
        let side = rng.below(2) as u8;
        Tuple { user, stock, price, amount: if impossible { 0 } else { amount }, side }
    };
    (0..args.events()).map(tuple).collect()
}

impl Events for Vec<Tuple> {
    fn count(&self) -> usize {
        self.len()
    }

    fn stream(&self, at: usize) -> usize {
        self[at].side.into()
    }

    fn words(&self, at: usize) -> impl Iterator<Item = i64> {
        let Tuple { user, stock, price, amount, .. } = self[at];
        [at as i64, stock.into(), user.into(), amount.into(), price.into()].into_iter()
    }
}
