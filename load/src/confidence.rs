//! Whether two targets differ: the ratio of a figure over paired rounds, with its 95 % confidence interval.
//!
//! Rounds alternate, so a pair saw the same noise of the machine. Ratios are compared by their logarithms: twice as fast and half
//! as fast are equally far from 1.

/// Student's t for a two-sided interval of 95 %, by degrees of freedom from 1 to 30.
const STUDENT_T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The same of the normal distribution, which Student's approaches.
const NORMAL: f64 = 1.960;

/// Student's t for `degrees` of freedom.
fn student_t(degrees: usize) -> f64 {
    match degrees {
        0 => f64::INFINITY,
        1..=30 => STUDENT_T[degrees - 1],
        #[allow(clippy::cast_precision_loss)]
        _ => NORMAL + 2.4 / degrees as f64, // within 0.001 of the table beyond 30
    }
}

/// A ratio with its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RatioInterval {
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
    /// Pairs that it rests on.
    pub rounds: usize,
}

impl RatioInterval {
    /// The ratio of the second to the first of each pair. `None` with fewer than two pairs of positive figures.
    #[must_use]
    pub fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        let usable = |value: f64| value.is_finite() && value > 0.0;
        let logs: Vec<f64> = pairs
            .iter()
            .filter(|(first, second)| usable(*first) && usable(*second))
            .map(|(first, second)| (second / first).ln())
            .collect();
        if logs.len() < 2 {
            return None;
        }
        #[allow(clippy::cast_precision_loss)]
        let count = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / count;
        let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let half = student_t(logs.len() - 1) * (variance / count).sqrt();
        Some(Self { ratio: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp(), rounds: logs.len() })
    }

    /// Whether the interval leaves out 1.
    #[must_use]
    pub fn differs(&self) -> bool {
        self.low > 1.0 || self.high < 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_of_logarithms_is_students() {
        // Logarithms of 1, 2 and 4: mean ln 2, deviation ln 2, t of two degrees 4.303.
        let found = RatioInterval::of(&[(1.0, 1.0), (1.0, 2.0), (1.0, 4.0)]).unwrap();
        let half = 4.303 / 3_f64.sqrt();
        assert!((found.ratio - 2.0).abs() < 1e-9);
        assert!((found.high - 2_f64.powf(1.0 + half)).abs() < 1e-9, "{found:?}");
        assert!((found.low - 2_f64.powf(1.0 - half)).abs() < 1e-9, "{found:?}");
        assert!(!found.differs());
    }

    #[test]
    fn equal_pairs_have_no_width() {
        let found = RatioInterval::of(&[(2.0, 3.0), (4.0, 6.0), (8.0, 12.0)]).unwrap();
        assert!((found.ratio - 1.5).abs() < 1e-9 && (found.high - found.low).abs() < 1e-9 && found.differs());
    }

    #[test]
    fn unusable_pairs_are_left_out() {
        let pairs = [(0.0, 1.0), (1.0, f64::NAN), (1.0, 2.0), (1.0, 2.0)];
        assert_eq!(RatioInterval::of(&pairs).map(|found| found.rounds), Some(2));
        assert_eq!(RatioInterval::of(&pairs[..3]), None);
        assert_eq!(RatioInterval::of(&[]), None);
    }

    #[test]
    fn student_t_falls_towards_the_normal() {
        let all: Vec<_> = (0..200).map(student_t).collect();
        assert!(all.is_sorted_by(|left, right| left >= right) && all[199] > NORMAL);
    }

    #[test]
    fn interval_covers_the_true_ratio_in_most_runs() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut noisy = |value: f64| value * (1.0 + 0.2 * (rng.f64() - 0.5));
        let covered = (0..400)
            .filter(|_| {
                let pairs: Vec<_> = (0..8).map(|_| (noisy(10.0), noisy(13.0))).collect();
                RatioInterval::of(&pairs).is_some_and(|found| found.low <= 1.3 && 1.3 <= found.high)
            })
            .count();
        assert!((360..=398).contains(&covered), "{covered} of 400");
    }
}
