//! Figures of runs taken in turn. Absolute figures move with whatever else the machine does; the
//! ratio of two runs taken one right after the other moves much less, so ratios are taken repeat
//! by repeat, and medians of those are reported.

/// The middle one; of an even number, the mean of the middle two.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// The median of the quotients, pair by pair.
pub(crate) fn median_ratio(of: &[f64], to: &[f64]) -> f64 {
    median(&of.iter().zip(to).map(|(a, b)| a / b).collect::<Vec<_>>())
}

/// The smallest.
pub(crate) fn min(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// The largest.
pub(crate) fn max(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}
