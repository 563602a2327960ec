//! Decimals of Avro: big-endian numbers in two's complement, with as many bytes as they need.

/// Returns the units of a decimal with `scale` digits after the point, from one with `from` digits;
/// never rounded.
pub(super) fn units(bytes: &[u8], from: u32, scale: u8) -> Result<i64, String> {
    let number = number(bytes)?;
    let range = || format!("the decimal is out of range for decimal({scale})");
    let ten = |digits: u32| 10i128.checked_pow(digits);
    let units = match from.checked_sub(u32::from(scale)) {
        // With a scale of 18 at most the factor fits.
        None => ten(u32::from(scale) - from).and_then(|ten| number.checked_mul(ten)),
        Some(0) => Some(number),
        Some(_) if number == 0 => Some(0),
        Some(more) => match ten(more) {
            Some(ten) if number % ten == 0 => Some(number / ten),
            _ => return Err(format!("the decimal has more than {scale} digits behind the point")),
        },
    };
    units.and_then(|units| i64::try_from(units).ok()).ok_or_else(range)
}

/// Returns a decimal as text.
pub(super) fn text(bytes: &[u8], scale: u32) -> Result<String, String> {
    let number = number(bytes)?;
    let scale = scale as usize;
    let digits = format!("{:0>width$}", number.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let sign = if number < 0 { "-" } else { "" };
    Ok(match fraction.is_empty() {
        true => format!("{sign}{whole}"),
        false => format!("{sign}{whole}.{fraction}"),
    })
}

fn number(bytes: &[u8]) -> Result<i128, String> {
    let is_negative = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let fill = if is_negative { 0xff } else { 0 };
    // Leading bytes that only repeat the sign do not count.
    let extra = bytes.len().saturating_sub(16);
    let (head, rest) = bytes.split_at(extra);
    let sign_of_rest = rest.first().is_some_and(|first| first & 0x80 != 0);
    if head.iter().any(|byte| *byte != fill) || sign_of_rest != is_negative {
        return Err("the decimal has more than 128 bits".into());
    }
    let mut wide = [fill; 16];
    wide[16 - rest.len()..].copy_from_slice(rest);
    Ok(i128::from_be_bytes(wide))
}

/// Returns the fewest bytes of a number.
pub(super) fn bytes(units: i64) -> impl AsRef<[u8]> {
    let wide = units.to_be_bytes();
    let mut from = 0;
    while from < 7 {
        let is_sign = wide[from] == if units < 0 { 0xff } else { 0 };
        if !is_sign || (wide[from + 1] & 0x80 != 0) != (units < 0) {
            break;
        }
        from += 1;
    }
    Few { wide, from }
}

struct Few {
    wide: [u8; 8],
    from: usize,
}

impl AsRef<[u8]> for Few {
    fn as_ref(&self) -> &[u8] {
        &self.wide[self.from..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decimals_are_not_rounded() {
        assert_eq!(units(&[], 2, 2), Ok(0));
        assert_eq!(units(&[0x30, 0x39], 2, 2), Ok(12345));
        assert_eq!(units(&[0x30, 0x39], 2, 4), Ok(1_234_500));
        assert!(units(&[0x30, 0x39], 2, 1).unwrap_err().contains("more than 1 digits"));
        assert_eq!(units(&[0xff; 40], 0, 0), Ok(-1), "a long sign");
        assert_eq!(units(&[0; 40], 9000, 0), Ok(0));
        assert!(units(&[0x7f; 17], 0, 0).unwrap_err().contains("128 bits"));
        assert!(units(&[0x7f; 16], 0, 0).unwrap_err().contains("out of range"));
        assert!(units(&[1], 9000, 0).is_err());
        assert_eq!(text(&[0x30, 0x39], 2).unwrap(), "123.45");
        assert_eq!(text(&[0xff], 3).unwrap(), "-0.001");
        assert_eq!(text(&[5], 0).unwrap(), "5");
    }

    proptest! {
        #[test]
        fn the_fewest_bytes_are_the_number(units: i64) {
            let few = bytes(units);
            prop_assert_eq!(super::units(few.as_ref(), 3, 3), Ok(units));
            let shorter = few.as_ref().get(1..).unwrap_or_default();
            prop_assert!(few.as_ref().len() == 1 || super::units(shorter, 3, 3) != Ok(units));
        }
    }
}
