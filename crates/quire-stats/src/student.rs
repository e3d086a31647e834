//! Quantiles of Student's t distribution, and what they need.
//!
//! The tail beyond t with ν degrees of freedom is half the regularised incomplete beta
//! function I_x(ν/2, 1/2) at x = ν / (ν + t²). That is computed by its continued fraction
//! (modified Lentz; Abramowitz and Stegun 26.5.8 and 26.7.1), and the quantile is found by
//! Newton's steps, from the asymptotic series on, within an interval that is halved where they
//! fail.

/// More degrees of freedom count as so many; the quantile is off by less than one part in
/// a million then.
const MOST_DEGREES: f64 = 1e7;

/// Halving alone takes about 60 steps.
const MOST_STEPS: usize = 200;

/// The quantile `p` of the t distribution with `degrees` of freedom, which need not be
/// whole. Negative infinity for 0 and infinity for 1; not a number where `p` is not between
/// these or `degrees` is not above zero. Exact to about 12 digits.
#[must_use]
pub fn quantile(p: f64, degrees: f64) -> f64 {
    if !(0.0..=1.0).contains(&p) || degrees.is_nan() || degrees <= 0.0 {
        return f64::NAN;
    }
    if p < 0.5 {
        return -upper(p, degrees);
    }
    upper(1.0 - p, degrees)
}

/// The t beyond which `tail`, up to a half, of the distribution lies.
fn upper(tail: f64, degrees: f64) -> f64 {
    if tail == 0.0 || tail == 0.5 {
        return if tail == 0.0 { f64::INFINITY } else { 0.0 };
    }
    let student = Student::new(degrees.min(MOST_DEGREES));
    let mut t = student.guess(tail);
    let (mut low, mut high) = (0.0, t);
    while student.beyond(high) > tail {
        (low, high) = (high, high * 2.0);
        if high == f64::INFINITY {
            return high;
        }
    }
    // Newton's steps, halved where they leave the interval.
    for _ in 0..MOST_STEPS {
        let above = student.beyond(t) - tail;
        if above > 0.0 {
            low = t;
        } else {
            high = t;
        }
        let next = t + above / student.density(t);
        let is_within = low < next && next < high;
        let next = match is_within {
            true => next,
            false => low + (high - low) / 2.0,
        };
        // The error of a step of Newton's is about the square of the one before.
        let close = if is_within { 1e-9 } else { 1e-15 };
        let is_found = (next - t).abs() <= close * t;
        t = next;
        if is_found {
            break;
        }
    }
    t
}

/// The distribution of so many degrees of freedom.
struct Student {
    degrees: f64,
    /// The logarithm of Γ((ν + 1)/2) / (Γ(ν/2) Γ(1/2)).
    front: f64,
}

impl Student {
    fn new(degrees: f64) -> Student {
        let front = log_gamma_step(degrees / 2.0) - std::f64::consts::PI.ln() / 2.0;
        Student { degrees, front }
    }

    /// About the t beyond which `tail` lies: of a normal distribution (Abramowitz and Stegun
    /// 26.2.23), with the first terms of the series in 1/ν (26.7.5).
    fn guess(&self, tail: f64) -> f64 {
        let root = (-2.0 * tail.ln()).sqrt();
        let above = (0.010_328 * root + 0.802_853) * root + 2.515_517;
        let below = ((0.001_308 * root + 0.189_269) * root + 1.432_788) * root + 1.0;
        let z = (root - above / below).max(1e-3);
        let square = z * z;
        let first = z * (square + 1.0) / 4.0;
        let second = z * ((5.0 * square + 16.0) * square + 3.0) / 96.0;
        // With next to no degrees of freedom the series says nothing.
        (z + (first + second / self.degrees) / self.degrees).min(1e9)
    }

    /// The density at `t`.
    fn density(&self, t: f64) -> f64 {
        let Student { degrees, front } = *self;
        let scale = front - degrees.ln() / 2.0;
        (scale - (degrees + 1.0) / 2.0 * (t / degrees * t).ln_1p()).exp()
    }

    /// The part of the distribution beyond `t`, which is not negative.
    fn beyond(&self, t: f64) -> f64 {
        let (a, b) = (self.degrees / 2.0, 0.5);
        // Both parts by themselves, so that neither loses digits; t * t may overflow.
        let ratio = t / self.degrees * t;
        let (x, rest) = (1.0 / (1.0 + ratio), 1.0 / (1.0 + 1.0 / ratio));
        if x == 0.0 {
            return 0.0;
        }
        if rest == 0.0 {
            return 0.5;
        }
        let front = (self.front - a * ratio.ln_1p() + b * rest.ln()).exp();
        if x < (a + 1.0) / (a + b + 2.0) {
            front * continued(x, a, b) / a / 2.0
        } else {
            (1.0 - front * continued(rest, b, a) / b) / 2.0
        }
    }
}

/// The part of Fisher's F distribution, of these degrees of freedom, that lies beyond `f`, which
/// is not negative. Exact to about 8 digits.
pub(crate) fn fisher_beyond(f: f64, above: f64, below: f64) -> f64 {
    let (a, b) = (below / 2.0, above / 2.0);
    let ratio = f * above / below;
    let (x, rest) = (1.0 / (1.0 + ratio), 1.0 / (1.0 + 1.0 / ratio));
    if x == 0.0 || rest == 0.0 {
        return if x == 0.0 { 0.0 } else { 1.0 };
    }
    let front = log_gamma(a + b) - log_gamma(a) - log_gamma(b) - a * ratio.ln_1p();
    let front = (front + b * rest.ln()).exp();
    match x < (a + 1.0) / (a + b + 2.0) {
        true => front * continued(x, a, b) / a,
        false => 1.0 - front * continued(rest, b, a) / b,
    }
}

/// The continued fraction of the incomplete beta function.
fn continued(x: f64, a: f64, b: f64) -> f64 {
    let not_zero = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / not_zero(1.0 - (a + b) * x / (a + 1.0));
    let mut product = d;
    for m in (1..100_000).map(f64::from) {
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = product;
        for factor in [even, odd] {
            d = 1.0 / not_zero(1.0 + factor * d);
            c = not_zero(1.0 + factor / c);
            product *= c * d;
        }
        if (product / before - 1.0).abs() < 1e-15 {
            break;
        }
    }
    product
}

/// ln Γ(a + 1/2) - ln Γ(a), for `a` above zero. For large ones by its asymptotic series,
/// because the difference would lose the digits that matter.
fn log_gamma_step(a: f64) -> f64 {
    if a < 50.0 {
        return log_gamma(a + 0.5) - log_gamma(a);
    }
    let square = 1.0 / (a * a);
    let series = 17.0 / 14336.0;
    let series = -1.0 / 640.0 + series * square;
    let series = 1.0 / 192.0 + series * square;
    let series = -1.0 / 8.0 + series * square;
    a.ln() / 2.0 + series / a
}

/// ln Γ(x), for x above zero: the recurrence up to 15, from there on Stirling's series.
pub(crate) fn log_gamma(mut x: f64) -> f64 {
    let mut product = 1.0;
    while x < 15.0 {
        product *= x;
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let series = [
        1.0 / 1188.0,
        -1.0 / 1680.0,
        1.0 / 1260.0,
        -1.0 / 360.0,
        1.0 / 12.0,
    ];
    let series = series.iter().fold(0.0, |sum, term| sum * square + term);
    let stirling = (x - 0.5) * x.ln() - x + std::f64::consts::TAU.ln() / 2.0 + series / x;
    stirling - product.ln()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(a: f64, b: f64, relative: f64) -> bool {
        (a - b).abs() <= relative * b.abs()
    }

    #[test]
    fn the_gamma_function_is_the_factorial() {
        let mut factorial = 1.0f64;
        for n in 1..20 {
            assert!((log_gamma(f64::from(n)) - factorial.ln()).abs() < 1e-12);
            factorial *= f64::from(n);
        }
        assert!(close(
            log_gamma(0.5),
            std::f64::consts::PI.sqrt().ln(),
            1e-13
        ));
        let step = log_gamma(60.5) - log_gamma(60.0);
        assert!(close(log_gamma_step(60.0), step, 1e-12));
    }

    #[test]
    fn one_degree_is_cauchys_and_two_have_a_closed_form() {
        for p in [0.51f64, 0.6, 0.9, 0.975, 0.999, 0.999_999] {
            let cauchy = (std::f64::consts::PI * (p - 0.5)).tan();
            assert!(close(quantile(p, 1.0), cauchy, 1e-9), "{p}");
            let two = (2.0 * p - 1.0) / (2.0 * p * (1.0 - p)).sqrt();
            assert!(close(quantile(p, 2.0), two, 1e-9), "{p}");
        }
    }

    #[test]
    fn as_the_tables_say() {
        for (p, degrees, t) in [
            (0.975, 4.0, 2.776_445),
            (0.975, 9.0, 2.262_157),
            (0.975, 19.0, 2.093_024),
            (0.95, 30.0, 1.697_261),
            (0.995, 10.0, 3.169_273),
            (0.975, 120.0, 1.979_930),
            (0.975, 1e9, 1.959_964),
            (0.975, f64::INFINITY, 1.959_964),
        ] {
            assert!(
                close(quantile(p, degrees), t, 1e-6),
                "{p} {degrees}: {}",
                quantile(p, degrees)
            );
        }
    }

    /// As R's `pf(f, above, below, lower.tail = FALSE)` says.
    #[test]
    fn fishers_distribution_is_that_of_the_tables() {
        for (f, above, below, part) in [
            (2.5, 3.0, 20.0, 0.088_843_75),
            (1.3, 19.0, 980.0, 0.173_972),
            (200.0, 2.0, 9.0, 3.478_055e-8),
        ] {
            let found = fisher_beyond(f, above, below);
            assert!(close(found, part, 1e-5), "{found} {part}");
        }
        assert_eq!(fisher_beyond(0.0, 3.0, 4.0), 1.0);
        assert_eq!(fisher_beyond(f64::INFINITY, 3.0, 4.0), 0.0);
        let t = quantile(0.975, 7.0);
        assert!(close(fisher_beyond(t * t, 1.0, 7.0), 0.05, 1e-9));
    }

    #[test]
    fn the_ends_and_beyond() {
        assert_eq!(quantile(0.5, 3.0), 0.0);
        assert_eq!(quantile(0.0, 3.0), f64::NEG_INFINITY);
        assert_eq!(quantile(1.0, 3.0), f64::INFINITY);
        for (p, degrees) in [
            (-0.1, 3.0),
            (1.1, 3.0),
            (f64::NAN, 3.0),
            (0.9, 0.0),
            (0.9, f64::NAN),
        ] {
            assert!(quantile(p, degrees).is_nan());
        }
    }

    /// The part of the distribution between 0 and `t`, by Simpson's rule over its density.
    fn by_integration(t: f64, degrees: f64) -> f64 {
        let front = log_gamma(degrees / 2.0 + 0.5) - log_gamma(degrees / 2.0);
        let front = front.exp() / (degrees * std::f64::consts::PI).sqrt();
        let density = |x: f64| front * (1.0 + x * x / degrees).powf(-(degrees + 1.0) / 2.0);
        let (steps, width) = (2000, t / 2000.0);
        let inner: f64 = (1..steps)
            .map(|i| density(f64::from(i) * width) * if i % 2 == 1 { 4.0 } else { 2.0 })
            .sum();
        (density(0.0) + inner + density(t)) * width / 3.0
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn quantiles_agree_with_integration(p in 0.5f64..0.99, degrees in 1.5f64..200.0) {
            let t = quantile(p, degrees);
            prop_assert!((by_integration(t, degrees) + 0.5 - p).abs() < 1e-8);
        }

        #[test]
        fn quantiles_are_odd_and_monotone(
            p in 0.001f64..0.999,
            q in 0.001f64..0.999,
            degrees in 0.5f64..1e6,
        ) {
            let (low, high) = (quantile(p.min(q), degrees), quantile(p.max(q), degrees));
            prop_assert!(low <= high);
            let mirrored = -quantile(1.0 - p, degrees);
            prop_assert!((quantile(p, degrees) - mirrored).abs() <= 1e-9 * (1.0 + mirrored.abs()));
        }
    }
}
