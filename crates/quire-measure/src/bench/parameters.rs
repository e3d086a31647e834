//! Parameters of commands: values that are put in place of `{VAR}`, as hyperfine has them.

use std::collections::BTreeMap;

use crate::args::BenchArgs;
use crate::failure::{Failure, Outcome};

/// Values by name.
pub type Parameters = BTreeMap<String, String>;

/// More commands than this are a mistake.
const MOST: usize = 10_000;

/// Each combination of values that the arguments ask for; one without any, where they ask for none.
pub fn all(options: &BenchArgs) -> Outcome<Vec<Parameters>> {
    let mut all = vec![Parameters::new()];
    let lists = options.parameter_list.chunks_exact(2);
    let mut lists: Vec<(&String, Vec<String>)> =
        lists.map(|two| (&two[0], split(&two[1]))).collect();
    if let [name, least, most] = &options.parameter_scan[..] {
        let step = options.parameter_step_size.as_deref().unwrap_or("1");
        lists.push((name, scan(least, most, step)?));
    }
    for (n, (name, _)) in lists.iter().enumerate() {
        if lists[..n].iter().any(|(other, _)| other == name) {
            return Err(Failure::bad_usage(format!(
                "--parameter-list {name} is given twice; give all of its values at once"
            )));
        }
    }
    for (name, values) in lists {
        // Values of the list that is given first change fastest, as in hyperfine.
        let with = |value: &String| {
            let with = all.iter().cloned().map(|mut all: Parameters| {
                all.insert(name.clone(), value.clone());
                all
            });
            with.collect::<Vec<Parameters>>()
        };
        all = values.iter().flat_map(with).collect();
        if all.len() > MOST {
            return Err(Failure::bad_usage(format!(
                "the parameters make more than {MOST} commands; give fewer values"
            )));
        }
    }
    Ok(all)
}

/// Values between commas; `\\,` is a comma, and `\\\\` a backslash.
fn split(text: &str) -> Vec<String> {
    let mut values = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            ',' => values.push(String::new()),
            '\\' => match chars.next() {
                Some(next @ (',' | '\\')) => push(&mut values, &[next]),
                Some(next) => push(&mut values, &['\\', next]),
                None => push(&mut values, &['\\']),
            },
            c => push(&mut values, &[c]),
        }
    }
    values
}

fn push(values: &mut [String], chars: &[char]) {
    if let Some(last) = values.last_mut() {
        last.extend(chars);
    }
}

/// The numbers from `least` to `most`, with as many digits as the most exact of the three has.
fn scan(least: &str, most: &str, step: &str) -> Outcome<Vec<String>> {
    let digits = |text: &str| text.split_once('.').map_or(0, |(_, digits)| digits.len());
    let digits = [least, most, step]
        .map(digits)
        .into_iter()
        .max()
        .unwrap_or(0);
    let number = |text: &str| {
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.ok_or_else(|| Failure::bad_usage(format!("--parameter-scan: `{text}` is no number")))
    };
    let (from, to, by) = (number(least)?, number(most)?, number(step)?);
    if from > to || by <= 0.0 {
        return Err(Failure::bad_usage(
            "--parameter-scan: MIN is above MAX, or the step is not above zero",
        ));
    }
    let count = ((to - from) / by + 1e-9).floor() + 1.0;
    if count > MOST as f64 {
        return Err(Failure::bad_usage(format!(
            "--parameter-scan makes more than {MOST} numbers; give a larger step"
        )));
    }
    let value = |n: u32| format!("{:.digits$}", from + f64::from(n) * by);
    Ok((0..count as u32).map(value).collect())
}

/// A text with the values in their places. What is in a value stays as it is.
pub fn put(text: &str, values: &Parameters) -> String {
    let (mut done, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('{') {
        done.push_str(&rest[..at]);
        rest = &rest[at..];
        let here = values
            .iter()
            .find_map(|(name, value)| Some((rest.strip_prefix(&place(name))?, value)));
        rest = match here {
            Some((after, value)) => {
                done.push_str(value);
                after
            }
            None => {
                done.push('{');
                &rest[1..]
            }
        };
    }
    done + rest
}

/// What stands for a value in a text.
fn place(name: &str) -> String {
    format!("{{{name}}}")
}

/// The name of a command with its values, with those that the command does not take.
pub fn named(name: &str, command: &str, values: &Parameters) -> String {
    let is_used = |of: &str| command.contains(&place(of)) || name.contains(&place(of));
    let unused = values.iter().filter(|(of, _)| !is_used(of));
    let unused: Vec<String> = unused.map(|(of, value)| format!("{of}={value}")).collect();
    match unused.is_empty() {
        true => put(name, values),
        false => format!("{} ({})", put(name, values), unused.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_scans_are_values() {
        assert_eq!(split("a,b c,"), ["a", "b c", ""]);
        assert_eq!(split("a\\,b,c\\\\,\\d"), ["a,b", "c\\", "\\d"]);
        assert_eq!(scan("1", "3", "1").unwrap(), ["1", "2", "3"]);
        assert_eq!(
            scan("-1", "0.5", "0.5").unwrap(),
            ["-1.0", "-0.5", "0.0", "0.5"]
        );
        assert!(scan("3", "1", "1").is_err());
        assert!(scan("a", "1", "1").is_err());
        assert!(scan("0", "1", "0.00001").is_err());
        let values = Parameters::from([("n".into(), "3".into())]);
        assert_eq!(put("run -{n} {m} {n}", &values), "run -3 {m} 3");
        assert_eq!(named("x", "run {n}", &values), "x");
        assert_eq!(named("run", "run", &values), "run (n=3)");
        let nested = [("a", "{b}"), ("b", "1")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(put("{a} {b", &nested.into()), "{b} {b");
    }
}
