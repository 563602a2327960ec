//! The events of Streaming Ledger.

use super::mix::{mixes, Mix};
use super::{AMOUNT, IMPOSSIBLE};
use crate::args::Args;
use crate::events::Events;
use crate::keys::Keys;
use crate::rng::Rng;

/// An event, packed for the baseline. A deposit has its own account and asset as destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) account: u32,
    pub(crate) asset: u32,
    pub(crate) to_account: u32,
    pub(crate) to_asset: u32,
    pub(crate) amount: i64,
}

impl Event {
    #[inline(always)]
    pub(crate) fn is_deposit(&self) -> bool {
        self.account == self.to_account
    }
}

/// Generates the events of a run from the options. Their times are 0, 1, 2 and so on.
pub(crate) fn generate(args: &Args) -> Vec<Event> {
    let mut rng = Rng::new(args.seed);
    let mut events = Vec::with_capacity(args.events());
    for mix in mixes(args) {
        let mut accounts = Keys::new(args, mix.skew, rng.next_u64());
        let mut assets = Keys::new(args, mix.skew, rng.next_u64());
        let made = (0..mix.events).map(|_| event(&mix, &mut accounts, &mut assets, &mut rng));
        events.extend(made);
    }
    events
}

fn event(mix: &Mix, accounts: &mut Keys, assets: &mut Keys, rng: &mut Rng) -> Event {
    let deposit = rng.unit() * 100.0 < mix.deposits;
    let impossible = rng.unit() < mix.abort;
    let (account, asset) = (accounts.draw(rng), assets.draw(rng));
    if deposit {
        let (to_account, to_asset) = (account, asset);
        return Event { account, asset, to_account, to_asset, amount: AMOUNT };
    }
    // The destination must differ from the source.
    let to_account = accounts.draw_other(rng, &[account]);
    let to_asset = assets.draw_other(rng, &[asset]);
    let amount = if impossible { IMPOSSIBLE } else { AMOUNT };
    Event { account, asset, to_account, to_asset, amount }
}

impl Events for Vec<Event> {
    fn count(&self) -> usize {
        self.len()
    }

    fn stream(&self, at: usize) -> usize {
        usize::from(!self[at].is_deposit())
    }

    fn words(&self, at: usize) -> impl Iterator<Item = i64> {
        words(at as i64, &self[at]).into_iter()
    }
}

/// Returns the columns of an event's row. A deposit has only the first four.
fn words(at: i64, event: &Event) -> [i64; 6] {
    let [account, asset, to_account, to_asset] =
        [event.account, event.asset, event.to_account, event.to_asset].map(i64::from);
    match event.is_deposit() {
        true => [at, account, asset, event.amount, 0, 0],
        false => [at, account, asset, to_account, to_asset, event.amount],
    }
}
