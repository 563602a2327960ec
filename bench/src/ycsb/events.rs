//! The transfers of YCSB-T.

use crate::args::Args;
use crate::events::Events;
use crate::rng::Rng;
use crate::zipf::Zipf;

/// More than any account will have.
const TOO_MUCH: i64 = 1 << 40;

/// A transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub(super) debtor: u32,
    pub(super) creditor: u32,
    pub(super) amount: i64,
}

/// Generates the transfers of a run from the options.
pub(super) fn generate(args: &Args) -> Vec<Transfer> {
    let mut rng = Rng::new(args.seed);
    let creditors = Zipf::new(args.keys, args.skew, rng.next_u64());
    let transfer = |_| {
        let amount = if rng.unit() < args.abort { TOO_MUCH } else { 1 };
        let debtor = rng.below(args.keys as u64) as u32;
        let creditor = std::iter::repeat_with(|| creditors.draw(&mut rng));
        let creditor = creditor.into_iter().find(|creditor| *creditor != debtor);
        Transfer { debtor, creditor: creditor.expect("there are two"), amount }
    };
    (0..args.events()).map(transfer).collect()
}

impl Events for Vec<Transfer> {
    fn count(&self) -> usize {
        self.len()
    }

    fn stream(&self, _: usize) -> usize {
        0
    }

    /// Calls have no event time: order is that of arrival.
    fn words(&self, at: usize) -> impl Iterator<Item = i64> {
        let Transfer { debtor, creditor, amount } = self[at];
        [debtor.into(), creditor.into(), amount].into_iter()
    }
}
