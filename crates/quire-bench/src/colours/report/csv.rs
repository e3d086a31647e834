//! Every figure of every experiment under every allocation, one in a row.

use std::fmt::Write;

use crate::colours::report::Report;

const HEADER: &str = "experiment,bytes,strategy,metric,unit,n,median,ci_low,ci_high,of_default,of_default_low,of_default_high";

/// The whole file. No name holds a comma.
pub fn text(report: &Report) -> String {
    let mut text = format!("{HEADER}\n");
    for s in &report.results.summaries {
        let ratio = s
            .of_default
            .map_or_else(Default::default, |r| r.map(|x| x.to_string()));
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{}",
            s.experiment.name(),
            report.bytes(s.experiment).0,
            s.allocation.name(),
            s.metric,
            s.unit,
            s.samples.len(),
            s.median,
            s.ci_low,
            s.ci_high,
            ratio.join(",")
        );
    }
    text
}
