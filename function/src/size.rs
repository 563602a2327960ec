//! The size of outputs in a log.
//!
//! A log takes messages up to a limit. A larger one could never leave, and would block all after
//! it. So a transaction with such an event or reply aborts, on every node alike. That is why the
//! size depends on the values alone, and not on a log's encoding.

use tidemill_core::Value;
use tidemill_txn::program::{reasons, Abort};

use crate::program::Functions;

/// The fixed bytes of any value: its tag, its length, a number or a time in digits, a comma.
const FIXED: usize = 48;

/// Returns a bound that is cheap to compute: the most bytes that these values take in Tidemill's
/// encoding and as JSON together, without the names of columns.
pub fn output_bytes(values: &[Value]) -> usize {
    values.iter().map(bytes).sum()
}

fn bytes(value: &Value) -> usize {
    FIXED
        + match value {
            Value::Str(text) => text.len() + text.bytes().map(escaped).sum::<usize>(),
            // Two digits for each byte.
            Value::Bytes(bytes) => 3 * bytes.len(),
            // One byte may become a whole word as JSON.
            Value::Any(bytes) => 8 * bytes.len(),
            Value::List(items) => output_bytes(items),
            Value::Null
            | Value::Bool(_)
            | Value::Int(_)
            | Value::Float(_)
            | Value::Timestamp(_)
            | Value::Decimal(..) => 0,
        }
}

/// Returns the bytes that a byte of a text takes as JSON.
fn escaped(byte: u8) -> usize {
    match byte {
        0..=0x1f | 0x7f => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    }
}

/// Refuses values that are too large to leave.
pub(crate) fn fits(
    functions: &dyn Functions,
    what: &str,
    values: &[Value],
    max: usize,
) -> Result<(), Abort> {
    let bytes = output_bytes(values);
    match if bytes > max { functions.output_bytes(values) } else { bytes } {
        bytes if bytes > max => Err(Abort::refused(format!(
            "{what} takes {bytes} bytes in the log, and may take {max} (cluster_message_bytes_max)"
        ))),
        _ => Ok(()),
    }
}

/// Shortens the reason of an abort, which may contain data that a client has sent.
pub(crate) fn shortened(abort: Abort) -> Abort {
    Abort { reason: reasons::shortened(abort.reason), ..abort }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_reasons_are_cut_between_characters() {
        for text in ["x".repeat(5000), "ä".repeat(5000), format!("x{}", "ä".repeat(5000))] {
            let cut = shortened(Abort::refused(text.clone()));
            let start = cut.reason.strip_suffix(" ...").unwrap();
            assert!(text.starts_with(start) && (4095..=4096).contains(&start.len()));
        }
        let short = Abort::refused("no");
        assert_eq!(shortened(short.clone()), short);
    }
}
