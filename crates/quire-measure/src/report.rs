//! `quire report`: what results of benchmarks mean.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use quire_lab::import::{self, ImportError};
use quire_lab::report::{Report, data, html, markdown};
use quire_lab::run::Run;
use quire_stats::{Intervals, Settings};

use crate::args::{IntervalMethod, ReportArgs, ReportFormat, StatisticsArgs};
use crate::failure::{Failure, Outcome};
use crate::output::Output;

/// Where a page goes, unless it is said otherwise.
const PAGE: &str = "quire-report.html";
/// What stands for standard output.
const STANDARD_OUTPUT: &str = "-";

/// Reads the results, computes, and writes.
pub fn report(options: &ReportArgs) -> Outcome<()> {
    let format = format(options)?;
    let page = (format == ReportFormat::Html).then(|| PathBuf::from(PAGE));
    let path = options.output.clone().or(page);
    let path = path.filter(|path| path.as_os_str() != STANDARD_OUTPUT);
    let output = path.as_deref().map(Output::create).transpose()?;
    let mut run = results(&options.runs, options.ignore_failure)?;
    if let Some(reference) = &options.reference {
        run.compare_with(reference).map_err(Failure::bad_usage)?;
    }
    let settings = Settings {
        intervals: match options.intervals {
            IntervalMethod::Percentile => Intervals::Percentile,
            IntervalMethod::Bca => Intervals::Bca,
        },
        ..settings(&options.statistics, &run)
    };
    let text = match format {
        ReportFormat::Data => import::csv::text(&run),
        ReportFormat::Html => html::page(&Report::of(run, settings)),
        ReportFormat::Markdown => markdown::text(&Report::of(run, settings)),
        ReportFormat::Csv => data::csv(&Report::of(run, settings)),
        ReportFormat::Json => data::json(&Report::of(run, settings))?,
    };
    match (output, path) {
        (Some(output), Some(path)) => {
            output.write(&text)?;
            Ok(writeln!(io::stdout(), "{}", path.display())?)
        }
        _ => Ok(io::stdout().write_all(text.as_bytes())?),
    }
}

/// The format that is asked for, or that the ending of the output's name says.
fn format(options: &ReportArgs) -> Outcome<ReportFormat> {
    if let Some(format) = options.format {
        return Ok(format);
    }
    let ending = options.output.as_deref().and_then(Path::extension);
    match ending.map(|ending| ending.to_string_lossy().to_ascii_lowercase()) {
        None => Ok(ReportFormat::Html),
        Some(ending) => match ending.as_str() {
            "html" | "htm" => Ok(ReportFormat::Html),
            "md" | "markdown" => Ok(ReportFormat::Markdown),
            "json" => Ok(ReportFormat::Json),
            "csv" => Ok(ReportFormat::Csv),
            other => Err(Failure::bad_usage(format!(
                "--output: a name that ends in .{other} does not say what to write; add --format"
            ))),
        },
    }
}

/// The results of these files; with those of runs that failed, where these are to be taken.
pub fn results(paths: &[PathBuf], ignore_failure: bool) -> Outcome<Run> {
    let mut run = import::read_all(paths).map_err(|error| refused(&error))?;
    if ignore_failure {
        run.take_failed().map_err(Failure::bad_usage)?;
    }
    Ok(run)
}

/// Results that cannot be read.
fn refused(error: &ImportError) -> Failure {
    Failure::bad_usage(error.to_string())
}

/// How intervals of these results are computed.
pub fn settings(options: &StatisticsArgs, run: &Run) -> Settings {
    Settings {
        resamples: usize::try_from(options.resamples).unwrap_or(usize::MAX),
        confidence: options.confidence,
        seed: options.seed.unwrap_or(run.header.seed),
        ..Settings::default()
    }
}
