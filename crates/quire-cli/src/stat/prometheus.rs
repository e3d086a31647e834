//! The text format that Prometheus scrapes: what `quire stat` knows, as metrics.
//!
//! Every process is one series of each metric, with the labels `pid`, `command`
//! and `policy`. Units are the base ones, bytes and seconds, and the names of
//! counters end in `_total`, as the format's conventions ask. Processes that leave
//! frames to the kernel have no series about frames.

use std::fmt::{self, Display};

use quire_core::exposition::{Exposition, Family, Kind};
use quire_core::stat::{ProcessStat, Totals};
use quire_core::units::{BASE_PAGE, PageCount};
use quire_linux::sysinfo::{Psi, PsiLine};

use super::machine::Machine;

/// What a counter of a process is called outside.
struct Metric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    value: fn(&Totals) -> Value,
}

/// A number as the format writes it.
#[derive(Clone, Copy)]
enum Value {
    Count(u64),
    Nanoseconds(u64),
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Count(n) => write!(f, "{n}"),
            Value::Nanoseconds(n) => write!(f, "{}.{:09}", n / 1_000_000_000, n % 1_000_000_000),
        }
    }
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Totals) -> Value) -> Metric {
    Metric {
        name,
        kind: Kind::Gauge,
        help,
        value,
    }
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Totals) -> Value) -> Metric {
    Metric {
        kind: Kind::Counter,
        ..gauge(name, help, value)
    }
}

const METRICS: [Metric; 22] = [
    gauge("quire_mapped_bytes", "Managed address space.", |t| {
        Value::Count(t.mapped_bytes)
    }),
    gauge(
        "quire_populated_bytes",
        "Managed memory that the program has populated.",
        |t| Value::Count(t.populated_bytes),
    ),
    gauge(
        "quire_populated_peak_bytes",
        "Most managed memory populated at once.",
        |t| Value::Count(t.populated_peak_bytes),
    ),
    gauge(
        "quire_reserved_bytes",
        "Memory reserved and not populated.",
        |t| Value::Count(t.reserved_bytes),
    ),
    gauge(
        "quire_reserved_peak_bytes",
        "Most memory reserved and not populated at once.",
        |t| Value::Count(t.reserved_peak_bytes),
    ),
    gauge("quire_superpages", "Superpages mapped.", |t| {
        Value::Count(t.superpages)
    }),
    gauge(
        "quire_superpages_peak",
        "Most superpages mapped at once.",
        |t| Value::Count(t.superpages_peak),
    ),
    gauge(
        "quire_gigapages",
        "Pages of 1 GiB mapped; each counts as 512 superpages, too.",
        |t| Value::Count(t.gigapages),
    ),
    gauge(
        "quire_pool_superpages",
        "Superpages zeroed ahead of need and not used yet.",
        |t| Value::Count(t.pool_ready),
    ),
    counter("quire_reservations_total", "Reservations made.", |t| {
        Value::Count(t.reservations)
    }),
    counter(
        "quire_failed_reservations_total",
        "Reservations, or copies, that failed for want of a block or of memory.",
        |t| Value::Count(t.failed_reservations),
    ),
    counter(
        "quire_promotions_total",
        "Extents that became a superpage, in place or by a copy.",
        |t| Value::Count(t.promotions),
    ),
    counter(
        "quire_advised_extents_total",
        "Extents that the kernel was advised to give superpages at the first touch.",
        |t| Value::Count(t.advised),
    ),
    counter(
        "quire_refused_extents_total",
        "Extents that the kernel refused to make a superpage of.",
        |t| Value::Count(t.refused),
    ),
    counter(
        "quire_demotions_total",
        "Superpages that went back to base pages.",
        |t| Value::Count(t.demotions),
    ),
    counter(
        "quire_preemptions_total",
        "Reservations whose unpopulated pages were taken back.",
        |t| Value::Count(t.preemptions),
    ),
    counter(
        "quire_pager_faults_total",
        "Faults that the pager resolved.",
        |t| Value::Count(t.pager_faults),
    ),
    counter(
        "quire_forks_total",
        "Forks in which managed memory was split.",
        |t| Value::Count(t.forks),
    ),
    counter(
        "quire_returned_total",
        "Superpages taken back by the parent after a fork.",
        |t| Value::Count(t.returned),
    ),
    counter(
        "quire_pager_cpu_seconds_total",
        "CPU time of the pager, or of the thread that looks and advises.",
        |t| Value::Nanoseconds(t.pager_cpu_ns),
    ),
    counter(
        "quire_promotion_seconds_total",
        "Time that promotions took.",
        |t| Value::Nanoseconds(t.promotion_ns),
    ),
    counter(
        "quire_call_seconds_total",
        "Time that the program's threads spent in Quire's calls.",
        |t| Value::Nanoseconds(t.call_time_ns),
    ),
];

/// All metrics.
pub fn metrics(processes: &[ProcessStat], machine: &Machine) -> String {
    let mut page = Exposition::default();
    process_info(&mut page, processes);
    for metric in &METRICS {
        let mut family = page.family(metric.name, metric.kind, metric.help);
        for stat in processes {
            let value = (metric.value)(&stat.totals);
            family.sample(&process_labels(stat), value);
        }
    }
    frames(&mut page, processes);
    free_blocks(&mut page, &machine.free_blocks);
    if let Some(psi) = &machine.pressure {
        pressure(&mut page, psi);
    }
    page.into_text()
}

type Label = (&'static str, String);

fn process_labels(stat: &ProcessStat) -> Vec<Label> {
    vec![
        ("pid", stat.pid.to_string()),
        ("command", stat.comm.clone()),
        ("policy", stat.policy.to_string()),
    ]
}

fn process_info(page: &mut Exposition, processes: &[ProcessStat]) {
    let help = "A managed process and its settings.";
    let mut family = page.family("quire_process_info", Kind::Gauge, help);
    for stat in processes {
        let align = if stat.align { "on" } else { "off" };
        let mut labels = process_labels(stat);
        labels.push(("faults", stat.privilege.name().to_owned()));
        labels.push(("align", align.to_owned()));
        family.sample(&labels, 1);
    }
}

/// What strategies gave, for the processes that use any.
fn frames(page: &mut Exposition, processes: &[ProcessStat]) {
    let users: Vec<&ProcessStat> = processes
        .iter()
        .filter(|stat| !stat.strategies.is_empty())
        .collect();
    let help = "Touches of missing pages that a strategy answered with frames.";
    let mut reports = page.family("quire_frame_reports_total", Kind::Counter, help);
    for stat in &users {
        reports.sample(&process_labels(stat), stat.totals.frame_faults);
    }
    let help = "Memory in stock, whose frames strategies may choose.";
    let mut stock = page.family("quire_frame_stock_bytes", Kind::Gauge, help);
    for stat in &users {
        let pages = PageCount(stat.totals.frames_stocked);
        stock.sample(&process_labels(stat), pages.to_bytes().0);
    }
    let help = "Pages that have a strategy, by whose frame they got: one that it chose, any other in stock, or one left to the kernel.";
    let mut pages = page.family("quire_frame_pages_total", Kind::Counter, help);
    for stat in users {
        strategy_pages(&mut pages, stat);
    }
}

fn strategy_pages(pages: &mut Family<'_>, stat: &ProcessStat) {
    for strategy in stat.strategies.iter().filter(|s| !s.is_kernels()) {
        let counts = strategy.counts;
        for (frame, count) in [
            ("chosen", counts.chosen),
            ("other", counts.other),
            ("left", counts.left),
        ] {
            let mut labels = process_labels(stat);
            labels.push(("target", strategy.target.clone()));
            labels.push(("strategy", strategy.strategy.clone()));
            labels.push(("frame", frame.to_owned()));
            pages.sample(&labels, count.0);
        }
    }
}

fn free_blocks(page: &mut Exposition, free_blocks: &[u64]) {
    let help = "Free blocks of the machine by size.";
    let mut family = page.family("quire_machine_free_blocks", Kind::Gauge, help);
    for (order, count) in free_blocks.iter().enumerate() {
        let labels = [
            ("order", order.to_string()),
            ("bytes", (BASE_PAGE << order).to_string()),
        ];
        family.sample(&labels, count);
    }
}

fn pressure(page: &mut Exposition, psi: &Psi) {
    let tasks = [("some", &psi.some), ("full", &psi.full)];
    let name = "quire_machine_memory_pressure_ratio";
    let help = "Part of the time in which some or all tasks waited for memory.";
    let mut ratio = page.family(name, Kind::Gauge, help);
    for (who, line) in tasks {
        for (window, percent) in windows(line) {
            ratio.sample(&[("tasks", who), ("window", window)], percent / 100.0);
        }
    }
    let name = "quire_machine_memory_waiting_seconds_total";
    let help = "Time in which some or all tasks waited for memory.";
    let mut waiting = page.family(name, Kind::Counter, help);
    for (who, line) in tasks {
        let waited = Value::Nanoseconds(line.total_us.saturating_mul(1000));
        waiting.sample(&[("tasks", who)], waited);
    }
}

fn windows(line: &PsiLine) -> [(&'static str, f64); 3] {
    [
        ("10s", line.avg10),
        ("60s", line.avg60),
        ("300s", line.avg300),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;
    use quire_core::config::Policy;
    use quire_core::stat::{Counter, FrameTally, Given, StatPage, StrategyName};
    use quire_core::units::VirtAddr;

    use super::*;

    /// A series as a scraper keeps it: the name and the labels.
    type Series = (String, BTreeMap<String, String>);

    /// What a scraper knows after reading a page.
    #[derive(Debug, Default)]
    struct Scraped {
        types: BTreeMap<String, String>,
        helps: BTreeMap<String, String>,
        samples: Vec<(Series, f64)>,
    }

    /// Reads the text format, version 0.0.4, and panics at what it forbids.
    fn scrape(text: &str) -> Scraped {
        assert!(text.ends_with('\n'), "the last line must end");
        let mut scraped = Scraped::default();
        let mut seen = BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(scraped.helps.insert(name.into(), help.into()).is_none());
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(["counter", "gauge"].contains(&kind), "{line}");
                assert!(scraped.samples.iter().all(|((other, _), _)| other != name));
                assert!(scraped.types.insert(name.into(), kind.into()).is_none());
            } else {
                let (series, value) = sample(line);
                assert!(scraped.types.contains_key(&series.0), "no type: {line}");
                let group = scraped.samples.last().map(|((name, _), _)| name.clone());
                if group.as_ref() != Some(&series.0) {
                    assert!(seen.insert(series.0.clone()), "split group: {line}");
                }
                assert!(scraped.samples.iter().all(|(s, _)| *s != series), "{line}");
                scraped.samples.push((series, value));
            }
        }
        scraped
    }

    fn is_name(name: &str) -> bool {
        let mut chars = name.chars();
        chars
            .next()
            .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    /// `name{label="value",...} number`.
    fn sample(line: &str) -> (Series, f64) {
        let (name, mut rest) = line.split_once('{').expect("every series has labels");
        assert!(is_name(name), "{line}");
        let mut labels = BTreeMap::new();
        loop {
            let (label, after) = rest.split_once("=\"").unwrap();
            assert!(is_name(label), "{line}");
            let (value, after) = quoted(after);
            assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
            if let Some(number) = after.strip_prefix("} ") {
                return ((name.to_owned(), labels), number.parse().unwrap());
            }
            rest = after.strip_prefix(',').expect("a comma between labels");
        }
    }

    /// The text up to the closing quote, and what follows it.
    fn quoted(text: &str) -> (String, &str) {
        let mut value = String::new();
        let mut chars = text.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => return (value, &text[at + 1..]),
                '\\' => match chars.next().expect("an escape has two characters").1 {
                    'n' => value.push('\n'),
                    c @ ('\\' | '"') => value.push(c),
                    c => panic!("unknown escape {c}"),
                },
                c => value.push(c),
            }
        }
        panic!("no closing quote in {text}");
    }

    /// A process whose heap has a strategy.
    fn with_strategies(pid: u32) -> ProcessStat {
        let page = Box::new(StatPage::default());
        page.identify(pid, 5, "solver", Policy::Reserve);
        let name = |target: &str, strategy: &str| StrategyName {
            target: target.to_owned(),
            strategy: strategy.to_owned(),
        };
        page.name_strategies(&[name("default", "default"), name("heap", "modulo:0-3")]);
        page.set(Counter::FramesStocked, 512);
        page.add(Counter::FrameFaults, 3);
        let mut tally = FrameTally::default();
        for (given, pages) in [(Given::Chosen, 40), (Given::Other, 2)] {
            let at = (1, VirtAddr(0x1000));
            tally.count(&page, at, (given, PageCount(pages)), || None);
        }
        page.read().unwrap()
    }

    fn process(pid: u32, comm: &str) -> ProcessStat {
        let page = Box::new(StatPage::default());
        page.identify(pid, 5, "", Policy::Adaptive);
        page.set_align(true);
        let mut stat = page.read().unwrap();
        stat.comm = comm.to_owned();
        stat.totals.promotions = 7;
        stat.totals.pager_cpu_ns = 1_000_000_001;
        (stat.totals.advised, stat.totals.refused) = (496, 2);
        stat
    }

    fn machine() -> Machine {
        Machine {
            free_blocks: vec![5, 0, 3],
            pressure: Some(Psi {
                some: PsiLine {
                    avg10: 12.5,
                    total_us: 1_500_000,
                    ..PsiLine::default()
                },
                full: PsiLine::default(),
            }),
        }
    }

    impl Scraped {
        fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
            let has = |series: &Series| {
                let found = |(k, v): &(&str, &str)| series.1.get(*k).is_some_and(|x| x == v);
                series.0 == name && labels.iter().all(found)
            };
            let mut found = self.samples.iter().filter(|(series, _)| has(series));
            let value = found.next().expect("the series is there").1;
            assert!(found.next().is_none(), "{name} {labels:?} is ambiguous");
            value
        }
    }

    #[test]
    fn a_scraper_finds_every_figure() {
        let scraped = scrape(&metrics(&[process(1, "a"), process(2, "b")], &machine()));
        let value = |name, labels: &[(&str, &str)]| scraped.value(name, labels);
        let one = [("pid", "1"), ("command", "a"), ("policy", "adaptive")];
        assert_eq!(value("quire_promotions_total", &one), 7.0);
        assert_eq!(value("quire_pager_cpu_seconds_total", &one), 1.000_000_001);
        assert_eq!(value("quire_advised_extents_total", &one), 496.0);
        assert_eq!(value("quire_refused_extents_total", &one), 2.0);
        assert_eq!(
            value("quire_process_info", &[("pid", "2"), ("align", "on")]),
            1.0
        );
        let blocks = [("order", "2"), ("bytes", "16384")];
        assert_eq!(value("quire_machine_free_blocks", &blocks), 3.0);
        let some = [("tasks", "some"), ("window", "10s")];
        assert_eq!(value("quire_machine_memory_pressure_ratio", &some), 0.125);
        let waited = "quire_machine_memory_waiting_seconds_total";
        assert_eq!(value(waited, &[("tasks", "some")]), 1.5);
    }

    #[test]
    fn frames_are_counted_where_strategies_are_used() {
        let text = metrics(&[process(1, "a"), with_strategies(2)], &machine());
        let scraped = scrape(&text);
        let of_heap = |frame| {
            let labels = [
                ("pid", "2"),
                ("target", "heap"),
                ("strategy", "modulo:0-3"),
                ("frame", frame),
            ];
            scraped.value("quire_frame_pages_total", &labels)
        };
        assert_eq!(["chosen", "other", "left"].map(of_heap), [40.0, 2.0, 0.0]);
        let of_process = [("pid", "2"), ("command", "solver"), ("policy", "reserve")];
        let stock = scraped.value("quire_frame_stock_bytes", &of_process);
        assert_eq!(stock, 2_097_152.0);
        assert_eq!(scraped.value("quire_frame_reports_total", &of_process), 3.0);
        let about_frames = |line: &&str| line.starts_with("quire_frame_");
        let series: Vec<&str> = text.lines().filter(about_frames).collect();
        assert_eq!(series.len(), 5, "{series:?}");
        assert!(series.iter().all(|line| line.contains("pid=\"2\"")));
    }

    #[test]
    fn names_follow_the_conventions() {
        let scraped = scrape(&metrics(&[process(1, "a"), with_strategies(2)], &machine()));
        assert_eq!(scraped.helps.len(), scraped.types.len());
        for (name, kind) in &scraped.types {
            assert!(is_name(name) && name.starts_with("quire_"), "{name}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            assert!(scraped.helps[name].ends_with('.'), "{name}");
        }
    }

    #[test]
    fn without_processes_only_the_machine_is_left() {
        let mut machine = machine();
        machine.pressure = None;
        let scraped = scrape(&metrics(&[], &machine));
        assert_eq!(scraped.samples.len(), 3);
    }

    proptest! {
        #[test]
        fn any_command_name_survives(name in any::<String>()) {
            let text = metrics(&[process(1, &name)], &machine());
            // A scraper splits lines at line feeds only.
            let line = text.split('\n').find(|l| l.starts_with("quire_superpages{")).unwrap();
            prop_assert_eq!(&sample(line).0.1["command"], &name);
        }
    }
}
