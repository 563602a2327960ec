//! Lists of small integers in rows. An integer has seven bits per byte, the lower ones first; the
//! eighth bit says whether more follow. Lists are read, written and hashed for every word of a
//! tweet, so they are short.

use tidemill_core::Value;

/// Encodes integers, none of them negative, as a value of a row.
pub(super) fn pack(list: &[i64]) -> Value {
    let mut bytes = Vec::with_capacity(4 * list.len());
    for int in list {
        let mut rest = *int as u64;
        while rest >= 0x80 {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
    }
    Value::Bytes(bytes[..].into())
}

/// Decodes a value that [`pack`] has encoded.
pub(super) fn unpack(value: &Value) -> Vec<i64> {
    let Value::Bytes(bytes) = value else { unreachable!("{value} is in a column of bytes") };
    let mut list = Vec::with_capacity(bytes.len() / 2 + 2);
    let (mut int, mut shift) = (0u64, 0);
    for byte in bytes.iter() {
        int |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            list.push(int as i64);
            (int, shift) = (0, 0);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back() {
        let list = [0, 1, 127, 128, 16_383, 16_384, 60_000, i64::MAX];
        assert_eq!(unpack(&pack(&list)), list);
        assert!(unpack(&pack(&[])).is_empty());
    }
}
