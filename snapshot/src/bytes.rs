//! Numbers as bytes: little-endian, and in a short form for lengths.

use xxhash_rust::xxh3::Xxh3;

/// Returns the checksum of all formats here: xxh3-64 of the concatenated parts.
pub(crate) fn checksum(parts: &[&[u8]]) -> u64 {
    match parts {
        [bytes] => xxhash_rust::xxh3::xxh3_64(bytes),
        _ => {
            let mut hasher = Xxh3::new();
            parts.iter().for_each(|bytes| hasher.update(bytes));
            hasher.digest()
        }
    }
}

/// Appends a number with seven bits a byte, the lowest first. The top bit says that more follow.
#[inline]
pub(crate) fn put_short(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads such a number at `at`, which moves past it; `None` if there is none.
#[inline(always)]
pub(crate) fn take_short(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let first = *bytes.get(*at)?;
    *at += 1;
    if first < 0x80 {
        return Some(u64::from(first));
    }
    take_longer(bytes, at, first)
}

fn take_longer(bytes: &[u8], at: &mut usize, first: u8) -> Option<u64> {
    let mut number = u64::from(first & 0x7f);
    for shift in (7..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Takes numbers and texts from the front of bytes; `None` if there are too few.
pub(crate) struct Taker<'a>(pub(crate) &'a [u8]);

impl<'a> Taker<'a> {
    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }

    /// Takes a number in the form of [`put_short`].
    pub(crate) fn short(&mut self) -> Option<u64> {
        let mut at = 0;
        let number = take_short(self.0, &mut at)?;
        self.bytes(at)?;
        Some(number)
    }

    /// Takes bytes after their length.
    pub(crate) fn counted(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u64()?).ok()?;
        self.bytes(len)
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.counted()?.to_vec()).ok()
    }
}

/// Appends bytes after their length.
pub(crate) fn put_counted(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_numbers_come_back() {
        for number in [0, 1, 127, 128, 300, 16_383, 16_384, 1 << 35, u64::MAX] {
            let mut bytes = Vec::new();
            put_short(number, &mut bytes);
            let mut at = 0;
            assert_eq!((take_short(&bytes, &mut at), at), (Some(number), bytes.len()));
            for cut in 0..bytes.len() {
                assert_eq!(take_short(&bytes[..cut], &mut 0), None);
            }
        }
        assert_eq!(take_short(&[0xff; 9], &mut 0), None);
        assert_eq!(take_short(&[0xff; 12], &mut 0), None, "more than 64 bits");
    }
}
