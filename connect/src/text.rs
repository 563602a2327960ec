//! Values from text.

use std::borrow::Cow;
use std::num::IntErrorKind;

use tidemill_core::value::canonical_f64;
use tidemill_core::{rules, Value};

/// Shortens a text for a message to about `max` bytes.
pub(crate) fn shorten(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("{}…", cut(text, max.saturating_sub(3))))
    }
}

/// Returns the beginning of a text, at most `max` bytes.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Quotes and shortens a value for a message.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", shorten(text, 60))
}

/// Parses an integer: an optional sign and digits.
pub(crate) fn int(text: &str) -> Result<i64, String> {
    text.parse::<i64>().map_err(|e| match e.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => {
            format!("{} is out of range for int", quoted(text))
        }
        _ => format!("{} is not an integer", quoted(text)),
    })
}

/// Parses a float. Digits that exceed the largest float are refused and do not become infinite.
pub(crate) fn float(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("{} is not a number", quoted(text)))?;
    if value.is_infinite() && text.bytes().any(|b| b.is_ascii_digit()) {
        return Err(format!("{} is out of range for float", quoted(text)));
    }
    Ok(canonical_f64(value))
}

/// Parses a boolean.
pub(crate) fn bool(text: &str) -> Result<bool, String> {
    match text {
        "1" => Ok(true),
        "0" => Ok(false),
        _ if text.eq_ignore_ascii_case("true") => Ok(true),
        _ if text.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err(format!("{} is not a bool (true, false, 1 or 0)", quoted(text))),
    }
}

/// Parses bytes: `0x` and two hexadecimal digits for each.
pub(crate) fn bytes(text: &str, out: &mut Vec<u8>) -> Result<(), String> {
    let bad = || format!("{} is not bytes (0x and two hexadecimal digits each)", quoted(text));
    let digits = text.strip_prefix("0x").ok_or_else(bad)?.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return Err(bad());
    }
    let nibble = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    for pair in digits.chunks_exact(2) {
        match (nibble(pair[0]), nibble(pair[1])) {
            (Some(high), Some(low)) => out.push(high << 4 | low),
            _ => return Err(bad()),
        }
    }
    Ok(())
}

/// Parses a decimal into units: digits, which may have an exponent, never rounded.
pub(crate) fn decimal(text: &str, scale: u8) -> Result<i64, String> {
    if let Some(units) = short_decimal(text.as_bytes(), scale) {
        return Ok(units);
    }
    match rules::parse_number(text, scale) {
        Ok(Value::Decimal(units, _)) => Ok(units),
        Ok(_) => Err(format!("{} is not a decimal number", quoted(text))),
        // A text may be as long as a record, so the message must not contain all of it.
        Err(why) => Err(match why.rsplit_once("' ") {
            Some((_, why)) => format!("{} {why}", quoted(text)),
            None => why,
        }),
    }
}

/// Parses the usual case, several times faster than the rule: at most 18 digits and no exponent.
/// `None` leaves it to the rule, which gives the same results.
fn short_decimal(text: &[u8], scale: u8) -> Option<i64> {
    let (negative, digits) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        _ => (false, text),
    };
    if digits.len() > 19 {
        return None;
    }
    let mut units = 0i64;
    let mut seen = 0;
    let mut fraction = None;
    for &byte in digits {
        match byte {
            b'0'..=b'9' if seen < 18 => {
                units = units * 10 + i64::from(byte - b'0');
                seen += 1;
            }
            b'.' if fraction.is_none() => fraction = Some(seen),
            _ => return None,
        }
    }
    let missing = usize::from(scale).checked_sub(fraction.map_or(0, |at| seen - at))?;
    if seen == 0 || seen + missing > 18 {
        return None;
    }
    let units = units * 10i64.pow(missing as u32);
    Some(if negative { -units } else { units })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decimals() {
        assert_eq!(decimal("12.5", 2), Ok(1250));
        assert_eq!(decimal("-0.05", 2), Ok(-5));
        assert_eq!(decimal("1.2e2", 2), Ok(12000));
        assert_eq!(decimal("125e-1", 2), Ok(1250));
        assert_eq!(decimal("-.5e1", 1), Ok(-50));
        assert_eq!(
            decimal("1.005", 2),
            Err("'1.005' has more than 2 digits after the point".into())
        );
        assert_eq!(decimal("1e99", 2), Err("'1e99' is out of range for decimal(2)".into()));
        for bad in ["", "-", ".", "+", "1e", "e1", "1e1.5", "1_0", "1.2.3", "--1", "1 "] {
            assert!(decimal(bad, 2).unwrap_err().contains("not a decimal number"), "{bad}");
        }
        assert!(decimal("1e999999", 2).unwrap_err().contains("out of range"));
        assert!(decimal("1e99999999999999999999", 2).unwrap_err().contains("out of range"));
        for (zeros, tiny) in [(1, "1e-19"), (45, "-1e-40"), (99, "1e-99999999999999999999")] {
            assert!(decimal(tiny, 2).unwrap_err().contains("more than 2 digits"), "{tiny}");
            let text = format!("1.{}1", "0".repeat(zeros + 1));
            assert!(decimal(&text, 2).unwrap_err().contains("more than 2 digits"), "{text}");
            assert_eq!(decimal(&format!("1.{}", "0".repeat(zeros)), 2), Ok(100));
        }
        assert_eq!(decimal("0e-999999", 2), Ok(0));
        assert_eq!(decimal(&format!("12{}e-50", "0".repeat(49)), 2), Ok(120));
        assert_eq!(decimal("9223372036854775807", 0), Ok(i64::MAX));
        assert_eq!(decimal("-9223372036854775808", 0), Ok(i64::MIN));
    }

    #[test]
    fn floats() {
        assert_eq!(float("1e308"), Ok(1e308));
        assert_eq!(float("-inf"), Ok(f64::NEG_INFINITY));
        assert!(float("NaN").unwrap().is_nan());
        assert!(float("1e309").is_err());
        assert!(float("1_0").is_err());
        assert!(float("").is_err());
    }

    proptest! {
        #[test]
        fn the_short_way_is_the_rule(text in "-?[0-9]{0,12}\\.?[0-9]{0,12}", scale in 0u8..=18) {
            let rule = rules::parse_decimal(&text, scale).ok();
            let ours = decimal(&text, scale).ok().map(|units| Value::Decimal(units, scale));
            prop_assert_eq!(ours, rule);
        }
    }
}
