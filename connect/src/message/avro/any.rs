//! Values of Avro as msgpack, for columns of type any.
//!
//! They become the same as equal values in JSON: records and maps are maps, decimals and times
//! their text. Bytes stay bytes.

use tidemill_core::msgpack::check;
use tidemill_core::value::format_timestamp;

use super::decimal;
use super::read::{deeper, uuid, Reader};
use super::schema::{Kind, Logical};
use crate::message::unpack::skip;
use crate::msgpack::{insert_head, put_bytes, put_float, put_int, put_str};
use crate::text::quoted;

impl Reader<'_> {
    /// Appends a value of a part of the schema as msgpack.
    pub fn any(&mut self, at: usize, out: &mut Vec<u8>, depth: usize) -> Result<(), String> {
        self.step()?;
        let at = self.branch(at)?;
        let schema = self.schema;
        let node = schema.node(at);
        if let Some(us) = self.instant(node.logical)? {
            put_str(&format_timestamp(us), out);
            return Ok(());
        }
        match (&node.kind, node.logical) {
            (Kind::Bytes, Logical::Msgpack) => {
                let bytes = self.bytes()?;
                let mut rest = bytes;
                if skip(&mut rest, depth).is_none() || !rest.is_empty() {
                    return Err("the bytes are not one value of msgpack".into());
                }
                check(bytes)?;
                out.extend_from_slice(bytes);
            }
            (Kind::Bytes, Logical::Decimal(scale)) => {
                self.names(scale as usize)?;
                put_str(&decimal::text(self.bytes()?, scale)?, out);
            }
            (Kind::Fixed(size), Logical::Decimal(scale)) => {
                self.names(scale as usize)?;
                put_str(&decimal::text(self.fixed(*size)?, scale)?, out);
            }
            (Kind::Fixed(_), Logical::Uuid) => put_str(&uuid(self.fixed(16)?), out),
            (Kind::Null, _) => out.push(0xc0),
            (Kind::Bool, _) => out.push(if self.bool()? { 0xc3 } else { 0xc2 }),
            (Kind::Int, _) => put_int(self.int()?, out),
            (Kind::Long, _) => put_int(self.long()?, out),
            (kind @ (Kind::Float | Kind::Double), _) => put_float(self.float(kind)?, out),
            (Kind::Bytes, _) => put_bytes(self.bytes()?, out),
            (Kind::Fixed(size), _) => put_bytes(self.fixed(*size)?, out),
            (Kind::Str, _) => put_str(self.text()?, out),
            (Kind::Enum(symbols), _) => {
                let symbol = self.symbol(symbols)?;
                self.names(symbol.len())?;
                put_str(symbol, out);
            }
            (Kind::Array(item), _) => {
                let (depth, start, mut items) = (deeper(depth)?, out.len(), 0);
                loop {
                    let (count, _) = self.block()?;
                    if count == 0 {
                        break;
                    }
                    for _ in 0..count {
                        self.any(*item, out, depth)?;
                        items += 1;
                    }
                }
                insert_head(out, start, items, 0x90, 0xdc)?;
            }
            (Kind::Map(item), _) => self.map(*item, out, depth)?,
            (Kind::Record(fields), _) => {
                let (depth, start) = (deeper(depth)?, out.len());
                for field in fields {
                    self.names(field.name.len())?;
                    put_str(&field.name, out);
                    self.any(field.node, out, depth)?;
                }
                insert_head(out, start, fields.len(), 0x80, 0xde)?;
            }
            (Kind::Union(_), _) => return Err("a union has a union in it".into()),
        }
        Ok(())
    }

    fn map(&mut self, item: usize, out: &mut Vec<u8>, depth: usize) -> Result<(), String> {
        let (depth, start, mut keys) = (deeper(depth)?, out.len(), Vec::new());
        loop {
            let (count, _) = self.block()?;
            if count == 0 {
                break;
            }
            for _ in 0..count {
                let key = self.text()?;
                put_str(key, out);
                keys.push(key);
                self.any(item, out, depth)?;
            }
        }
        let entries = keys.len();
        keys.sort_unstable();
        if let Some(two) = keys.windows(2).find(|two| two[0] == two[1]) {
            return Err(format!("the key {} is there twice", quoted(two[0])));
        }
        insert_head(out, start, entries, 0x80, 0xde)
    }
}
