//! How executions are put together from what other tools write.

use std::collections::HashMap;

use serde_json::Value;

use crate::import::Wrong;
use crate::run::{Better, Execution, FORMAT, Failure, Header, Metric, Run, TIME};

/// The variant of what has none.
pub const VARIANT: &str = "default";

/// A run that grows.
#[derive(Debug, Default)]
pub struct Builder {
    header: Header,
    executions: Vec<Execution>,
    /// The place of an execution that grows, by benchmark, variant and its own name.
    places: HashMap<(String, String, String), usize>,
    failures: Vec<Failure>,
}

impl Builder {
    /// Says what a metric is, where that is not known yet.
    pub fn metric(&mut self, name: &str, unit: &str, better: Better) {
        if !self.header.metrics.contains_key(name) {
            let metric = Metric {
                unit: unit.to_owned(),
                better,
                primary: false,
            };
            self.header.metrics.insert(name.to_owned(), metric);
        }
    }

    /// What is known of a metric.
    pub fn known(&self, name: &str) -> Option<&Metric> {
        self.header.metrics.get(name)
    }

    /// Adds a measurement to the execution of this name; it is made where there is none.
    pub fn put(&mut self, of: [&str; 3], metric: &str, value: f64) {
        let [benchmark, variant, execution] = of.map(str::to_owned);
        let next = self.executions.len();
        let key = (benchmark, variant, execution);
        let place = *self.places.entry(key).or_insert(next);
        if place == next {
            self.executions.push(Execution {
                benchmark: of[0].to_owned(),
                variant: of[1].to_owned(),
                order: next as u64,
                ..Execution::default()
            });
        }
        self.executions[place].metrics.of(metric).push(value);
    }

    /// Adds an execution that gave nothing.
    pub fn fail(&mut self, benchmark: &str, variant: &str, reason: String) {
        self.failures.push(Failure {
            benchmark: benchmark.to_owned(),
            variant: variant.to_owned(),
            order: (self.executions.len() + self.failures.len()) as u64,
            reason,
            ..Failure::default()
        });
    }

    /// The same, of which this was measured all the same.
    pub fn fail_with(&mut self, [benchmark, variant]: [&str; 2], reason: String, seconds: f64) {
        self.fail(benchmark, variant, reason);
        if let Some(failure) = self.failures.last_mut() {
            failure.metrics.insert(TIME.to_owned(), vec![seconds]);
        }
    }

    /// Adds something that readers should know.
    pub fn warn(&mut self, warning: String) {
        if !self.header.warnings.contains(&warning) {
            self.header.warnings.push(warning);
        }
    }

    /// Adds all texts and numbers of an object to what is known of the machine.
    pub fn environment(&mut self, object: Option<&Value>) {
        let Some(Value::Object(entries)) = object else {
            return;
        };
        for (name, value) in entries {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Number(_) | Value::Bool(_) => value.to_string(),
                _ => continue,
            };
            self.header.environment.insert(name.clone(), text);
        }
    }

    /// The run.
    ///
    /// # Errors
    /// When it holds neither an execution nor a failure: then `none` says why.
    pub fn finish(self, none: &str) -> Result<Run, Wrong> {
        if self.executions.is_empty() && self.failures.is_empty() {
            return Err(Wrong::whole(none));
        }
        let mut run = Run {
            header: Header {
                format: FORMAT,
                seed: 1,
                ..self.header
            },
            failures: self.failures,
            ..Run::default()
        };
        for execution in self.executions {
            run.add(execution).map_err(Wrong::whole)?;
        }
        Ok(run)
    }
}

/// A JSON document and the way to a place in it, so that errors can name the place.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    value: &'a Value,
    place: String,
}

impl<'a> Node<'a> {
    /// The whole document.
    pub fn root(value: &'a Value) -> Node<'a> {
        Node {
            value,
            place: String::new(),
        }
    }

    /// What is here.
    pub fn value(&self) -> &'a Value {
        self.value
    }

    /// An error about this place.
    pub fn wrong(&self, why: impl Into<String>) -> Wrong {
        Wrong::at(self.place.clone(), why)
    }

    /// A member, where there is one that is not null.
    pub fn get(&self, name: &str) -> Option<Node<'a>> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        let dot = if self.place.is_empty() { "" } else { "." };
        Some(Node {
            value,
            place: format!("{}{dot}{name}", self.place),
        })
    }

    /// A member.
    ///
    /// # Errors
    /// When there is none.
    pub fn need(&self, name: &str) -> Result<Node<'a>, Wrong> {
        let missing = || match self.place.as_str() {
            "" => Wrong::whole(format!("`{name}` is missing")),
            _ => self.wrong(format!("`{name}` is missing")),
        };
        self.get(name).ok_or_else(missing)
    }

    /// The elements.
    ///
    /// # Errors
    /// When it is no array.
    pub fn elements(&self) -> Result<Vec<Node<'a>>, Wrong> {
        let Value::Array(values) = self.value else {
            return Err(self.wrong("it is no list"));
        };
        let element = |(n, value)| Node {
            value,
            place: format!("{}[{n}]", self.place),
        };
        Ok(values.iter().enumerate().map(element).collect())
    }

    /// The text.
    ///
    /// # Errors
    /// When it is none.
    pub fn text(&self) -> Result<&'a str, Wrong> {
        self.value
            .as_str()
            .ok_or_else(|| self.wrong("it is no text"))
    }

    /// The number.
    ///
    /// # Errors
    /// When it is none.
    pub fn number(&self) -> Result<f64, Wrong> {
        let number = self.value.as_f64().filter(|number| number.is_finite());
        number.ok_or_else(|| self.wrong(format!("{} is no number", self.value)))
    }
}

/// Seconds in a unit of time, under any of its usual names.
pub fn seconds_in(unit: &str) -> Option<f64> {
    Some(match unit {
        "s" | "sec" | "second" | "seconds" => 1.0,
        "ms" | "msec" | "millisecond" | "milliseconds" => 1e-3,
        "us" | "usec" | "µs" | "μs" | "microsecond" | "microseconds" => 1e-6,
        "ns" | "nsec" | "nanosecond" | "nanoseconds" => 1e-9,
        _ => return None,
    })
}
