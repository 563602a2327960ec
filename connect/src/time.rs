//! Timestamps from text.

use tidemill_core::value::check_years;

use crate::text::{decimal, quoted};

mod pattern;

use pattern::Pattern;

/// The format of a column's timestamps.
#[derive(Clone, Debug)]
pub(crate) enum TimeFormat {
    /// ISO 8601: a date or a date with a time.
    Iso,
    /// A number since 1970 in seconds, milliseconds or microseconds. This many digits after the
    /// point make microseconds.
    Unix(u8),
    /// A pattern for `strptime`.
    Pattern(Pattern),
}

impl TimeFormat {
    /// Parses a setting.
    pub fn parse(format: &str) -> Result<TimeFormat, String> {
        match format {
            "iso" => return Ok(TimeFormat::Iso),
            "unix_s" => return Ok(TimeFormat::Unix(6)),
            "unix_ms" => return Ok(TimeFormat::Unix(3)),
            "unix_us" => return Ok(TimeFormat::Unix(0)),
            _ => {}
        }
        match format.contains('%') {
            true => Pattern::parse(format).map(TimeFormat::Pattern).map_err(|why| {
                format!("'{format}' can't be read: {why}; write for example '%d.%m.%Y %H:%M:%S'")
            }),
            false => Err(format!(
                "'{format}' is not a format; write for example '%d.%m.%Y %H:%M:%S' or 'unix_s'"
            )),
        }
    }

    /// Returns the microseconds since 1970 that a text in this format means.
    pub fn read(&self, text: &str) -> Result<i64, String> {
        let us = match self {
            TimeFormat::Iso => iso(text),
            TimeFormat::Unix(digits) => decimal(text, *digits),
            TimeFormat::Pattern(pattern) => {
                pattern.read(text).map_err(|why| format!("{}: {why}", quoted(text)))
            }
        };
        check_years(us?)
    }
}

const FINER: &str = "finer than microseconds";
const DAY_US: i64 = 86_400_000_000;

/// Parses the extended form of ISO 8601: a date, optionally a time after `T` or a space, optionally
/// `Z` or an offset. Without an offset it is UTC. Years beyond four digits need a sign. All texts
/// of [`tidemill_core::value::format_timestamp`] are read back, including the `…us` of the far
/// future.
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
    // The type is wide, because a day that does not fit may have a time that does.
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

/// Takes a date, as days since 1970.
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
    if !(1..=12).contains(&month) || !(1..=month_days(year, month)).contains(&day) {
        return None;
    }
    Some(days_of(year, month, day))
}

/// Returns the number of days in a month.
fn month_days(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the days since 1970 of an existing day.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    // In years that begin in March, the leap day is at the end.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let of_era = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    era * 146_097 + of_era - 719_468
}

/// Takes a time, as seconds since midnight.
fn clock(rest: &mut &[u8]) -> Option<i64> {
    let hour = two(rest)?;
    skip(rest, b':')?;
    let minute = two(rest)?;
    let second = if skip(rest, b':').is_some() { two(rest)? } else { 0 };
    (hour < 24 && minute < 60 && second < 60).then_some(hour * 3600 + minute * 60 + second)
}

/// Takes a fraction in microseconds. `Some(None)` if it is finer.
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

/// Takes an offset, as seconds east of UTC.
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
        // The colon is optional.
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
        assert!(read("%Y-%m-%d %H:%M:%S%.9f", "2024-01-01 12:00:00.123456789").is_err());
        assert_eq!(
            read("%Y-%m-%d %H:%M:%S.%f", "2024-02-29 00:00:00.123000"),
            Ok(day + 123_000),
            "microseconds"
        );
        assert_eq!(read("%Y-%m-%d %H:%M:%S.%f", "2024-02-29 00:00:00.5"), Ok(day + 500_000));
        assert!(read("%Y-%m-%d %H:%M:%S.%f", "2024-02-29 00:00:00.1234567").is_err());
        assert_eq!(read("%d/%m/%y", "01/01/69"), Ok(-365 * DAY_US));
        assert_eq!(read("%d/%m/%y", "31/12/68"), Ok(36_159 * DAY_US));
        assert_eq!(read("%Y-%m-%d %Z", "2024-02-29 utc"), Ok(day));
        for zone in ["EST", "CET", "+01:00", ""] {
            assert!(read("%Y-%m-%d %Z", &format!("2024-02-29 {zone}")).is_err(), "{zone}");
        }
    }

    #[test]
    fn patterns_that_say_no_time_are_refused() {
        for (pattern, why) in [
            ("%Q", "not a directive that can be read"),
            ("%", "not a directive"),
            ("%H:%M", "no year"),
            ("%d.%m.", "not a year"),
            ("%Y %d", "not a month"),
            ("%Y-%m-%d %M", "not an hour"),
            ("%Y-%m-%d %I:%M", "not AM or PM"),
            ("%Y-%m-%d %S", "not a minute"),
            ("%Y-%m-%d %H:%M.%f", "not a second"),
            ("%Y %U", "not a day of the week"),
            ("%Y-W%V-%u", "not a year of weeks"),
            ("%Y-%m-%d %y", "both"),
            ("%Y-%m-%d %j", "both"),
            ("%Y-%m-%d %H %I %p", "both"),
            ("%Y-%m-%d %d", "twice"),
            ("%F %Z %z", "both"),
            ("date", "not a format"),
            ("", "not a format"),
        ] {
            let error = TimeFormat::parse(pattern).unwrap_err();
            assert!(error.contains(why), "{pattern}: {error}");
        }
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
