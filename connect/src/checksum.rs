//! Checksums that are stored in snapshots and with cuts.

use std::fmt;

use serde::{de, Deserialize, Deserializer, Serialize, Serializer};

/// The xxh3-128 hash of some bytes. It is written as 32 hexadecimal digits, because many readers of
/// JSON can't hold a number of that size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checksum(pub u128);

impl Checksum {
    /// Returns the checksum of these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Checksum {
        Checksum(tidemill_core::encode::hash128(bytes))
    }

    /// Returns the checksum of this checksum followed by more bytes: a chain.
    pub(crate) fn then(self, bytes: &[u8]) -> Checksum {
        Checksum::of(&[&self.0.to_le_bytes(), bytes].concat())
    }
}

/// The checksum of no bytes.
impl Default for Checksum {
    fn default() -> Checksum {
        Checksum::of(&[])
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Checksum, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = Some(&text).filter(|t| t.len() == 32 && !t.starts_with('+'));
        digits
            .and_then(|t| u128::from_str_radix(t, 16).ok())
            .map(Checksum)
            .ok_or_else(|| de::Error::custom(format!("'{text}' is not a checksum")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        // This text is stable, because it is in snapshots.
        let json = serde_json::to_string(&Checksum::default()).unwrap();
        assert_eq!(json, "\"99aa06d3014798d86001c324468d497f\"");
        assert_eq!(serde_json::from_str::<Checksum>(&json).unwrap(), Checksum::default());
        for wrong in ["\"\"", "\"+9aa06d3014798d86001c324468d497f\"", "1"] {
            assert!(serde_json::from_str::<Checksum>(wrong).is_err(), "{wrong}");
        }
    }
}
