//! The events of Streaming Ledger.

use std::sync::Arc;

use tidemill_core::{Batch, BatchBuilder, Schema, SourceId, StreamId, Value};
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

/// What came between two cuts, decoded.
#[derive(Debug)]
struct Arrival {
    deposits: Option<Run>,
    transfers: Option<Run>,
    offsets: Vec<u64>,
    times_max: Vec<Option<i64>>,
    ended: Vec<SourceId>,
}

/// Decoded events, cut into epochs.
#[derive(Debug)]
pub(crate) struct Arrivals(Vec<Arrival>);

impl Arrivals {
    /// The events with a cut after every `epoch` of them.
    pub(crate) fn of(events: &[Event], epoch: usize, inputs: &Inputs) -> Arrivals {
        let all = [
            events.iter().filter(|e| e.is_deposit()).count() as u64,
            events.iter().filter(|e| !e.is_deposit()).count() as u64,
        ];
        let (mut offsets, mut times_max) = ([0u64; 2], [None; 2]);
        let arrivals = events.chunks(epoch).enumerate().map(|(index, chunk)| {
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
            let ended = ended.map(|s| SourceId(s as u32)).collect();
            let [deposits, transfers] = sides;
            Arrival {
                deposits: deposits.finish(SourceId(0), inputs.deposits.0),
                transfers: transfers.finish(SourceId(1), inputs.transfers.0),
                offsets: offsets.to_vec(),
                times_max: times_max.to_vec(),
                ended,
            }
        });
        Arrivals(arrivals.collect())
    }

    /// What the sequencer is told at each cut. The columns are shared, the rest is copied.
    pub(crate) fn cuts(&self) -> Vec<CutInput> {
        let cut = |(index, arrival): (usize, &Arrival)| CutInput {
            runs: arrival.deposits.iter().chain(&arrival.transfers).cloned().collect(),
            offsets: arrival.offsets.clone(),
            times_max: arrival.times_max.clone(),
            clock_us: index as i64,
            idle: Vec::new(),
            ended: arrival.ended.clone(),
        };
        self.0.iter().enumerate().map(cut).collect()
    }
}

/// The events of one stream as they are decoded.
struct Side {
    builder: BatchBuilder,
    offsets: Vec<u64>,
    times: Vec<i64>,
}

impl Side {
    fn new((_, schema): &(StreamId, Arc<Schema>)) -> Side {
        Side { builder: BatchBuilder::new(schema.clone()), offsets: Vec::new(), times: Vec::new() }
    }

    fn push(&mut self, at: i64, event: &Event, offset: u64) {
        self.builder.push(&row(at, event));
        self.offsets.push(offset);
        self.times.push(at);
    }

    fn finish(mut self, source: SourceId, stream: StreamId) -> Option<Run> {
        let batch: Batch = self.builder.finish();
        let (offsets, times) = (self.offsets, self.times);
        (!batch.is_empty()).then_some(Run { stream, source, batch, offsets, times, admitted: None })
    }
}

/// An event as a row of its stream.
pub(crate) fn row(at: i64, event: &Event) -> Vec<Value> {
    let int = |key: u32| Value::Int(i64::from(key));
    let at = Value::Timestamp(at);
    let amount = Value::Int(event.amount);
    if event.is_deposit() {
        vec![at, int(event.account), int(event.asset), amount]
    } else {
        let (from, to) = (int(event.account), int(event.to_account));
        vec![at, from, int(event.asset), to, int(event.to_asset), amount]
    }
}
