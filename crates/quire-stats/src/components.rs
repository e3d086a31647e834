//! Variance components of nested repetitions, and what to repeat how often (Kalibera and
//! Jones 2013, "Rigorous benchmarking in reasonable time", sections 6 and 9).
//!
//! Measurements are repeated in executions, executions after builds, and so on: any number
//! of levels. The variance of a level is what it adds by itself. It is estimated without
//! bias, also where groups differ in size: for each level, the sample variance of the means
//! of what a group holds is expected to be the level's own variance plus known shares of
//! those below it, so the levels are solved for from the innermost on. With groups of equal
//! size these are the paper's equations. An estimate may be negative, which says that the
//! level adds too little to be seen; it is reported so.

use crate::estimate::{Absent, Result};
use crate::layout::Moments;
use crate::sample::Sample;
use crate::student;

/// One level of repetition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// How often it is repeated in each group of the level above, on average.
    pub size: f64,
    /// The variance that this level alone adds, in squared units of the measurements. May
    /// be negative.
    pub variance: f64,
}

/// Measurements in groups, which may be in groups, and so on.
#[derive(Clone, Debug, PartialEq)]
pub enum Nested {
    /// A measurement.
    Value(f64),
    /// What was repeated.
    Group(Vec<Nested>),
}

impl From<&Sample> for Nested {
    fn from(sample: &Sample) -> Nested {
        let group =
            |values: &Vec<f64>| Nested::Group(values.iter().copied().map(Nested::Value).collect());
        Nested::Group(sample.executions().iter().map(group).collect())
    }
}

/// The variance components of `nested`, from the outermost level on.
///
/// # Errors
/// Where groups are not all nested to the same depth, a group is empty, a measurement is
/// not finite, nothing is repeated at a level, or a variance is too large to represent.
pub fn of(nested: &Nested) -> Result<Vec<Level>> {
    let depth = depth(nested)?;
    let mut sums = vec![Sums::new(depth); depth];
    let mut position = Position::default();
    visit(nested, depth, &mut sums, &mut position)?;
    let mut levels = vec![
        Level {
            size: 0.0,
            variance: 0.0
        };
        depth
    ];
    // Counted from the innermost on.
    for inner in 0..depth {
        let level = depth - 1 - inner;
        let sums = &sums[inner];
        if sums.weight == 0.0 {
            return Err(Absent::NotRepeated { level: level + 1 });
        }
        let below = (0..inner).map(|j| sums.shares[j] * levels[depth - 1 - j].variance);
        let variance = (sums.squares - below.sum::<f64>()) / sums.weight;
        if !variance.is_finite() {
            return Err(Absent::TooLarge);
        }
        levels[level] = Level {
            size: sums.children / sums.groups,
            variance,
        };
    }
    Ok(levels)
}

/// How many levels there are, by the first of each group; at least 1.
fn depth(nested: &Nested) -> Result<usize> {
    let (mut depth, mut at) = (0, nested);
    while let Nested::Group(groups) = at {
        depth += 1;
        at = groups.first().ok_or(empty())?;
    }
    if depth == 0 {
        return Err(Absent::NotRepeated { level: 1 });
    }
    Ok(depth)
}

fn empty() -> Absent {
    Absent::FewMeasurements {
        execution: 1,
        needed: 1,
        got: 0,
    }
}

/// Where the walk is, for messages.
#[derive(Default)]
struct Position {
    groups: usize,
    values: usize,
}

/// What the groups of one level add up to. Groups count by how many they hold, less 1: so
/// the innermost level gets the usual pooled variance.
#[derive(Clone, Debug)]
struct Sums {
    groups: f64,
    children: f64,
    weight: f64,
    /// Squared deviations of the means of what groups hold.
    squares: f64,
    /// What part of the variance of each level below is in `squares`, innermost first.
    shares: Vec<f64>,
}

impl Sums {
    fn new(depth: usize) -> Sums {
        Sums {
            groups: 0.0,
            children: 0.0,
            weight: 0.0,
            squares: 0.0,
            shares: vec![0.0; depth],
        }
    }
}

/// The mean of a part, and how much of the variance of each level is in it, innermost
/// first.
struct Part {
    mean: f64,
    shares: Vec<f64>,
}

/// Adds `nested`, of `depth` levels, to the sums of these.
fn visit(
    nested: &Nested,
    depth: usize,
    sums: &mut [Sums],
    position: &mut Position,
) -> Result<Part> {
    let held = match (nested, depth) {
        (Nested::Value(value), 0) => return value_of(*value, sums.len(), position),
        (Nested::Group(held), 1..) => held,
        _ => return Err(Absent::UnevenDepth),
    };
    if depth == 1 {
        position.groups += 1;
        position.values = 0;
    }
    let parts = held
        .iter()
        .map(|part| visit(part, depth - 1, sums, position));
    let parts = parts.collect::<Result<Vec<Part>>>()?;
    if parts.is_empty() {
        return Err(empty());
    }
    let n = parts.len() as f64;
    let means = Moments::of(parts.iter().map(|part| part.mean));
    let total = |level: usize| parts.iter().map(|part| part.shares[level]).sum::<f64>();
    let own = &mut sums[depth - 1];
    own.groups += 1.0;
    own.children += n;
    own.weight += n - 1.0;
    own.squares += means.squares;
    for below in 0..depth - 1 {
        own.shares[below] += (n - 1.0) * total(below) / n;
    }
    let mut shares: Vec<f64> = (0..own.shares.len()).map(|l| total(l) / (n * n)).collect();
    shares[depth - 1] = 1.0 / n;
    Ok(Part {
        mean: means.mean,
        shares,
    })
}

fn value_of(value: f64, levels: usize, position: &mut Position) -> Result<Part> {
    position.values += 1;
    if !value.is_finite() {
        return Err(Absent::NotFinite {
            execution: position.groups,
            measurement: position.values,
        });
    }
    Ok(Part {
        mean: value,
        shares: vec![0.0; levels],
    })
}

/// How likely executions differ as much as these, or more, where measurements do not depend on the
/// execution at all: the F test of a one-way analysis of variance. It takes measurements for
/// independent and about normal.
///
/// # Errors
/// With fewer than two executions, where none has several measurements, and where nothing varies.
pub fn chance_of_equal_executions(sample: &Sample) -> Result<f64> {
    let executions = sample.executions();
    if executions.len() < 2 {
        return Err(Absent::NotRepeated { level: 1 });
    }
    let moments = executions
        .iter()
        .map(|values| Moments::of(values.iter().copied()));
    let moments: Vec<Moments> = moments.collect();
    let all = Moments::of(sample.values());
    let inner: f64 = moments.iter().map(|one| one.squares).sum();
    let (above, below) = (moments.len() as f64 - 1.0, all.n - moments.len() as f64);
    match (all.squares > 0.0, below > 0.0) {
        (_, false) => Err(Absent::NotRepeated { level: 2 }),
        (false, _) => Err(Absent::Constant),
        _ => {
            let between = (all.squares - inner).max(0.0) / above;
            Ok(student::fisher_beyond(
                between * below / inner,
                above,
                below,
            ))
        }
    }
}

/// How often to repeat each level below the outermost, so that a given precision costs
/// least; the caller rounds. `costs` are in seconds, outermost first: what one more at a
/// level takes without what is repeated in it, such as the start and the warm-up of an
/// execution, and for the innermost the measurement itself.
///
/// For neighbouring levels this is √(outer cost / inner cost × inner variance / outer
/// variance) (Kalibera and Jones 2013, equation 2). Where that is less than 1, once is
/// enough, and both levels are reckoned as one; negative variances count as zero.
///
/// # Errors
/// Where there are not as many costs as levels, or one is negative or not finite; where
/// nothing varies; and where repeating a level without end would be best.
pub fn plan(levels: &[Level], costs: &[f64]) -> Result<Vec<f64>> {
    if costs.len() != levels.len() || costs.is_empty() {
        return Err(out_of_range("the number of costs", "that of levels"));
    }
    if !costs.iter().all(|cost| cost.is_finite() && *cost >= 0.0) {
        return Err(out_of_range("a cost", "finite and not negative"));
    }
    let parts: Vec<Blocks> = levels.iter().zip(costs).map(Blocks::new).collect();
    if parts.iter().all(|part| part.variance == 0.0) {
        return Err(Absent::Constant);
    }
    // The number of units of a level, relative to other levels, should be √(variance /
    // cost); there cannot be fewer than of the level above.
    let mut blocks: Vec<Blocks> = Vec::new();
    for mut part in parts {
        while let Some(above) = blocks.pop_if(|above| !above.are_fewer_than(&part)) {
            part = above.with(&part);
        }
        blocks.push(part);
    }
    let mut repetitions = Vec::new();
    for (place, block) in blocks.iter().enumerate() {
        if place > 0 {
            let above = &blocks[place - 1];
            let squared = above.cost * block.variance / (block.cost * above.variance);
            if !squared.is_finite() {
                let level = repetitions.len() + 2;
                return Err(Absent::NoBest { level });
            }
            repetitions.push(squared.sqrt());
        }
        repetitions.extend(std::iter::repeat_n(1.0, block.levels - 1));
    }
    Ok(repetitions)
}

/// Neighbouring levels of which the inner ones are not repeated.
#[derive(Debug)]
struct Blocks {
    levels: usize,
    variance: f64,
    cost: f64,
}

impl Blocks {
    fn new((level, cost): (&Level, &f64)) -> Blocks {
        Blocks {
            levels: 1,
            variance: level.variance.max(0.0),
            cost: *cost,
        }
    }

    /// Whether fewer of these are best than of `inner`.
    fn are_fewer_than(&self, inner: &Blocks) -> bool {
        self.variance * inner.cost < inner.variance * self.cost
    }

    fn with(&self, inner: &Blocks) -> Blocks {
        Blocks {
            levels: self.levels + inner.levels,
            variance: self.variance + inner.variance,
            cost: self.cost + inner.cost,
        }
    }
}

/// How many of the outermost level, executions as a rule, it takes for an interval of the
/// mean whose half-width is `relative_error` (0.01 is 1 %) of `mean`, if each level below
/// is repeated as `counts` says, outermost first. The interval is that of
/// [`crate::mean::of`], so at least 2.
///
/// # Errors
/// Where there is not a count above zero for each level below the outermost, or an argument
/// is out of range, and where more than a billion would be needed.
pub fn executions_for(
    levels: &[Level],
    counts: &[usize],
    relative_error: f64,
    mean: f64,
    confidence: f64,
) -> Result<usize> {
    const MOST: usize = 1_000_000_000;
    if counts.len() + 1 != levels.len() || counts.contains(&0) {
        return Err(out_of_range(
            "each count",
            "above zero, one for each level below the outermost",
        ));
    }
    if !(relative_error > 0.0 && relative_error.is_finite()) {
        return Err(out_of_range("the relative error", "above zero"));
    }
    if !(confidence > 0.0 && confidence < 1.0) {
        return Err(out_of_range("the confidence", "between 0 and 1"));
    }
    if !(mean > 0.0 && mean.is_finite()) {
        return Err(Absent::MeanNotPositive);
    }
    let deviation = deviation_of_means(levels, counts) / (mean * relative_error);
    let enough = |executions: usize| {
        let n = executions as f64;
        student::quantile((1.0 + confidence) / 2.0, n - 1.0) * deviation <= n.sqrt()
    };
    if deviation == 0.0 {
        return Ok(2);
    }
    let mut high = 2;
    while !enough(high) {
        high *= 2;
        if high > MOST {
            return Err(Absent::TooLarge);
        }
    }
    let mut low = high / 2;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if enough(middle) {
            high = middle
        } else {
            low = middle
        }
    }
    Ok(high.max(2))
}

/// The standard deviation of the means of the outermost level's units. Negative components
/// count as they are, but not their sum.
fn deviation_of_means(levels: &[Level], counts: &[usize]) -> f64 {
    let mut repeated = 1.0;
    let mut variance = 0.0;
    for (place, level) in levels.iter().enumerate() {
        if place > 0 {
            repeated *= counts[place - 1] as f64;
        }
        variance += level.variance / repeated;
    }
    variance.max(0.0).sqrt()
}

fn out_of_range(what: &'static str, must: &'static str) -> Absent {
    Absent::OutOfRange { what, must }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(variances: &[f64]) -> Vec<Level> {
        let level = |variance: &f64| Level {
            size: 5.0,
            variance: *variance,
        };
        variances.iter().map(level).collect()
    }

    #[test]
    fn two_levels_have_the_papers_optimum() {
        // √(cost of an execution / of a measurement × variance within / between).
        let plan = plan(&levels(&[4.0, 9.0]), &[16.0, 1.0]).unwrap();
        assert_eq!(plan, [6.0]);
    }

    #[test]
    fn once_is_enough_where_the_inner_level_varies_less_or_costs_more() {
        assert_eq!(plan(&levels(&[4.0, 1.0]), &[1.0, 1.0]).unwrap(), [1.0]);
        assert_eq!(plan(&levels(&[4.0, -1.0]), &[1.0, 1.0]).unwrap(), [1.0]);
        assert_eq!(plan(&levels(&[4.0, 4.0]), &[0.0, 1.0]).unwrap(), [1.0]);
        // The middle level adds nothing: it is done once, and its cost is the outer one's.
        let three = plan(&levels(&[1.0, 0.0, 9.0]), &[3.0, 1.0, 2.0]).unwrap();
        assert_eq!(three, [1.0, 18.0f64.sqrt()]);
    }

    #[test]
    fn what_has_no_best_number_says_so() {
        let none = |variances: &[f64], costs: &[f64]| plan(&levels(variances), costs).unwrap_err();
        assert_eq!(none(&[0.0, 1.0], &[1.0, 1.0]), Absent::NoBest { level: 2 });
        assert_eq!(none(&[1.0, 1.0], &[1.0, 0.0]), Absent::NoBest { level: 2 });
        assert_eq!(none(&[0.0, -1.0], &[1.0, 1.0]), Absent::Constant);
        for costs in [&[1.0][..], &[1.0, -1.0], &[1.0, f64::NAN]] {
            assert!(matches!(
                none(&[1.0, 1.0], costs),
                Absent::OutOfRange { .. }
            ));
        }
    }

    #[test]
    fn executions_are_the_fewest_that_do() {
        let levels = levels(&[3.0, 8.0]);
        for (counts, error) in [(4, 0.1), (4, 0.01), (1, 0.05), (100, 0.5)] {
            let deviation = (3.0 + 8.0 / counts as f64).sqrt();
            let n = executions_for(&levels, &[counts], error, 10.0, 0.95).unwrap();
            let width = |n: usize| {
                let n = n as f64;
                student::quantile(0.975, n - 1.0) * deviation / n.sqrt()
            };
            assert!(width(n) <= error * 10.0);
            assert!(n == 2 || width(n - 1) > error * 10.0, "{n}");
        }
        assert_eq!(executions_for(&levels, &[4], 1e9, 10.0, 0.95), Ok(2));
        let tiny = executions_for(&levels, &[4], 1e-12, 10.0, 0.95);
        assert_eq!(tiny, Err(Absent::TooLarge));
    }

    /// As R's `anova(lm(v ~ factor(e)))` says of 1, 2, 3 and 2, 3, 5.
    #[test]
    fn the_chance_of_equal_executions_is_that_of_an_analysis_of_variance() {
        let of = |executions: &[&[f64]]| {
            let executions = executions.iter().map(|values| values.to_vec()).collect();
            chance_of_equal_executions(&Sample::new(executions).unwrap())
        };
        let found = of(&[&[1.0, 2.0, 3.0], &[2.0, 3.0, 5.0]]).unwrap();
        assert!((found - 0.274_6).abs() < 1e-3, "{found}");
        assert!(of(&[&[1.0, 1.0], &[2.0, 2.0]]).unwrap() < 1e-9);
        assert_eq!(of(&[&[1.0, 1.0], &[1.0, 1.0]]), Err(Absent::Constant));
        assert_eq!(of(&[&[1.0], &[2.0]]), Err(Absent::NotRepeated { level: 2 }));
        assert_eq!(of(&[&[1.0, 2.0]]), Err(Absent::NotRepeated { level: 1 }));
    }

    #[test]
    fn bad_depths_and_values_are_refused() {
        let value = Nested::Value;
        let group = |parts: &[Nested]| Nested::Group(parts.to_vec());
        let uneven = group(&[group(&[value(1.0)]), value(2.0)]);
        assert_eq!(of(&uneven), Err(Absent::UnevenDepth));
        assert_eq!(of(&value(1.0)), Err(Absent::NotRepeated { level: 1 }));
        let once = group(&[group(&[value(1.0)]), group(&[value(2.0)])]);
        assert_eq!(of(&once), Err(Absent::NotRepeated { level: 2 }));
        let bad = group(&[group(&[value(1.0)]), group(&[value(1.0), value(f64::NAN)])]);
        let found = of(&bad);
        assert_eq!(
            found,
            Err(Absent::NotFinite {
                execution: 2,
                measurement: 2
            })
        );
        assert!(of(&group(&[])).is_err());
        assert!(of(&group(&[group(&[]), group(&[value(1.0)])])).is_err());
    }
}
