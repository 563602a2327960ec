//! The container that moves through timely: parcels and reports, typed inside a process, and
//! encoded between processes.

use std::cell::OnceCell;
use std::io::Write;

use tidemill_core::{wire, Error, Result};
use timely::bytes::arc::Bytes;
use timely::dataflow::channels::ContainerBytes;
use timely::Accountable;

use crate::codec;
use crate::parcel::{Parcel, Report};

/// A parcel or a report, and the gate that it is charged to.
#[derive(Debug)]
pub(crate) struct Item {
    /// The process whose gate counts its bytes.
    pub(crate) process: u32,
    /// The bytes counted there.
    pub(crate) charge: u64,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Rows(Parcel),
    Report(Report),
    /// Bytes from another process that could not be read.
    Broken(Error),
}

impl What {
    /// Returns the memory that it holds, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            What::Rows(parcel) => parcel.bytes(),
            What::Report(report) => report.bytes(),
            What::Broken(_) => 0,
        }
    }
}

/// The items that are sent at once.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub(crate) items: Vec<Item>,
    /// The encoding. Timely asks for its length first and then for the bytes, so it is made once.
    encoded: OnceCell<Vec<u8>>,
}

impl Load {
    pub(crate) fn new(items: Vec<Item>) -> Load {
        Load { items, encoded: OnceCell::new() }
    }

    fn encoded(&self) -> &[u8] {
        self.encoded.get_or_init(|| {
            // The length comes first, because timely needs multiples of eight bytes.
            let mut out = vec![0; 8];
            wire::put_u32(self.items.len() as u32, &mut out);
            for item in &self.items {
                wire::put_u32(item.process, &mut out);
                wire::put_u64(item.charge, &mut out);
                match &item.what {
                    What::Rows(parcel) => {
                        out.push(0);
                        codec::encode_parcel(parcel, &mut out);
                    }
                    What::Report(report) => {
                        out.push(1);
                        codec::encode_report(report, &mut out);
                    }
                    What::Broken(_) => out.push(2),
                }
            }
            let len = out.len() as u64;
            out[..8].copy_from_slice(&len.to_le_bytes());
            out.resize(out.len().next_multiple_of(8), 0);
            out
        })
    }

    fn decode(mut input: &[u8]) -> Result<Vec<Item>> {
        let whole = input;
        let len = usize::try_from(codec::take_u64(&mut input)?).unwrap_or(usize::MAX);
        let end = whole.get(8..len).ok_or_else(codec::damaged)?;
        input = end;
        let count = codec::take_u32(&mut input)?;
        let mut items = Vec::new();
        for _ in 0..count {
            let process = codec::take_u32(&mut input)?;
            let charge = codec::take_u64(&mut input)?;
            let what = match codec::take_u8(&mut input)? {
                0 => What::Rows(codec::decode_parcel(&mut input)?),
                1 => What::Report(codec::decode_report(&mut input)?),
                _ => return Err(codec::damaged()),
            };
            items.push(Item { process, charge, what });
        }
        Ok(items)
    }
}

impl Accountable for Load {
    fn record_count(&self) -> i64 {
        self.items.len() as i64
    }
}

impl ContainerBytes for Load {
    fn from_bytes(bytes: Bytes) -> Load {
        // This function can't fail, so the damage travels on to an operator that can.
        let broken = |e| vec![Item { process: 0, charge: 0, what: What::Broken(e) }];
        Load::new(Load::decode(&bytes).unwrap_or_else(broken))
    }

    fn length_in_bytes(&self) -> usize {
        self.encoded().len()
    }

    fn into_bytes<W: Write>(&self, writer: &mut W) {
        writer.write_all(self.encoded()).expect("timely's buffer is as long as we said");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_core::{LateRow, SourceId};

    #[test]
    fn loads_come_back_and_damage_is_found() {
        let report = Report {
            source: SourceId(3),
            next_offset: 9,
            rows: 2,
            time_max: Some(-4),
            late: vec![LateRow { offset: 7, time_us: -9, bound_us: -4 }],
            ended: true,
            bad: vec![],
        };
        let load = Load::new(vec![
            Item { process: 1, charge: 77, what: What::Report(report.clone()) },
            Item { process: 2, charge: 0, what: What::Report(report.clone()) },
        ]);
        let mut bytes = Vec::new();
        load.into_bytes(&mut bytes);
        assert_eq!(bytes.len(), load.length_in_bytes());
        assert_eq!(bytes.len() % 8, 0);
        let items = Load::decode(&bytes).unwrap();
        assert_eq!((items[0].process, items[0].charge), (1, 77));
        assert!(matches!(&items[1].what, What::Report(r) if *r == report));
        assert!(Load::decode(&bytes[..bytes.len() - 8]).is_err());
        assert!(Load::decode(&bytes[..4]).is_err());
    }
}
