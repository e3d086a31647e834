//! The configuration file of the service (TOML).

use std::fmt::Display;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use quire_core::attach::{CpuShare, Threshold};
use quire_core::located::{self, FileError, Wrong};
use quire_core::units::Bytes;
use serde::Deserialize;
use toml::Spanned;

use crate::heat::Accesses;
use crate::plan::{INTERVAL, LIVED, Pattern, Plan, Rule, Who};

/// What a file says.
#[derive(Clone, Debug)]
pub struct Config {
    /// What to do.
    pub plan: Plan,
    /// Where Prometheus fetches metrics.
    pub metrics: Option<SocketAddr>,
}

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cpu: Option<Spanned<f64>>,
    interval: Option<Spanned<f64>>,
    metrics: Option<Spanned<String>>,
    accesses: Option<Spanned<String>>,
    #[serde(default)]
    rule: Vec<Spanned<FileRule>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRule {
    program: Option<Spanned<String>>,
    cgroup: Option<Spanned<String>>,
    min_size: Option<Spanned<String>>,
    threshold: Option<Spanned<String>>,
    cpu: Option<Spanned<f64>>,
    #[serde(default)]
    exclude: bool,
}

/// Reads a file.
///
/// # Errors
/// When it cannot be read, or says something that is not understood; the
/// message names the line.
pub fn read(path: &Path) -> Result<Config, FileError> {
    let text = fs::read_to_string(path).map_err(FileError::unread(path))?;
    Ok(parse(&text).map_err(|wrong| wrong.in_file(path, &text))?)
}

fn parse(text: &str) -> Result<Config, Wrong> {
    let file: File = toml::from_str(text)
        .map_err(|error| Wrong::new(error.span().unwrap_or(0..0), error.message()))?;
    let rules = file.rule.into_iter().map(rule);
    let plan = Plan {
        who: Who::Rules(rules.collect::<Result<_, _>>()?),
        cpu: file.cpu.map_or(Ok(CpuShare::DEFAULT), share)?,
        interval: file.interval.map_or(Ok(INTERVAL), interval)?,
        accesses: read_as::<Accesses>(file.accesses)?.unwrap_or_default(),
        lived: LIVED,
    };
    Ok(Config {
        plan,
        metrics: read_as(file.metrics)?,
    })
}

fn rule(rule: Spanned<FileRule>) -> Result<Rule, Wrong> {
    let at = rule.span();
    let rule = rule.into_inner();
    if rule.program.is_none() && rule.cgroup.is_none() && rule.min_size.is_none() {
        let message = "a rule needs at least one of `program`, `cgroup` and `min_size`";
        return Err(Wrong::new(at, message));
    }
    Ok(Rule {
        program: pattern(rule.program)?,
        cgroup: pattern(rule.cgroup)?,
        min_size: read_as::<Bytes>(rule.min_size)?.unwrap_or_default(),
        threshold: read_as::<Threshold>(rule.threshold)?.unwrap_or_default(),
        cpu: rule.cpu.map(share).transpose()?,
        exclude: rule.exclude,
    })
}

fn pattern(text: Option<Spanned<String>>) -> Result<Option<Pattern>, Wrong> {
    let read = |text: Spanned<String>| {
        Pattern::new(text.get_ref()).map_err(|error| Wrong::new(text.span(), error))
    };
    text.map(read).transpose()
}

fn share(percent: Spanned<f64>) -> Result<CpuShare, Wrong> {
    let wrong = "`cpu` is a percentage of one processor, from 0.01 to 100";
    CpuShare::from_percent(*percent.get_ref()).ok_or_else(|| Wrong::new(percent.span(), wrong))
}

fn interval(seconds: Spanned<f64>) -> Result<Duration, Wrong> {
    let wrong = "`interval` is a number of seconds, from 0.01 to 3600";
    interval_of(*seconds.get_ref()).ok_or_else(|| Wrong::new(seconds.span(), wrong))
}

/// The interval of so many seconds; nothing below 0.01 and above an hour.
#[must_use]
pub fn interval_of(seconds: f64) -> Option<Duration> {
    (0.01..=3600.0)
        .contains(&seconds)
        .then(|| Duration::from_secs_f64(seconds))
}

fn read_as<T>(text: Option<Spanned<String>>) -> Result<Option<T>, Wrong>
where
    T: FromStr<Err: Display>,
{
    text.map(|text| located::parse(text.get_ref(), text.span()))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> (usize, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("attach.toml");
        fs::write(&path, text).unwrap();
        match read(&path) {
            Err(FileError::Content(wrong)) => (wrong.line, wrong.message),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_is_read() {
        let text = "cpu = 0.5\nmetrics = '127.0.0.1:9435'\naccesses = 'none'\n\
            [[rule]]\nprogram = 'java'\nmin_size = '256M'\nthreshold = '75%'\ncpu = 1\n\
            [[rule]]\ncgroup = '/batch/*'\nexclude = true\n";
        let config = parse(text).unwrap();
        assert_eq!(config.plan.cpu.percent(), 0.5);
        assert_eq!(config.plan.interval, INTERVAL);
        assert_eq!(config.plan.accesses, Accesses::None);
        assert_eq!(config.metrics.unwrap().port(), 9435);
        let Who::Rules(rules) = config.plan.who else {
            panic!("rules");
        };
        assert_eq!(rules[0].min_size, Bytes::mib(256));
        assert_eq!(rules[0].threshold.pages().0, 384);
        assert_eq!(rules[0].cpu.unwrap().percent(), 1.0);
        assert!(rules[1].exclude && rules[1].cgroup.as_ref().unwrap().fits("/batch/7"));
    }

    #[test]
    fn an_empty_file_selects_nothing() {
        let config = parse("").unwrap();
        assert!(matches!(config.plan.who, Who::Rules(rules) if rules.is_empty()));
        assert_eq!(config.plan.cpu, CpuShare::DEFAULT);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let cases = [
            ("cpu = 1\ncpuu = 2\n", 2, "cpuu"),
            ("\n\ncpu = 0\n", 3, "percentage"),
            ("interval = -1", 1, "seconds"),
            ("metrics = 'here'", 1, "socket address"),
            (
                "[[rule]]\nprogram = 'x'\n\n[[rule]]\nthreshold = '5'\n",
                4,
                "at least one",
            ),
            (
                "[[rule]]\nprogram = 'x'\nthreshold = '600'\n",
                3,
                "threshold",
            ),
            ("[[rule]]\nprogram = '['\n", 2, "["),
            ("[[rule]]\nmin_size = 'big'\n", 2, "size"),
            ("[[rule]]\nprogram = 7\n", 2, "string"),
            ("accesses = 'guess'\n", 1, "guess"),
            ("cpu = \n", 1, ""),
        ];
        for (text, line, word) in cases {
            let (found, message) = refused(text);
            assert_eq!(found, line, "{text}: {message}");
            assert!(
                message.contains(word) && !message.contains('\n'),
                "{message}"
            );
        }
    }
}
