//! JSON to msgpack and back, for columns of type any.

use std::io::Write as _;

use tidemill_core::msgpack::Extension;
pub(crate) use tidemill_core::msgpack::{
    get, insert_head, length, put_bytes, put_float, put_int, put_negative, put_str, put_timestamp,
    put_unsigned, unsigned, DEPTH_MAX,
};
use tidemill_core::value::format_timestamp;

use crate::json;
use crate::text::{self, quoted};

/// Appends a JSON value, which was checked to be JSON, as msgpack.
pub(crate) fn from_json(raw: &str, out: &mut Vec<u8>) -> Result<(), String> {
    let mut json = Json { text: raw, at: 0 };
    json.value(out, DEPTH_MAX)?;
    json.space();
    if json.at == raw.len() {
        Ok(())
    } else {
        Err(json.wrong())
    }
}

struct Json<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Json<'a> {
    // This is only for unchecked input. The decoder must not trust its caller blindly.
    fn wrong(&self) -> String {
        format!("{} is not JSON at byte {}", quoted(self.text), self.at)
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes this byte after white space, if it is there.
    fn take(&mut self, byte: u8) -> bool {
        self.space();
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, out: &mut Vec<u8>, depth: usize) -> Result<(), String> {
        self.space();
        if depth == 0 {
            return Err(format!("nested more than {DEPTH_MAX} deep"));
        }
        match self.peek() {
            Some(b'[') => self.array(out, depth),
            Some(b'{') => self.object(out, depth),
            Some(b'"') => {
                let raw = self.string()?;
                put_str(&json::string(raw)?, out);
                Ok(())
            }
            Some(_) => self.scalar(out),
            None => Err(self.wrong()),
        }
    }

    fn array(&mut self, out: &mut Vec<u8>, depth: usize) -> Result<(), String> {
        let start = out.len();
        let mut items = 0;
        self.at += 1;
        if !self.take(b']') {
            loop {
                self.value(out, depth - 1)?;
                items += 1;
                if self.take(b']') {
                    break;
                }
                if !self.take(b',') {
                    return Err(self.wrong());
                }
            }
        }
        insert_head(out, start, items, 0x90, 0xdc)
    }

    fn object(&mut self, out: &mut Vec<u8>, depth: usize) -> Result<(), String> {
        let start = out.len();
        let mut keys = Vec::new();
        self.at += 1;
        if !self.take(b'}') {
            loop {
                self.space();
                let raw = self.string()?;
                let key = json::string(raw)?;
                put_str(&key, out);
                keys.push(key);
                if !self.take(b':') {
                    return Err(self.wrong());
                }
                self.value(out, depth - 1)?;
                if self.take(b'}') {
                    break;
                }
                if !self.take(b',') {
                    return Err(self.wrong());
                }
            }
        }
        let entries = keys.len();
        keys.sort_unstable();
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("the key {} is there twice", quoted(&pair[0])));
        }
        insert_head(out, start, entries, 0x80, 0xde)
    }

    /// Takes a string with its quotes.
    fn string(&mut self) -> Result<&'a str, String> {
        let start = self.at;
        if self.peek() != Some(b'"') {
            return Err(self.wrong());
        }
        let rest = &self.text.as_bytes()[start + 1..];
        let mut escaped = false;
        for (i, byte) in rest.iter().enumerate() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    self.at = start + i + 2;
                    return Ok(&self.text[start..self.at]);
                }
                _ => {}
            }
        }
        Err(self.wrong())
    }

    fn scalar(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        let rest = &self.text[self.at..];
        let end = rest.find([',', ']', '}', ' ', '\t', '\n', '\r']).unwrap_or(rest.len());
        let token = &rest[..end];
        match token {
            "null" => out.push(0xc0),
            "false" => out.push(0xc2),
            "true" => out.push(0xc3),
            _ if !token.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => {
                return Err(self.wrong())
            }
            _ if token.contains(['.', 'e', 'E']) || token == "-0" => {
                out.push(0xcb);
                out.extend_from_slice(&text::float(token)?.to_bits().to_be_bytes());
            }
            _ => match (token.parse::<i64>(), token.parse::<u64>()) {
                (Ok(int), _) if int < 0 => put_negative(int, out),
                (_, Ok(int)) => put_unsigned(int, out),
                // A float would hold a number other than the one that was sent.
                _ => return Err(format!("{} has more than 64 bits", quoted(token))),
            },
        }
        self.at += end;
        Ok(())
    }
}

/// Appends a msgpack value as JSON. Bytes that are not one msgpack value become a `0x…` string.
pub(crate) fn to_json(bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    let mut input = bytes;
    if write_one(&mut input, out, DEPTH_MAX).is_none() || !input.is_empty() {
        out.truncate(start);
        write_bytes(bytes, out);
    }
}

fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    json::bytes_text(bytes, out);
    out.push(b'"');
}

fn write_one(input: &mut &[u8], out: &mut Vec<u8>, depth: usize) -> Option<()> {
    if depth == 0 {
        return None;
    }
    let tag = get(input, 1)?[0];
    match tag {
        0x00..=0x7f => write!(out, "{tag}").ok(),
        0xe0..=0xff => write!(out, "{}", tag as i8).ok(),
        0x80..=0x8f => write_map(input, usize::from(tag & 15), out, depth),
        0x90..=0x9f => write_array(input, usize::from(tag & 15), out, depth),
        0xa0..=0xbf => write_str(input, usize::from(tag & 31), out),
        0xc0 => out.write_all(b"null").ok(),
        0xc1 => None,
        0xc2 => out.write_all(b"false").ok(),
        0xc3 => out.write_all(b"true").ok(),
        0xc4..=0xc6 => {
            let len = length(input, 1 << (tag - 0xc4))?;
            write_bytes(get(input, len)?, out);
            Some(())
        }
        0xc7..=0xc9 => {
            let len = length(input, 1 << (tag - 0xc7))?;
            write_extension(get(input, len.checked_add(1)?)?, out)
        }
        0xca => {
            json::write_float(f32::from_bits(unsigned(input, 4)? as u32).into(), out);
            Some(())
        }
        0xcb => {
            json::write_float(f64::from_bits(unsigned(input, 8)?), out);
            Some(())
        }
        0xcc..=0xcf => write!(out, "{}", unsigned(input, 1 << (tag - 0xcc))?).ok(),
        0xd0..=0xd3 => {
            let len = 1 << (tag - 0xd0);
            let shift = 64 - 8 * len;
            write!(out, "{}", (unsigned(input, len)? << shift) as i64 >> shift).ok()
        }
        0xd4..=0xd8 => write_extension(get(input, 1 + (1 << (tag - 0xd4)))?, out),
        0xd9..=0xdb => {
            let len = length(input, 1 << (tag - 0xd9))?;
            write_str(input, len, out)
        }
        0xdc | 0xdd => {
            let len = length(input, 2 << (tag - 0xdc))?;
            write_array(input, len, out, depth)
        }
        0xde | 0xdf => {
            let len = length(input, 2 << (tag - 0xde))?;
            write_map(input, len, out, depth)
        }
    }
}

/// Writes an extension, given its kind and bytes: a time as ISO 8601, a decimal as its digits,
/// anything else as its bytes.
fn write_extension(bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    match Extension::read(bytes[0] as i8, &bytes[1..]) {
        Some(Extension::Timestamp(us)) => json::write_string(&format_timestamp(us), out),
        Some(Extension::Decimal(text)) => json::write_string(text, out),
        None => write_bytes(bytes, out),
    }
    Some(())
}

fn write_str(input: &mut &[u8], len: usize, out: &mut Vec<u8>) -> Option<()> {
    json::write_string(std::str::from_utf8(get(input, len)?).ok()?, out);
    Some(())
}

fn write_array(input: &mut &[u8], len: usize, out: &mut Vec<u8>, depth: usize) -> Option<()> {
    out.push(b'[');
    for i in 0..len {
        if i > 0 {
            out.push(b',');
        }
        write_one(input, out, depth - 1)?;
    }
    out.push(b']');
    Some(())
}

fn write_map(input: &mut &[u8], len: usize, out: &mut Vec<u8>, depth: usize) -> Option<()> {
    out.push(b'{');
    for i in 0..len {
        if i > 0 {
            out.push(b',');
        }
        let (before, start) = (*input, out.len());
        write_one(input, out, depth - 1)?;
        // A key that is not a string becomes the text of its JSON, or its bytes if that has escapes
        // already. Escapes of escapes would double with each level of keys.
        if out.get(start) != Some(&b'"') {
            let key = String::from_utf8(out.split_off(start)).ok()?;
            match key.contains('\\') {
                true => write_bytes(&before[..before.len() - input.len()], out),
                false => json::write_string(&key, out),
            }
        }
        out.push(b':');
        write_one(input, out, depth - 1)?;
    }
    out.push(b'}');
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn msgpack(json: &str) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        from_json(json, &mut out).map(|()| out)
    }

    fn json(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        to_json(bytes, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn known_bytes() {
        let cases: [(&str, &[u8]); 12] = [
            ("null", &[0xc0]),
            ("127", &[0x7f]),
            ("128", &[0xcc, 0x80]),
            ("65536", &[0xce, 0, 1, 0, 0]),
            ("18446744073709551615", &[0xcf, 255, 255, 255, 255, 255, 255, 255, 255]),
            ("-32", &[0xe0]),
            ("-33", &[0xd0, 0xdf]),
            ("-129", &[0xd1, 0xff, 0x7f]),
            ("1.5", &[0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0]),
            ("[]", &[0x90]),
            (r#"{"a":[true,"é\n"]}"#, &[0x81, 0xa1, b'a', 0x92, 0xc3, 0xa3, 0xc3, 0xa9, b'\n']),
            ("{}", &[0x80]),
        ];
        for (text, bytes) in cases {
            assert_eq!(msgpack(text).as_deref(), Ok(bytes), "{text}");
            assert_eq!(json(bytes), text);
        }
        assert_eq!(json(&[0xc4, 1, 7]), "\"0x07\"");
        assert_eq!(json(&[0x81, 1, 2]), r#"{"1":2}"#);
        assert_eq!(json(&[0x81, 0x91, 0xa1, b'a', 2]), r#"{"[\"a\"]":2}"#);
        assert_eq!(json(&[0x81, 0x91, 0xa1, b'"', 2]), r#"{"0x91a122":2}"#);
        assert_eq!(json(&[0x92, 1]), "\"0x9201\"", "damaged");
        assert_eq!(json(&[0xdf, 255, 255, 255, 255]), "\"0xdfffffffff\"", "a wild length");
    }

    #[test]
    fn refused() {
        assert!(msgpack("18446744073709551616").unwrap_err().contains("64 bits"));
        assert!(msgpack("1e999").unwrap_err().contains("out of range"));
        assert!(msgpack(r#"{"a":1,"\u0061":2}"#).unwrap_err().contains("twice"));
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert!(msgpack(&deep).unwrap_err().contains("deep"));
        assert!(json(&vec![0x91; 500]).starts_with("\"0x91"));
        for text in ["", "[", "[1", "{", "{\"a\"", "{\"a\":", "\"a", "x", "[1 2]", "1 1", "é"] {
            assert!(msgpack(text).is_err(), "{text}");
        }
    }

    /// The text of a key was escaped once for each level of keys around it.
    #[test]
    fn keys_of_keys_do_not_grow_beyond_measure() {
        let mut bytes = vec![0x81; DEPTH_MAX - 1];
        bytes.extend_from_slice(&[7; DEPTH_MAX]);
        let text = json(&bytes);
        assert!(text.starts_with("{\"0x81") && text.len() < 10 * bytes.len(), "{text}");
    }

    proptest! {
        #[test]
        fn any_bytes_become_json(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let text = json(&bytes);
            prop_assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{}", text);
        }

        #[test]
        fn any_text_is_taken_or_refused(text in "[\\[\\]{}\",:0-9a\\\\ .e-]{0,20}") {
            if msgpack(&text).is_err() {
                return Ok(());
            }
        }

        #[test]
        fn integers_come_back(int: i64) {
            prop_assert_eq!(json(&msgpack(&int.to_string()).unwrap()), int.to_string());
        }
    }
}
