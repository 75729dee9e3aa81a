//! Medians, percentiles and confidence intervals.

/// The value below which this share (0 to 1) of the values lies, by nearest rank; 0 for an empty
/// list.
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    let rank = (share * v.len() as f64).ceil() as usize;
    v.get(rank.clamp(1, v.len().max(1)) - 1).copied().unwrap_or(0.0)
}

/// Arithmetic mean; 0 for no values.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// Jain's fairness index: 1 for equal shares, 1/n if one has everything; 1 for an empty list.
pub fn jain(shares: &[f64]) -> f64 {
    let squares: f64 = shares.iter().map(|s| s * s).sum();
    if squares == 0.0 { 1.0 } else { shares.iter().sum::<f64>().powi(2) / (shares.len() as f64 * squares) }
}

/// The 95 % confidence interval of the mean, by Student's t.
pub fn confidence_95(values: &[f64]) -> (f64, f64) {
    let n = values.len();
    let m = mean(values);
    if n < 2 {
        return (m, m);
    }
    let variance = values.iter().map(|v| (v - m).powi(2)).sum::<f64>() / (n - 1) as f64;
    let half = student_t_975(n - 1) * (variance / n as f64).sqrt();
    (m - half, m + half)
}

/// The 97.5 % quantile of Student's distribution, tabulated up to 30 degrees of freedom, 1.96 beyond.
fn student_t_975(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042,
    ];
    TABLE.get(freedom.max(1) - 1).copied().unwrap_or(1.96)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let v: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((percentile(&v, 0.5), percentile(&v, 0.99), percentile(&v, 1.0)), (50.0, 99.0, 100.0));
        assert_eq!(percentile(&[], 0.5), 0.0);
        let (low, high) = confidence_95(&[1.0, 2.0, 3.0]);
        assert!(
            (low - (2.0 - 4.303 / 3f64.sqrt())).abs() < 1e-9
                && (high - low - 2.0 * 4.303 / 3f64.sqrt()).abs() < 1e-9
        );
    }
}
