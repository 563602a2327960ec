//! Wrong clocks. A cut's clock never goes back, so a clock that was wrong once would stay in all
//! later cuts.

use tidemill_cluster::WrongClock;
use tidemill_core::value::format_timestamp;
use tidemill_core::{Error, Result};

/// Refuses a clock that is too far ahead of the last cut's. Returns a report about one that is
/// behind; see [`WrongClock::of`]. `is_stored` says whether the app has a data directory.
///
/// # Errors
/// When the clock is too far ahead.
pub(crate) fn check(
    now_us: i64,
    last_us: i64,
    passed_us: u64,
    max_us: i64,
    is_stored: bool,
) -> Result<Option<String>> {
    match WrongClock::of(now_us, last_us, passed_us, max_us) {
        None => Ok(None),
        Some(WrongClock::Behind { last_us }) => Ok(Some(is_behind(now_us, last_us))),
        Some(WrongClock::Ahead { last_us }) => Err(is_ahead(now_us, last_us, max_us, is_stored)),
    }
}

/// The error of a clock that is ahead.
pub(crate) fn is_ahead(now_us: i64, last_us: i64, max_us: i64, is_stored: bool) -> Error {
    let (now, last) = (format_timestamp(now_us), format_timestamp(last_us));
    let help = match is_stored {
        true => format!(
            "set the clock, and start again; where it is right, start once with clock_jump_us_max above {max_us}"
        ),
        false => "set the clock, and start again; where it is right, start again without a change: \
                  an app in memory starts from scratch, with any clock"
            .into(),
    };
    Error::setting(format!(
        "the clock says {now}, and the last cut of this data was made at {last}: a cut's clock never goes back, so a wrong \
         one would stay in all that follows"
    ))
    .help(help)
}

/// The report about a clock that is behind.
pub(crate) fn is_behind(now_us: i64, last_us: i64) -> String {
    let (now, last) = (format_timestamp(now_us), format_timestamp(last_us));
    format!(
        "the clock says {now}, and the last cut was made at {last}: it was wrong then, or is now. \
         Until it reaches that time, tx.now() does not move"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_may_be_ahead_as_far_as_time_has_gone_by_and_the_setting_says() {
        assert!(check(1_000, 0, 0, 1, true).is_ok(), "there is no cut");
        assert!(check(1_100, 1_000, 0, 100, true).is_ok());
        assert!(check(1_150, 1_000, 50, 100, true).is_ok());
        let error = check(1_151, 1_000, 50, 100, true).unwrap_err();
        assert!(error.to_string().contains("1970-01-01T00:00:00.001151Z"), "{error}");
        assert!(check(i64::MAX, i64::MIN, 0, 100, true).is_err());
    }

    #[test]
    fn a_minute_behind_is_said() {
        let behind = |now_us, last_us| check(now_us, last_us, 0, i64::MAX, true).unwrap();
        assert_eq!(behind(5, 0), None, "there is no cut");
        assert_eq!(behind(1, 60_000_001), None);
        assert!(behind(1, 60_000_002).unwrap().contains("wrong then, or is now"));
    }
}
