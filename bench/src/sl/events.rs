//! The events of Streaming Ledger.

use std::sync::Arc;

use tidemill_core::batch::ColumnBuilder;
use tidemill_core::{Batch, BatchBuilder, Schema, SourceId, StreamId};
use tidemill_txn::order::{CutInput, Run};

use super::{AMOUNT, IMPOSSIBLE};
use crate::args::Args;
use crate::rng::Rng;
use crate::zipf::Zipf;

/// An event, packed for the baseline: a deposit has its own account and asset as destination.
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

/// The events of a run: a function of the options. Their times are 0, 1, 2 and so on.
pub(crate) fn generate(args: &Args) -> Vec<Event> {
    let mut rng = Rng::new(args.seed);
    let accounts = Zipf::new(args.keys, args.skew, rng.next_u64());
    let assets = Zipf::new(args.keys, args.skew, rng.next_u64());
    let other = |zipf: &Zipf, rng: &mut Rng, than: u32| loop {
        // A transfer to its own source is no transfer.
        let key = zipf.draw(rng);
        if key != than {
            return key;
        }
    };
    (0..args.events)
        .map(|_| {
            let deposit = rng.unit() * 100.0 < args.deposits;
            let impossible = rng.unit() < args.abort;
            let (account, asset) = (accounts.draw(&mut rng), assets.draw(&mut rng));
            if deposit {
                return Event {
                    account,
                    asset,
                    to_account: account,
                    to_asset: asset,
                    amount: AMOUNT,
                };
            }
            let to_account = other(&accounts, &mut rng, account);
            let to_asset = other(&assets, &mut rng, asset);
            let amount = if impossible { IMPOSSIBLE } else { AMOUNT };
            Event { account, asset, to_account, to_asset, amount }
        })
        .collect()
}

/// Where the sequencer finds the two streams: ids and schemas.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    pub(crate) deposits: (StreamId, Arc<Schema>),
    pub(crate) transfers: (StreamId, Arc<Schema>),
}

/// Decoded events, cut into epochs.
#[derive(Debug)]
pub(crate) struct Arrivals(Vec<CutInput>);

impl Arrivals {
    /// The events with a cut after every `epoch` of them.
    pub(crate) fn of(events: &[Event], epoch: usize, inputs: &Inputs) -> Arrivals {
        Arrivals(cuts(events, epoch, inputs).collect())
    }

    /// What the sequencer is told at each cut. The columns are shared, the rest is copied.
    pub(crate) fn cuts(&self) -> impl Iterator<Item = CutInput> + use<> {
        let copy = |input: &CutInput| CutInput {
            runs: input.runs.clone(),
            offsets: input.offsets.clone(),
            times_max: input.times_max.clone(),
            clock_us: input.clock_us,
            idle: Vec::new(),
            ended: input.ended.clone(),
        };
        self.0.iter().map(copy).collect::<Vec<_>>().into_iter()
    }
}

/// The events as the sequencer is told of them, with a cut after every `epoch`, decoded when asked
/// for.
pub(crate) fn cuts<'a>(
    events: &'a [Event],
    epoch: usize,
    inputs: &'a Inputs,
) -> impl Iterator<Item = CutInput> + 'a {
    let deposits = events.iter().filter(|e| e.is_deposit()).count() as u64;
    let all = [deposits, events.len() as u64 - deposits];
    let (mut offsets, mut times_max) = ([0u64; 2], [None; 2]);
    events.chunks(epoch).enumerate().map(move |(index, chunk)| {
        let first = (index * epoch) as i64;
        let mut sides = [Side::new(&inputs.deposits), Side::new(&inputs.transfers)];
        for (at, event) in (first..).zip(chunk) {
            let source = usize::from(!event.is_deposit());
            sides[source].push(at, event, offsets[source]);
            offsets[source] += 1;
            times_max[source] = Some(at);
        }
        // A source that has nothing more to come holds nothing back.
        let ended = [0, 1].into_iter().filter(|s| offsets[*s] == all[*s]);
        let [deposits, transfers] = sides;
        let deposits = deposits.finish(SourceId(0), inputs.deposits.0);
        let transfers = transfers.finish(SourceId(1), inputs.transfers.0);
        CutInput {
            runs: deposits.into_iter().chain(transfers).collect(),
            offsets: offsets.to_vec(),
            times_max: times_max.to_vec(),
            clock_us: index as i64,
            idle: Vec::new(),
            ended: ended.map(|s| SourceId(s as u32)).collect(),
        }
    })
}

/// The events of one stream as they are decoded.
pub(crate) struct Side {
    builder: BatchBuilder,
    offsets: Vec<u64>,
    times: Vec<i64>,
}

impl Side {
    pub(crate) fn new((_, schema): &(StreamId, Arc<Schema>)) -> Side {
        Side { builder: BatchBuilder::new(schema.clone()), offsets: Vec::new(), times: Vec::new() }
    }

    pub(crate) fn push(&mut self, at: i64, event: &Event, offset: u64) {
        let words = words(at, event);
        for (column, word) in self.builder.columns_mut().iter_mut().zip(words) {
            let ColumnBuilder::Int(column) = column else { unreachable!("all columns are words") };
            column.append_value(word);
        }
        self.builder.advance(1);
        self.offsets.push(offset);
        self.times.push(at);
    }

    /// The events so far, and none again.
    pub(crate) fn batch(&mut self) -> Batch {
        self.builder.finish()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.builder.len()
    }

    fn finish(mut self, source: SourceId, stream: StreamId) -> Option<Run> {
        let batch: Batch = self.builder.finish();
        let (offsets, times) = (self.offsets, self.times);
        (!batch.is_empty()).then_some(Run { stream, source, batch, offsets, times, admitted: None })
    }
}

/// The columns of an event's row; of a deposit the first four.
fn words(at: i64, event: &Event) -> [i64; 6] {
    let [account, asset, to_account, to_asset] =
        [event.account, event.asset, event.to_account, event.to_asset].map(i64::from);
    match event.is_deposit() {
        true => [at, account, asset, event.amount, 0, 0],
        false => [at, account, asset, to_account, to_asset, event.amount],
    }
}
