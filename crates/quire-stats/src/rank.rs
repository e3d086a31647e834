//! Ranks of strategies whose differences may lie within their errors (paper 002, sections
//! 4.2 and 4.3).

use crate::estimate::Estimate;

/// Whether `a` differs from `b`: their intervals have no value in common, and the values
/// are apart by more than `threshold`, a fraction of that of `b` (0.03 is 3 %). If not, it
/// is not known whether they differ.
#[must_use]
pub fn differ(a: &Estimate, b: &Estimate, threshold: f64) -> bool {
    !a.overlaps(b) && (a.value - b.value).abs() > threshold * b.value.abs()
}

/// The rank of each of `estimates`, from 1, the best, on: 1 more than the number of those
/// that are better and [`differ`] from it by more than `threshold`, a fraction of the value
/// that is less of the two: a difference of 800 % is one between 1 and more than 9,
/// whichever is better. So two or three may be best, and two second best, as in the
/// paper's triplets.
#[must_use]
pub fn ranks(estimates: &[Estimate], threshold: f64, higher_is_better: bool) -> Vec<usize> {
    let better = |a: &Estimate, b: &Estimate| {
        let (less, more) = match a.value.abs() < b.value.abs() {
            true => (a, b),
            false => (b, a),
        };
        differ(more, less, threshold) && (a.value > b.value) == higher_is_better
    };
    let rank = |own: &Estimate| 1 + estimates.iter().filter(|other| better(other, own)).count();
    estimates.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(value: f64, error: f64) -> Estimate {
        Estimate {
            value,
            ci_low: value - error,
            ci_high: value + error,
        }
    }

    #[test]
    fn intervals_that_touch_do_not_differ() {
        let (a, b) = (estimate(10.0, 1.0), estimate(12.0, 1.0));
        assert!(!differ(&a, &b, 0.0));
        assert!(differ(&a, &estimate(12.5, 1.0), 0.0));
        assert!(!differ(&a, &estimate(12.5, 1.0), 0.3));
        // Relative to the second: 2.5 is 20 % of 12.5 and 25 % of 10.
        assert!(!differ(&a, &estimate(12.5, 1.0), 0.22));
        assert!(differ(&estimate(12.5, 1.0), &a, 0.22));
        assert!(differ(&a, &estimate(0.0, 1.0), 9.0));
        assert!(!differ(&a, &a, 0.0));
    }

    #[test]
    fn the_papers_triplets() {
        let rank = |values: [(f64, f64); 3], higher| {
            ranks(&values.map(|(v, e)| estimate(v, e)), 0.0, higher)
        };
        assert_eq!(rank([(3.0, 0.1), (1.0, 0.1), (2.0, 0.1)], false), [3, 1, 2]);
        assert_eq!(rank([(3.0, 0.1), (1.0, 0.1), (2.0, 0.1)], true), [1, 3, 2]);
        assert_eq!(rank([(1.0, 1.0), (1.5, 1.0), (2.0, 1.0)], false), [1, 1, 1]);
        assert_eq!(rank([(1.0, 0.1), (2.0, 0.3), (2.2, 0.3)], false), [1, 2, 2]);
        assert_eq!(rank([(1.0, 0.1), (1.1, 0.3), (2.2, 0.3)], false), [1, 1, 3]);
        // The middle one overlaps both: only the worst is known to be worse than the best.
        assert_eq!(rank([(1.0, 0.4), (1.5, 0.4), (2.0, 0.4)], false), [1, 1, 2]);
        assert_eq!(ranks(&[], 0.0, false), []);
    }

    #[test]
    fn a_difference_is_a_part_of_what_is_less() {
        let both = [estimate(1.0, 0.1), estimate(8.5, 0.1)];
        for higher in [false, true] {
            let rank = |threshold| ranks(&both, threshold, higher);
            let apart = if higher { [2, 1] } else { [1, 2] };
            assert_eq!(rank(7.0), apart);
            assert_eq!(rank(8.0), [1, 1]);
        }
    }
}
