//! The text format that Prometheus fetches, version 0.0.4: families of samples, each
//! with its type and its help before it.

use std::fmt::{self, Display, Write};

/// How the samples of a family behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// They only grow, and their name ends in `_total`.
    Counter,
    /// They go up and down.
    Gauge,
}

/// A text that grows by a family at a time.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
    prefix: &'static str,
}

/// A family that was begun: it takes samples until the next one begins.
#[derive(Debug)]
pub struct Family<'a> {
    page: &'a mut Exposition,
    name: &'a str,
}

impl Exposition {
    /// Nothing yet. All names begin with `prefix`.
    #[must_use]
    pub const fn new(prefix: &'static str) -> Exposition {
        Exposition {
            text: String::new(),
            prefix,
        }
    }

    /// Begins a family; `help` is one line.
    pub fn family<'a>(&'a mut self, name: &'a str, kind: Kind, help: &str) -> Family<'a> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let prefix = self.prefix;
        self.line(format_args!("# HELP {prefix}{name} {help}"));
        self.line(format_args!("# TYPE {prefix}{name} {kind}"));
        Family { page: self, name }
    }

    /// A family of one sample without labels.
    pub fn single(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        self.family(name, kind, help).sample::<&str>(&[], value);
    }

    /// The text.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing into a string does not fail.
        let _ = writeln!(self.text, "{line}");
    }
}

impl Family<'_> {
    /// Adds a sample with labels, whose values may be any text.
    pub fn sample<L: AsRef<str>>(&mut self, labels: &[(&str, L)], value: impl Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(label, text)| format!("{label}=\"{}\"", escape(text.as_ref())))
            .collect();
        let labels = match labels.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", labels.join(",")),
        };
        let (prefix, name) = (self.page.prefix, self.name);
        self.page
            .line(format_args!("{prefix}{name}{labels} {value}"));
    }
}

/// A label's value as it stands between quotes.
fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_announced_and_values_escaped() {
        let mut page = Exposition::new("x_");
        page.single("alone", Kind::Gauge, "One.", 0.25);
        let mut many = page.family("many_total", Kind::Counter, "Many.");
        many.sample(&[("a", "1"), ("b", "odd \"name\"\\\n")], 7);
        many.sample(&[("a", String::from("2"))], 8);
        let wanted = "\
# HELP x_alone One.
# TYPE x_alone gauge
x_alone 0.25
# HELP x_many_total Many.
# TYPE x_many_total counter
x_many_total{a=\"1\",b=\"odd \\\"name\\\"\\\\\\n\"} 7
x_many_total{a=\"2\"} 8
";
        assert_eq!(page.into_text(), wanted);
    }
}
