//! A comparison as JUnit XML, which CI systems show: a test for each benchmark, variant
//! and metric, a failure for each regression, and skipped tests for what could not be
//! compared.

use std::fmt::Write;

use crate::compare::output::lone_line;
use crate::compare::{Comparison, Item, Outcome};
use crate::figures::svg::escape;

/// The document.
#[must_use]
pub fn xml(comparison: &Comparison) -> String {
    let tests = comparison.items.len() + comparison.lone.len();
    let failures = comparison.count(Outcome::Regression);
    let skipped = comparison.count(Outcome::Unknown) + comparison.lone.len();
    let counts =
        format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"0\" skipped=\"{skipped}\"");
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n\
         <testsuite name=\"quire compare\" {counts}>\n"
    );
    for item in &comparison.items {
        test(&mut xml, item);
    }
    for lone in &comparison.lone {
        let message = escape(&lone_line(lone));
        case(&mut xml, [&lone.benchmark, &lone.variant, &lone.metric]);
        let _ = writeln!(xml, "><skipped message=\"{message}\"/></testcase>");
    }
    xml.push_str("</testsuite>\n</testsuites>\n");
    xml
}

/// The beginning of a test, which is left open.
fn case(xml: &mut String, [benchmark, variant, metric]: [&str; 3]) {
    let class = escape(benchmark);
    let name = escape(&format!("{variant} {metric}"));
    let _ = write!(xml, "<testcase classname=\"{class}\" name=\"{name}\"");
}

fn test(xml: &mut String, item: &Item) {
    let [old, new] = item.means();
    let caveats = item.effect.caveats().into_iter();
    let caveats: String = caveats.map(|text| format!(". {text}")).collect();
    let message = escape(&format!(
        "{}: {old} became {new}, ratio {}{caveats}",
        item.outcome.name(),
        item.ratio(),
    ));
    case(
        xml,
        [&item.new.benchmark, &item.new.variant, &item.new.metric],
    );
    let _ = match item.outcome {
        Outcome::Regression => writeln!(
            xml,
            "><failure type=\"regression\" message=\"{message}\">{message}</failure></testcase>"
        ),
        Outcome::Unknown => writeln!(xml, "><skipped message=\"{message}\"/></testcase>"),
        _ => writeln!(xml, "><system-out>{message}</system-out></testcase>"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(
            escape("<a & \"b\">\u{1}\n"),
            "&lt;a &amp; &quot;b&quot;&gt;  "
        );
    }
}
