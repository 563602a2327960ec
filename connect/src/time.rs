//! Timestamps from text.

use chrono::format::{parse, Item, Parsed, StrftimeItems};
use chrono::{NaiveDateTime, NaiveTime};

use tidemill_core::value::dated;

use crate::text::{decimal, quoted};

/// How a column writes its timestamps.
#[derive(Clone, Debug)]
pub(crate) enum TimeFormat {
    /// ISO 8601: a date or a date with a time.
    Iso,
    /// A number since 1970 in seconds, milliseconds or microseconds: so many digits after the
    /// point make microseconds.
    Unix(u8),
    /// In the syntax of `strftime`.
    Pattern(Vec<Item<'static>>),
}

impl TimeFormat {
    /// From a setting.
    pub fn parse(format: &str) -> Result<TimeFormat, String> {
        match format {
            "iso" => return Ok(TimeFormat::Iso),
            "unix_s" => return Ok(TimeFormat::Unix(6)),
            "unix_ms" => return Ok(TimeFormat::Unix(3)),
            "unix_us" => return Ok(TimeFormat::Unix(0)),
            _ => {}
        }
        let items = StrftimeItems::new(format).parse_to_owned().map_err(|_| {
            format!("'{format}' is not a format; write for example '%d.%m.%Y %H:%M:%S' or 'unix_s'")
        })?;
        if !items.iter().any(|i| matches!(i, Item::Numeric(..) | Item::Fixed(_))) {
            return Err(format!("'{format}' has no field such as %Y"));
        }
        Ok(TimeFormat::Pattern(items))
    }

    /// Microseconds since 1970 from a text in this format.
    pub fn read(&self, text: &str) -> Result<i64, String> {
        let us = match self {
            TimeFormat::Iso => iso(text),
            TimeFormat::Unix(digits) => decimal(text, *digits),
            TimeFormat::Pattern(items) => {
                pattern(text, items).map_err(|why| format!("{}: {why}", quoted(text)))
            }
        };
        dated(us?)
    }
}

fn pattern(text: &str, items: &[Item<'static>]) -> Result<i64, String> {
    let mut parsed = Parsed::new();
    parse(&mut parsed, text, items.iter()).map_err(|e| format!("{e} (by the column's format)"))?;
    if parsed.hour_mod_12().is_some() && parsed.minute().is_none() {
        parsed.set_minute(0).map_err(|e| e.to_string())?;
    }
    let naive = match parsed.to_naive_datetime_with_offset(parsed.offset().unwrap_or(0)) {
        Ok(at) => at,
        // A date alone means its midnight.
        Err(_) if parsed.hour_mod_12().is_none() && parsed.minute().is_none() => {
            let date = parsed.to_naive_date().map_err(|e| e.to_string())?;
            NaiveDateTime::new(date, NaiveTime::MIN)
        }
        Err(e) => return Err(format!("{e} (by the column's format)")),
    };
    if !naive.and_utc().timestamp_subsec_nanos().is_multiple_of(1000) {
        return Err(FINER.into());
    }
    let offset_us = i64::from(parsed.offset().unwrap_or(0)) * 1_000_000;
    Ok(naive.and_utc().timestamp_micros() - offset_us)
}

const FINER: &str = "finer than microseconds";
const DAY_US: i64 = 86_400_000_000;

/// ISO 8601, extended form: a date, optionally a time behind `T` or a space, optionally `Z` or an
/// offset; without one it is UTC. Years beyond four digits need a sign. What
/// [`tidemill_core::value::format_timestamp`] writes is read back, `…us` of the far future too.
pub(crate) fn iso(text: &str) -> Result<i64, String> {
    if let Some(us) = text.strip_suffix("us").and_then(|us| us.parse().ok()) {
        return Ok(us);
    }
    let bad = || format!("{} is not an ISO 8601 date or time", quoted(text));
    let mut rest = text.as_bytes();
    let days = date(&mut rest).ok_or_else(bad)?;
    if rest.is_empty() {
        return days.checked_mul(DAY_US).ok_or_else(bad);
    }
    if !matches!(rest[0], b'T' | b't' | b' ') {
        return Err(bad());
    }
    rest = &rest[1..];
    let seconds = clock(&mut rest).ok_or_else(bad)?;
    let micros = fraction(&mut rest).ok_or_else(bad)?;
    let Some(micros) = micros else {
        return Err(format!("{} is {FINER}", quoted(text)));
    };
    let offset = offset(rest).ok_or_else(bad)?;
    // Wide, because a day that does not fit may have a time that does.
    let us = i128::from(days) * i128::from(DAY_US)
        + i128::from(seconds - offset) * 1_000_000
        + i128::from(micros);
    i64::try_from(us).map_err(|_| bad())
}

fn two(rest: &mut &[u8]) -> Option<i64> {
    let ([a, b], tail) = rest.split_first_chunk::<2>()?;
    *rest = tail;
    (a.is_ascii_digit() && b.is_ascii_digit())
        .then(|| i64::from(a - b'0') * 10 + i64::from(b - b'0'))
}

fn skip(rest: &mut &[u8], byte: u8) -> Option<()> {
    *rest = rest.strip_prefix(&[byte])?;
    Some(())
}

/// Days since 1970.
fn date(rest: &mut &[u8]) -> Option<i64> {
    let signed = matches!(rest.first(), Some(b'+' | b'-'));
    let negative = rest.first() == Some(&b'-');
    *rest = &rest[usize::from(signed)..];
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    if digits != 4 && !(signed && (4..=6).contains(&digits)) {
        return None;
    }
    let (year, tail) = rest.split_at(digits);
    let year = year.iter().fold(0, |y, b| y * 10 + i64::from(b - b'0'));
    let year = if negative { -year } else { year };
    *rest = tail;
    skip(rest, b'-')?;
    let month = two(rest)?;
    skip(rest, b'-')?;
    let day = two(rest)?;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=length).contains(&day) {
        return None;
    }
    // Years that begin in March have their leap day at the end.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let of_era = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    Some(era * 146_097 + of_era - 719_468)
}

/// Seconds since midnight.
fn clock(rest: &mut &[u8]) -> Option<i64> {
    let hour = two(rest)?;
    skip(rest, b':')?;
    let minute = two(rest)?;
    let second = if skip(rest, b':').is_some() { two(rest)? } else { 0 };
    (hour < 24 && minute < 60 && second < 60).then_some(hour * 3600 + minute * 60 + second)
}

/// Microseconds; `Some(None)` when there is more than that.
fn fraction(rest: &mut &[u8]) -> Option<Option<i64>> {
    if skip(rest, b'.').is_none() && skip(rest, b',').is_none() {
        return Some(Some(0));
    }
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    let (fraction, tail) = rest.split_at(digits);
    *rest = tail;
    if digits == 0 {
        return None;
    }
    if fraction.iter().skip(6).any(|b| *b != b'0') {
        return Some(None);
    }
    Some(Some((0..6).fold(0, |us, i| us * 10 + fraction.get(i).map_or(0, |b| i64::from(b - b'0')))))
}

/// Seconds east of UTC.
fn offset(mut rest: &[u8]) -> Option<i64> {
    let sign = match rest {
        [] | b"Z" | b"z" => return Some(0),
        [b'+', ..] => 1,
        [b'-', ..] => -1,
        _ => return None,
    };
    rest = &rest[1..];
    let hours = two(&mut rest)?;
    let minutes = if rest.is_empty() {
        0
    } else {
        // The colon may be left out.
        let _ = skip(&mut rest, b':');
        two(&mut rest)?
    };
    (rest.is_empty() && hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidemill_core::value::format_timestamp;

    #[test]
    fn iso_forms() {
        let noon = 1_709_208_000_000_000; // 2024-02-29T12:00:00Z
        for text in [
            "2024-02-29T12:00:00Z",
            "2024-02-29 12:00",
            "2024-02-29T12:00:00.000000000",
            "2024-02-29T13:30:00+01:30",
            "2024-02-29t07:00:00,0-0500",
            "2024-02-29 12:00:00+00",
            "+2024-02-29 12:00:00z",
        ] {
            assert_eq!(iso(text), Ok(noon), "{text}");
        }
        assert_eq!(iso("1970-01-01"), Ok(0));
        assert_eq!(iso("1969-12-31T23:59:59.999999"), Ok(-1));
        assert_eq!(iso("2024-01-01T00:00:00.5"), Ok(1_704_067_200_500_000));
        for text in [
            "",
            "2024",
            "2024-2-1",
            "2023-02-29",
            "2024-13-01",
            "2024-01-00",
            "2024-01-01T",
            "2024-01-01T24:00",
            "2024-01-01T12",
            "2024-01-01T12:00:60",
            "2024-01-01T12:00Z1",
            "2024-01-01T12:00+1",
            "20240101",
            "12024-01-01",
            "2024-01-01T12:00:00.",
            "é",
            "us",
            "2024-01-01T12:00:00.0000001",
            "+999999-01-01",
            "2024-01-01X12:00",
        ] {
            assert!(iso(text).is_err(), "{text}");
        }
    }

    #[test]
    fn formats() {
        let read = |format: &str, text: &str| TimeFormat::parse(format).unwrap().read(text);
        let day = 1_709_164_800_000_000; // 2024-02-29
        assert_eq!(read("%d.%m.%Y", "29.02.2024"), Ok(day));
        assert_eq!(read("%d/%m/%y %H:%M", "29/02/24 01:00"), Ok(day + 3_600_000_000));
        assert_eq!(read("%Y%m%d %I %p", "20240229 01 PM"), Ok(day + 13 * 3_600_000_000));
        assert_eq!(
            read("%Y-%m-%d %H:%M:%S%.f %z", "2024-02-29 01:00:00.5 +0100"),
            Ok(day + 500_000)
        );
        assert_eq!(read("%s", "1709164800"), Ok(day));
        assert_eq!(read("unix_s", "1709164800.25"), Ok(day + 250_000));
        assert_eq!(read("unix_ms", "1709164800000"), Ok(day));
        assert_eq!(read("unix_us", "1709164800000000"), Ok(day));
        assert!(read("unix_us", "1709164800000000.5").is_err());
        assert!(read("%d.%m.%Y", "30.02.2024").is_err());
        assert!(read("%d.%m.%Y", "29.02.2024 x").is_err());
        assert!(read("%H:%M", "12:00").is_err(), "a time without a date");
        assert!(read("%Y-%m-%d %M", "2024-01-01 12").is_err(), "a minute without an hour");
        assert!(read("%Y-%m-%d %H:%M:%S%.9f", "2024-01-01 12:00:00.123456789").is_err());
        assert!(TimeFormat::parse("%Q").is_err());
        assert!(TimeFormat::parse("date").is_err());
        assert!(TimeFormat::parse("").is_err());
    }

    proptest! {
        #[test]
        fn written_is_read(us: i64) {
            prop_assert_eq!(iso(&format_timestamp(us)), Ok(us));
        }

        #[test]
        fn near_times_too(us in -100_000_000_000_000_000i64..100_000_000_000_000_000) {
            prop_assert_eq!(iso(&format_timestamp(us)), Ok(us));
        }
    }
}
