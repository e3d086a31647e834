//! What the kernel was advised, and what came of it.

use quire_core::units::Bytes;

use super::{Report, count, processes, time};

/// A process says nothing before it has grown so far.
const LEAST: Bytes = Bytes::mib(64);

/// What is known of a run, on one line.
pub fn gist(report: &Report) -> String {
    match &report.setting.switched {
        Some(Ok(())) => "transparent huge pages were switched off".to_owned(),
        Some(Err(error)) => format!(
            "transparent huge pages could not be switched off ({error}), so they are as without quire"
        ),
        None if !report.processes.is_empty() => figures(report),
        None => nothing_said(report),
    }
}

/// The remark about statistics pages of other users.
pub fn foreign(pages: usize) -> String {
    let pages = count(pages as u64, "statistics page");
    format!(
        "{pages} of another user could not be read, so what was advised there is not known (root can read them)"
    )
}

/// Where no page could be read it is not known whether anything was advised: a process may
/// have been unable to write its page, such as one that has changed its root directory.
fn nothing_said(report: &Report) -> String {
    match &report.setting.no_session {
        Some(why) => format!("what was advised is not known: {why}"),
        None if report.foreign > 0 => "what was advised is not known".to_owned(),
        None => format!(
            "nothing was advised, as far as is known: no process said that it had grown to {LEAST}"
        ),
    }
}

fn figures(report: &Report) -> String {
    let t = &report.totals;
    let looking = t.pager_cpu_ns.saturating_sub(t.promotion_ns);
    format!(
        "{} at the peak, {} populated; {} by a copy, {} advised at the first touch, {} refused{}{}; looking {}, copying {}; {}",
        count(t.superpages_peak, "superpage"),
        Bytes(t.populated_peak_bytes),
        t.promotions,
        t.advised,
        t.refused,
        more(report),
        report.others(),
        time(looking),
        time(t.promotion_ns),
        processes(report.processes.len()),
    )
}

/// What does not happen in most runs, where it did.
fn more(report: &Report) -> String {
    let t = &report.totals;
    let kinds = [
        (t.failed_reservations, "failed for want of a free block"),
        (t.demotions, "became base pages again"),
    ];
    let happened = kinds.iter().filter(|(times, _)| *times > 0);
    happened
        .map(|(times, what)| format!(", {times} {what}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use clap::Parser;
    use quire_core::config::{Policy, Way};
    use quire_core::stat::{Counter, Note, ProcessStat, StatPage};
    use quire_core::units::Bytes;
    use quire_linux::sysinfo::signals::Ended;

    use crate::args::{Cli, Command, RunArgs};
    use crate::run::program::Program;
    use crate::run::report::{Report, Setting};
    use crate::session::{Entry, NoSession};

    fn options(words: &[&str]) -> RunArgs {
        let words = ["quire", "run"].iter().chain(words);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Run(options) => options,
            _ => panic!("not `quire run`"),
        }
    }

    fn setting() -> Setting {
        Setting {
            way: Way::Advise,
            switched: None,
            no_session: None,
        }
    }

    fn summary(words: &[&str], stats: Vec<io::Result<ProcessStat>>, setting: Setting) -> String {
        let program = Program {
            path: "/bin/x".into(),
            name: "x".to_owned(),
            unmanaged: words.contains(&"static").then_some("is statically linked"),
            files: Vec::new(),
        };
        let entries = stats.into_iter().map(|stat| Entry {
            path: "/s/stat.7".into(),
            stat: stat.map_err(Into::into),
        });
        let ended = Ended {
            code: Some(0),
            signal: None,
            user: Duration::ZERO,
            system: Duration::ZERO,
            minor_faults: 0,
            major_faults: 0,
            peak: Bytes::ZERO,
            voluntary_switches: 0,
            involuntary_switches: 0,
        };
        let ended = (ended, Duration::ZERO);
        Report::new(&options(words), &program, ended, entries.collect(), setting).summary()
    }

    fn process(counters: &[(Counter, u64)], note: Option<Note>) -> io::Result<ProcessStat> {
        let page = Box::new(StatPage::default());
        page.identify(7, 9, "x", Policy::Adaptive);
        counters.iter().for_each(|(c, n)| page.add(*c, *n));
        note.into_iter().for_each(|note| page.note(note));
        Ok(page.read().unwrap())
    }

    #[test]
    fn figures_are_on_one_line() {
        let counters = [
            (Counter::SuperpagesPeak, 510),
            (Counter::PopulatedPeak, 1 << 30),
            (Counter::Promotions, 14),
            (Counter::Advised, 496),
            (Counter::PagerCpu, 15_100_000),
            (Counter::PromotionTime, 12_000_000),
        ];
        let text = summary(&["x"], vec![process(&counters, None)], setting());
        assert_eq!(
            text,
            "quire: adaptive: 510 superpages at the peak, 1 GiB populated; 14 by a copy, \
             496 advised at the first touch, 0 refused; looking 3.1 ms, copying 12 ms; 1 process\n"
        );
        let rare = [
            (Counter::FailedReservations, 2),
            (Counter::Demotions, 3),
            (Counter::FilePromotions, 4),
        ];
        let stats = vec![process(&rare, Some(Note::NoCollapse)), process(&[], None)];
        let text = summary(&["x"], stats, setting());
        for part in [
            "0 refused, 2 failed for want of a free block, 3 became base pages again; 4 superpages of files",
            "; 2 processes\n",
            Note::NoCollapse.text(),
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn nothing_is_said_that_is_not_known() {
        let none = summary(&["x"], Vec::new(), setting());
        assert!(none.contains("as far as is known: no process said that it had grown to 64 MiB"));
        let denied = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        let foreign = summary(&["x"], vec![denied(), denied()], setting());
        assert!(
            foreign.contains("adaptive: what was advised is not known\n"),
            "{foreign}"
        );
        assert!(
            foreign.contains("2 statistics pages of another user"),
            "{foreign}"
        );
        let some = summary(&["x"], vec![denied(), process(&[], None)], setting());
        assert!(
            some.contains("; 1 process\n") && some.contains("of another user"),
            "{some}"
        );
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let setting = Setting {
            no_session: Some(NoSession(vec![("/dev/shm".into(), full)])),
            ..setting()
        };
        let text = summary(&["x"], Vec::new(), setting);
        assert!(
            text.contains("not known: no directory for statistics could be made"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }

    #[test]
    fn base_pages_are_every_programs() {
        let switched = |switched| Setting {
            switched: Some(switched),
            ..setting()
        };
        let words = ["--policy", "base", "static"];
        let text = summary(&words, Vec::new(), switched(Ok(())));
        assert_eq!(
            text,
            "quire: base: transparent huge pages were switched off\n"
        );
        let refused = io::Error::from(io::ErrorKind::PermissionDenied);
        let text = summary(&words, Vec::new(), switched(Err(refused)));
        assert!(text.contains("could not be switched off"), "{text}");
        let text = summary(&["static"], Vec::new(), setting());
        assert!(
            text.contains("not managed: x is statically linked"),
            "{text}"
        );
    }

    #[test]
    fn a_share_that_has_no_effect_is_told() {
        let provide = || Setting {
            way: Way::Provide,
            ..setting()
        };
        let words = ["--policy", "reserve", "--cpu", "5", "x"];
        let text = summary(&words, Vec::new(), provide());
        assert!(text.contains("--cpu has no effect"), "{text}");
        let text = summary(&["--cpu", "5", "x"], Vec::new(), setting());
        assert!(!text.contains("--cpu"), "{text}");
    }
}
