//! The common part of all stages: taking parcels from the input, and sending on the results.

use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::progress::operate::FrontierInterest;

use tidemill_core::Result;

use crate::load::{Item, What};
use crate::parcel::Parcel;
use crate::worker::{Hand, Loads};

/// Builds an operator that applies `step` to every parcel, and sends on its result. An error ends
/// the run.
pub(crate) fn stage<'scope>(
    name: &str,
    stream: Loads<'scope>,
    hand: &Hand,
    mut step: impl FnMut(Parcel) -> Result<Option<Parcel>> + 'static,
) -> Loads<'scope> {
    let mut builder = OperatorBuilder::new(name.to_owned(), stream.scope());
    let mut input = builder.new_input(stream, Pipeline);
    // A stateless step does not need progress.
    builder.set_notify_for(0, FrontierInterest::Never);
    let (mut output, stepped) = builder.new_output();
    let hand = hand.clone();
    builder.build(move |capabilities| {
        drop(capabilities);
        move |_frontiers| {
            input.for_each(|time, load| {
                let items = std::mem::take(&mut load.items);
                load.items =
                    items.into_iter().filter_map(|item| hand.step(item, &mut step)).collect();
                // Opening a session wakes the downstream operators, so it is opened only if there
                // are items.
                if !load.items.is_empty() {
                    output.activate().give(&time, load);
                }
            });
        }
    });
    stepped
}

impl Hand {
    /// Returns the item after a step, charged by its new size, or `None` if nothing is left.
    fn step(
        &self,
        item: Item,
        step: &mut impl FnMut(Parcel) -> Result<Option<Parcel>>,
    ) -> Option<Item> {
        let What::Rows(parcel) = item.what else {
            return Some(item);
        };
        let (source, stream) = (parcel.source, parcel.stream);
        let stepped = step(parcel).unwrap_or_else(|error| {
            self.fail(error);
            None
        });
        let charge = stepped.as_ref().map_or(0, Parcel::bytes);
        self.recharge(item.charge, charge);
        let what = What::Rows(Parcel { source, stream, ..stepped? });
        Some(Item { charge, what, ..item })
    }
}
