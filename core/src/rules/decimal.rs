//! Exact decimals from digits, or an error.

use crate::types::DataType;
use crate::value::Value;

/// The reason why a number is no decimal of some scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inexact {
    /// The number has more digits after the point.
    Digits,
    /// The number is too large.
    Range,
}

impl Inexact {
    /// Returns the error text for the number that is displayed as `shown`.
    pub fn message(self, shown: &str, scale: u8) -> String {
        match self {
            Inexact::Digits => format!("{shown} has more than {scale} digits after the point"),
            Inexact::Range => format!("{shown} is out of range for decimal({scale})"),
        }
    }
}

/// Returns the units that `digits` times ten to the power of `exponent` has in a decimal of this
/// scale.
///
/// The digits are 0 to 9, and there may be any number of them.
pub fn units(
    negative: bool,
    digits: impl IntoIterator<Item = u8>,
    exponent: i64,
    scale: u8,
) -> Result<i64, Inexact> {
    let (mut found, mut zeros, mut is_wide) = (0i128, 0i64, false);
    for digit in digits {
        if digit == 0 {
            // Zeros count when another digit follows, and at the end.
            zeros += i64::from(found != 0);
            continue;
        }
        let wider = power(zeros + 1).and_then(|power| found.checked_mul(power));
        match wider.and_then(|wider| wider.checked_add(i128::from(digit))) {
            Some(wider) => found = wider,
            None => is_wide = true,
        }
        zeros = 0;
    }
    if found == 0 {
        return Ok(0);
    }
    let shift = exponent.saturating_add(zeros).saturating_add(i64::from(scale));
    if shift < 0 {
        return Err(Inexact::Digits);
    }
    let magnitude = power(shift).and_then(|power| found.checked_mul(power));
    let signed = magnitude.map(|units| if negative { -units } else { units });
    let units = signed.and_then(|units| i64::try_from(units).ok()).filter(|_| !is_wide);
    units.ok_or(Inexact::Range)
}

/// Returns ten to the power of `n`, if it fits.
fn power(n: i64) -> Option<i128> {
    u32::try_from(n).ok().and_then(|n| 10i128.checked_pow(n))
}

/// A number in text form: its sign, its digits, and the exponent of the last digit.
struct Written<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    exponent: i64,
}

/// The largest exponent that is distinguished from larger ones: no text has so many digits.
const EXPONENT_MAX: i64 = 1 << 40;

impl Written<'_> {
    fn parse(text: &str, may_have_exponent: bool) -> Option<Written<'_>> {
        let (number, exponent) = match text.find(['e', 'E']).filter(|_| may_have_exponent) {
            Some(place) => (&text[..place], Written::exponent(&text[place + 1..])?),
            None => (text, 0),
        };
        let (negative, digits) = signed(number);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let are_digits = whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit());
        (are_digits && digits.len() > usize::from(digits.contains('.'))).then(|| Written {
            negative,
            whole,
            fraction,
            exponent: exponent - fraction.len() as i64,
        })
    }

    fn exponent(text: &str) -> Option<i64> {
        let (negative, digits) = signed(text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let next =
            |exponent: i64, byte: u8| (exponent * 10 + i64::from(byte - b'0')).min(EXPONENT_MAX);
        let exponent = digits.bytes().fold(0, next);
        Some(if negative { -exponent } else { exponent })
    }

    fn units(&self, scale: u8) -> Result<i64, Inexact> {
        let digits = self.whole.bytes().chain(self.fraction.bytes()).map(|byte| byte - b'0');
        units(self.negative, digits, self.exponent, scale)
    }

    /// Returns the number of digits after the point, at most 18: with and without zeros at the end.
    fn scales(&self) -> (u8, u8) {
        let scale = |exponent: i64| (-exponent).clamp(0, i64::from(DataType::SCALE_MAX)) as u8;
        let digits = self.whole.bytes().rev();
        let zeros = self.fraction.bytes().rev().chain(digits).take_while(|byte| *byte == b'0');
        (scale(self.exponent), scale(self.exponent.saturating_add(zeros.count() as i64)))
    }
}

fn signed(text: &str) -> (bool, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    }
}

fn parsed(text: &str, scale: u8, may_have_exponent: bool) -> Result<Value, String> {
    let written = Written::parse(text, may_have_exponent);
    let written = written.ok_or_else(|| format!("'{text}' is not a decimal number"))?;
    match written.units(scale) {
        Ok(units) => Ok(Value::Decimal(units, scale)),
        Err(why) => Err(why.message(&format!("'{text}'"), scale)),
    }
}

/// Reads a decimal from text: digits with an optional sign and point.
///
/// More digits after the point than `scale` are refused, unless they are zeros. So input is never
/// silently rounded.
pub fn parse_decimal(text: &str, scale: u8) -> Result<Value, String> {
    parsed(text, scale, false)
}

/// Reads a decimal as [`parse_decimal`] does, but the number may have an exponent.
pub fn parse_number(text: &str, scale: u8) -> Result<Value, String> {
    parsed(text, scale, true)
}

/// Reads a decimal with its own number of digits after the point. It may have an exponent.
///
/// After the first 18 digits there may be only zeros. Zeros at the end are dropped if the number
/// would not fit with them.
pub fn parse_any_decimal(text: &str) -> Result<Value, String> {
    let (all, needed) = Written::parse(text, true).map_or((0, 0), |written| written.scales());
    let mut scales = (needed..=all).rev().map(|scale| parsed(text, scale, true));
    let found = scales.find(Result::is_ok);
    found.unwrap_or_else(|| parsed(text, needed, true))
}

/// Whether a text is a decimal number, of any size.
pub fn is_number(text: &str) -> bool {
    Written::parse(text, true).is_some()
}

/// An exact conversion from decimals of one scale to those of another.
#[derive(Clone, Copy, Debug)]
pub struct Rescale {
    from: i8,
    to: u8,
    factor: i128,
    divisor: i128,
}

impl Rescale {
    /// Creates a conversion of numbers that are units divided by ten to the power of `from`.
    pub fn new(from: i8, to: u8) -> Rescale {
        let up = i64::from(to) - i64::from(from);
        // If a power does not fit, numbers are converted digit by digit.
        let of = |n: i64| power(n.max(0)).unwrap_or(0);
        Rescale { from, to, factor: of(up), divisor: of(-up) }
    }

    /// Returns the units in the other scale.
    #[inline]
    pub fn exactly(&self, units: i128) -> Result<i64, Inexact> {
        if self.divisor == 1 && self.factor == 1 {
            return i64::try_from(units).map_err(|_| Inexact::Range);
        }
        if self.divisor == 0 || self.factor == 0 {
            return self.by_digits(&units.to_string());
        }
        if units % self.divisor != 0 {
            return Err(Inexact::Digits);
        }
        let units = (units / self.divisor).checked_mul(self.factor);
        units.and_then(|units| i64::try_from(units).ok()).ok_or(Inexact::Range)
    }

    /// Converts units that are given by their digits, however many.
    pub fn by_digits(&self, units: &str) -> Result<i64, Inexact> {
        let (negative, digits) = signed(units);
        let digits = digits.bytes().map(|byte| byte.wrapping_sub(b'0') % 10);
        self::units(negative, digits, -i64::from(self.from), self.to)
    }

    /// Returns the error text for units that are refused.
    pub fn message(&self, units: &str, why: Inexact) -> String {
        let (negative, digits) = signed(units);
        let sign = if negative { "-" } else { "" };
        let shown = match usize::try_from(self.from) {
            Ok(0) => units.to_string(),
            Ok(from) => {
                let digits = format!("{digits:0>width$}", width = from + 1);
                let (whole, fraction) = digits.split_at(digits.len() - from);
                format!("{sign}{whole}.{fraction}")
            }
            Err(_) => format!("{units}e{}", self.from.unsigned_abs()),
        };
        why.message(&format!("'{shown}'"), self.to)
    }
}
