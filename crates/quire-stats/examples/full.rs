//! The full statistics of a large study, and what they take: for each experiment and
//! variant the mean by both methods, both coefficients of variation and the impact factor,
//! and the ratios of the other variants to the first.
//!
//! `cargo run --release -p quire-stats --example full [EXPERIMENTS]`, 1,000 unless told,
//! each of 3 variants, 20 executions and 50 measurements, with 10,000 resamples, on all
//! processors. Prints the time and the most memory that was resident.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use quire_stats::random::SplitMix64;
use quire_stats::{Absent, Estimate, Sample, Settings, impact, mean, ratio, variation};

const VARIANTS: usize = 3;
const EXECUTIONS: usize = 20;
const MEASUREMENTS: usize = 50;

/// About normal, with mean 0 and deviation 1.
fn noise(random: &mut SplitMix64) -> f64 {
    let uniform = |random: &mut SplitMix64| random.below(1 << 30) as f64 / f64::from(1 << 30);
    (0..12).map(|_| uniform(random)).sum::<f64>() - 6.0
}

/// Seconds around 1, of which executions vary by 3 % and measurements by 1 %.
fn sample(random: &mut SplitMix64) -> Result<Sample, Absent> {
    let execution = |random: &mut SplitMix64| {
        let own = 1.0 + 0.03 * noise(random);
        (0..MEASUREMENTS)
            .map(|_| own + 0.01 * noise(random))
            .collect()
    };
    Sample::new((0..EXECUTIONS).map(|_| execution(random)).collect())
}

/// All figures of one experiment.
fn statistics(variants: &[Sample], settings: &Settings) -> Result<Vec<Estimate>, Absent> {
    let mut all = Vec::new();
    for variant in variants {
        all.push(mean::of(variant, settings)?);
        all.push(mean::bootstrap(variant, settings)?);
        all.push(variation::within(variant, settings)?);
        all.push(variation::unclassified(variant, settings)?);
        all.push(impact::factor(variant, settings)?);
    }
    for variant in &variants[1..] {
        all.push(ratio::of_means(variant, &variants[0], settings)?);
    }
    Ok(all)
}

/// The experiment numbered `number`, from its data on. How many figures it has.
fn experiment(number: usize) -> Result<usize, Absent> {
    let mut random = SplitMix64::new(number as u64);
    let variants: Result<Vec<Sample>, Absent> =
        (0..VARIANTS).map(|_| sample(&mut random)).collect();
    Ok(statistics(&variants?, &Settings::default())?.len())
}

fn main() {
    let experiments = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let experiments = experiments.unwrap_or(1000);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, figures) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= experiments {
                        break;
                    }
                    match experiment(number) {
                        Ok(count) => _ = figures.fetch_add(count, Ordering::Relaxed),
                        Err(absent) => eprintln!("experiment {number}: {absent}"),
                    }
                }
            });
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    println!(
        "{experiments} experiments of {VARIANTS} variants, {EXECUTIONS} executions and \
         {MEASUREMENTS} measurements, {} figures: {seconds:.1} s on {threads} threads, \
         {} resident at most",
        figures.into_inner(),
        peak.map_or("unknown memory", str::trim)
    );
}
