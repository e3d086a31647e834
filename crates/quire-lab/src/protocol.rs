//! How a program reports measurements: lines of text.
//!
//! ```text
//! quire: METRIC VALUE [UNIT] [higher|lower]
//! ```
//!
//! On the descriptor that [`ENV_FD`] names, `quire:` may be left out and nothing but such
//! lines is allowed. On standard output, lines that do not begin with `quire:` are the
//! program's own. Times are kept in seconds and sizes in bytes, whatever they are
//! reported in.

use std::collections::BTreeMap;

use regex::Regex;

use crate::run::{Better, Metric};

/// The variable that names the descriptor.
pub const ENV_FD: &str = "QUIRE_BENCH_FD";
/// The variable that says how many measurements are wanted.
pub const ENV_MEASUREMENTS: &str = "QUIRE_BENCH_MEASUREMENTS";
/// What a line begins with.
pub const PREFIX: &str = "quire:";
/// A longer line is no measurement, in bytes.
const LONGEST: usize = 64 << 10;
/// So many measurements of an execution are kept; who has more makes a mistake.
const MOST: usize = 1 << 20;

/// A measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Of what.
    pub metric: String,
    /// In the unit of `kind`.
    pub value: f64,
    /// Its unit, and whether less is better. It is primary.
    pub kind: Metric,
}

/// The unit that values are kept in, and what one is of it.
fn base(unit: &str) -> (&str, f64) {
    match unit {
        "ns" => ("s", 1e-9),
        "us" | "µs" => ("s", 1e-6),
        "ms" => ("s", 1e-3),
        "min" => ("s", 60.0),
        "B" => ("bytes", 1.0),
        "kB" => ("bytes", 1e3),
        "MB" => ("bytes", 1e6),
        "GB" => ("bytes", 1e9),
        "KiB" => ("bytes", 1024.0),
        "MiB" => ("bytes", 1_048_576.0),
        "GiB" => ("bytes", 1_073_741_824.0),
        other => (other, 1.0),
    }
}

/// Whether less of what has this unit is better: rates are better higher.
#[must_use]
pub fn better_of(unit: &str) -> Better {
    match unit.ends_with("/s") {
        true => Better::Higher,
        false => Better::Lower,
    }
}

/// The unit that values of this unit are kept in.
#[must_use]
pub fn kept_in(unit: &str) -> &str {
    base(unit).0
}

/// Whether a text can name a metric.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let first = text.chars().next().is_some_and(|c| c.is_ascii_alphabetic());
    let rest = |c: char| c.is_ascii_alphanumeric() || "_.-/".contains(c);
    first && text.len() <= 64 && text.chars().all(rest)
}

/// A value in a unit, as it is kept; rates are better higher, unless `better` says.
fn measurement(
    metric: &str,
    value: &str,
    unit: &str,
    better: Option<Better>,
) -> Result<Measurement, String> {
    if !is_name(metric) {
        return Err(format!("`{metric}` is no name of a metric"));
    }
    let (unit, scale) = base(unit);
    let value = value.parse().ok().map(|value: f64| value * scale);
    let value = value.filter(|value| value.is_finite());
    Ok(Measurement {
        metric: metric.into(),
        value: value.ok_or_else(|| format!("the value of {metric} is no number"))?,
        kind: Metric {
            unit: unit.into(),
            better: better.unwrap_or(better_of(unit)),
            primary: true,
        },
    })
}

/// Reads a line, without its prefix.
///
/// # Errors
/// What is wrong with it.
pub fn parse(line: &str) -> Result<Measurement, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let direction = |word: &str| match word {
        "higher" => Some(Better::Higher),
        "lower" => Some(Better::Lower),
        _ => None,
    };
    match words[..] {
        [metric, value] => measurement(metric, value, "", None),
        [metric, value, last] => match direction(last) {
            None => measurement(metric, value, last, None),
            better => measurement(metric, value, "", better),
        },
        [metric, value, unit, last] if direction(last).is_some() => {
            measurement(metric, value, unit, direction(last))
        }
        _ => Err("a line is METRIC VALUE [UNIT] [higher|lower]".into()),
    }
}

/// How the lines of a stream are read.
#[derive(Clone, Debug)]
pub enum Reader {
    /// All are measurements.
    Descriptor,
    /// Those with the prefix are.
    Output,
    /// Those that match are.
    Pattern(Box<Pattern>),
}

/// A regular expression that finds measurements.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
    metric: String,
    unit: String,
    better: Better,
}

impl Pattern {
    /// Takes a regular expression.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(regex: &str, metric: &str, unit: &str, better: Better) -> Result<Pattern, String> {
        let last = |error: regex::Error| {
            let text = error.to_string();
            let line = text.lines().last().unwrap_or_default();
            line.trim_start_matches("error: ").to_owned()
        };
        let compiled = Regex::new(regex).map_err(last)?;
        if compiled.captures_len() != 2 {
            let groups = compiled.captures_len() - 1;
            return Err(format!(
                "it has {groups} groups in parentheses; it takes one, around the number"
            ));
        }
        if !is_name(metric) {
            return Err(format!("`{metric}` is no name of a metric"));
        }
        Ok(Pattern {
            regex: compiled,
            metric: metric.into(),
            unit: unit.into(),
            better,
        })
    }

    fn read(&self, line: &str) -> Option<Result<Measurement, String>> {
        let group = self.regex.captures(line)?.get(1)?;
        let (metric, unit) = (&self.metric, &self.unit);
        Some(measurement(metric, group.as_str(), unit, Some(self.better)))
    }
}

impl Reader {
    /// The measurement of a line, where it is one.
    fn read(&self, line: &str) -> Option<Result<Measurement, String>> {
        let bare = line.trim_start().strip_prefix(PREFIX);
        match self {
            Reader::Descriptor if line.trim().is_empty() => None,
            Reader::Descriptor => Some(parse(bare.unwrap_or(line))),
            Reader::Output => bare.map(parse),
            Reader::Pattern(pattern) => pattern.read(line),
        }
    }
}

/// All that a program reported in an execution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reported {
    /// The measurements of each metric.
    pub values: BTreeMap<String, Vec<f64>>,
    /// What each is.
    pub kinds: BTreeMap<String, Metric>,
    /// The first line that was none, and why.
    pub nonsense: Option<String>,
    count: usize,
}

impl Reported {
    fn add(&mut self, line: &str, read: Result<Measurement, String>) {
        let added = read.and_then(|measurement| self.take(measurement));
        if let Err(why) = added {
            let shown: String = line.chars().take(60).collect();
            let text = format!("it reported `{}`: {why}", shown.trim());
            self.nonsense.get_or_insert(text);
        }
    }

    fn take(&mut self, new: Measurement) -> Result<(), String> {
        if self.count == MOST {
            return Err(format!("more than {MOST} measurements"));
        }
        let known = self.kinds.entry(new.metric.clone());
        let known = known.or_insert_with(|| new.kind.clone());
        if known.unit != new.kind.unit {
            let before = &known.unit;
            return Err(format!("the unit of {} was `{before}` before", new.metric));
        }
        self.values.entry(new.metric).or_default().push(new.value);
        self.count += 1;
        Ok(())
    }
}

/// A stream that is cut into lines as it comes.
#[derive(Debug)]
pub struct Stream {
    reader: Reader,
    partial: Vec<u8>,
}

impl Stream {
    /// A stream from its beginning.
    #[must_use]
    pub fn new(reader: Reader) -> Stream {
        let partial = Vec::new();
        Stream { reader, partial }
    }

    /// Takes what came next.
    pub fn feed(&mut self, bytes: &[u8], reported: &mut Reported) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = LONGEST.saturating_sub(self.partial.len());
            self.partial.extend(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                self.end(reported);
            }
        }
    }

    /// The stream, or a line of it, has ended.
    pub fn end(&mut self, reported: &mut Reported) {
        let bytes = std::mem::take(&mut self.partial);
        let text = String::from_utf8_lossy(&bytes);
        let line = text.trim_end_matches(['\n', '\r']);
        if let Some(read) = self.reader.read(line) {
            reported.add(line, read);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn read(reader: Reader, text: &str) -> Reported {
        let mut reported = Reported::default();
        let mut stream = Stream::new(reader);
        stream.feed(text.as_bytes(), &mut reported);
        stream.end(&mut reported);
        reported
    }

    #[test]
    fn lines_are_measurements() {
        let text = "quire: time 1.5 ms\nquire: time 2 s\nquire: rate 7 1/s\nquire: fit 3 higher\n";
        let reported = read(Reader::Output, text);
        assert_eq!(reported.values["time"], [0.0015, 2.0]);
        assert_eq!(reported.kinds["time"].unit, "s");
        assert_eq!(reported.kinds["rate"].better, Better::Higher);
        assert_eq!(reported.kinds["fit"].better, Better::Higher);
        assert_eq!(parse("size 3 KiB lower").unwrap().value, 3072.0);
        assert_eq!(reported.nonsense, None);
    }

    #[test]
    fn nonsense_is_told() {
        let nonsense = |reader, text| read(reader, text).nonsense.unwrap_or_default();
        assert!(nonsense(Reader::Descriptor, "hello\n").contains("hello"));
        assert!(nonsense(Reader::Descriptor, "a NaN\n").contains("no number"));
        assert!(nonsense(Reader::Descriptor, "a inf s").contains("no number"));
        assert!(nonsense(Reader::Descriptor, "1a 2").contains("no name"));
        assert!(nonsense(Reader::Output, "quire: a\n").contains("METRIC"));
        assert!(nonsense(Reader::Output, "quire: a 1 s\nquire: a 1 B").contains("unit"));
        assert_eq!(nonsense(Reader::Output, "hello\nquirea 1\n"), "");
        assert_eq!(nonsense(Reader::Descriptor, "\n a 1\n\n"), "");
    }

    #[test]
    fn a_pattern_has_one_group() {
        let new = |regex| Pattern::new(regex, "t", "ms", Better::Lower);
        assert!(new("took (").unwrap_err().contains("unclosed"));
        assert!(new("took").unwrap_err().contains("0 groups"));
        let pattern = new(r"took (\S+) ms").unwrap();
        let text = "warm\ntook 12 ms\ntook 14 ms\n";
        let reported = read(Reader::Pattern(Box::new(pattern.clone())), text);
        assert_eq!(reported.values["t"], [0.012, 0.014]);
        let wrong = read(Reader::Pattern(Box::new(pattern)), "took long ms");
        assert!(wrong.nonsense.unwrap().contains("no number"));
    }

    #[test]
    fn a_line_without_end_takes_no_memory() {
        let mut stream = Stream::new(Reader::Output);
        let mut reported = Reported::default();
        for _ in 0..1000 {
            stream.feed(&[b'x'; 4096], &mut reported);
        }
        assert!(stream.partial.capacity() <= 2 * LONGEST);
        stream.feed(b"\nquire: a 1\n", &mut reported);
        assert_eq!(reported.values["a"], [1.0]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(values in vec(-1e12f64..1e12, 1..20), cut in 1usize..9) {
            let text: String = values.iter().map(|v| format!("quire: m.a {v:?} x\n")).collect();
            let mut reported = Reported::default();
            let mut stream = Stream::new(Reader::Output);
            // However the kernel cuts it.
            text.as_bytes().chunks(cut).for_each(|part| stream.feed(part, &mut reported));
            prop_assert_eq!(&reported.values["m.a"], &values);
        }

        #[test]
        fn nothing_is_too_strange(bytes in vec(any::<u8>(), 0..200)) {
            for reader in [Reader::Descriptor, Reader::Output] {
                let mut reported = Reported::default();
                let mut stream = Stream::new(reader);
                stream.feed(&bytes, &mut reported);
                stream.end(&mut reported);
                prop_assert!(reported.values.values().flatten().all(|v| v.is_finite()));
                prop_assert_eq!(reported.values.len(), reported.kinds.len());
            }
        }
    }
}
