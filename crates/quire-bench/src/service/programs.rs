//! Programs that superpages do not help: what does Quire cost them?

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::launch::{self, Process};
use crate::results::Sample;
use crate::service::Setup;
use crate::system::find_program;

const LIMIT: Duration = Duration::from_secs(300);
/// Figures that add up to the total.
const SUMMED: [&str; 5] = ["gcc_s", "python_s", "sqlite_s", "spawn_s", "micro_s"];

/// A program, the figure that it gives, and the package that has it.
struct Program {
    figure: &'static str,
    name: &'static str,
    package: &'static str,
    /// What is run, where it is not simply the name.
    file: Option<String>,
    args: Vec<String>,
}

/// The interpreter that `python3` runs. Where a shell script chooses it, the
/// processes that the script starts are not what is to be measured.
fn python() -> Option<String> {
    let mut command = std::process::Command::new("python3");
    let said = command
        .args(["-c", "import sys; print(sys.executable)"])
        .output();
    let path = String::from_utf8(said.ok()?.stdout).ok()?;
    Some(path.trim().to_owned()).filter(|path| !path.is_empty())
}

/// Runs every program once.
pub fn run(setup: Setup) -> Result<Sample> {
    let dir = tempfile::tempdir()?;
    let mut sample = Sample::default();
    for program in programs(dir.path(), setup.quick)? {
        if find_program(program.name).is_none() {
            sample.note(format!(
                "{} is missing (apt-get install {})",
                program.name, program.package
            ));
            continue;
        }
        let start = Instant::now();
        let file = program.file.as_deref().unwrap_or(program.name);
        execute(setup, file, program.args).context(program.name)?;
        sample.put(program.figure, start.elapsed().as_secs_f64());
    }
    let own = launch::own_program()?.display().to_string();
    let mut args = vec!["worker".to_owned(), "slowdown".to_owned()];
    args.extend(setup.quick.then(|| "--quick".to_owned()));
    let micro: Sample = serde_json::from_str(&execute(setup, &own, args)?)?;
    sample.metrics.extend(micro.metrics);
    let total = SUMMED
        .iter()
        .filter_map(|name| sample.metrics.get(*name))
        .sum();
    sample.put("total_s", total);
    Ok(sample)
}

fn execute(setup: Setup, program: &str, args: Vec<String>) -> Result<String> {
    let command = launch::command(setup.environment, None, program, args)?;
    Process::start(command)?
        .wait(LIMIT, setup.interrupt)?
        .output()
}

/// Writes the sources and scripts into `dir`.
fn programs(dir: &Path, quick: bool) -> Result<Vec<Program>> {
    let path = |name: &str| dir.join(name).display().to_string();
    let (source, script, statements) = (path("big.c"), path("work.py"), path("work.sql"));
    std::fs::write(&source, c_source(if quick { 100 } else { 4000 }))?;
    std::fs::write(&script, python_source(if quick { 1 } else { 10 }))?;
    std::fs::write(
        &statements,
        sql_source(if quick { 10_000 } else { 300_000 }),
    )?;
    let gcc = ["-O0", "-w", "-c", &source, "-o", &path("big.o")].map(str::to_owned);
    let sqlite = [":memory:".to_owned(), format!(".read {statements}")];
    Ok(vec![
        Program {
            figure: "gcc_s",
            name: "gcc",
            package: "gcc",
            file: None,
            args: gcc.to_vec(),
        },
        Program {
            figure: "python_s",
            name: "python3",
            package: "python3",
            file: python(),
            args: vec![script],
        },
        Program {
            figure: "sqlite_s",
            name: "sqlite3",
            package: "sqlite3",
            file: None,
            args: sqlite.to_vec(),
        },
    ])
}

/// A C file of `functions` functions of 15 lines each.
pub fn c_source(functions: usize) -> String {
    let mut text = String::from("struct node { struct node *next; int key; double value; };\n");
    for n in 0..functions {
        let (k, m) = (n * 7919 % 1009 + 1, n * 104_729 % 4093 + 1);
        let _ = write!(
            text,
            "static int table_{n}[] = {{ {k}, {m}, {n}, {k} + {m} }};\n\
             double work_{n}(struct node *list, int count)\n{{\n\
             \tdouble sum = {k}.5;\n\
             \tfor (int i = 0; i < count; i++) {{\n\
             \t\tif (list && list->key % {m} == i % {k}) {{\n\
             \t\t\tsum += list->value * table_{n}[i & 3];\n\
             \t\t\tlist = list->next;\n\
             \t\t}} else {{\n\
             \t\t\tsum -= (double)(i ^ {m}) / {k};\n\
             \t\t}}\n\
             \t}}\n\
             \treturn sum;\n}}\n\n"
        );
    }
    text
}

/// A script that makes and drops objects, and computes.
fn python_source(rounds: usize) -> String {
    format!(
        "def words(n):\n    \
             return [('word%d' % (i * 7919 % 5003)) for i in range(n)]\n\
         total = 0\n\
         for r in range({rounds}):\n    \
             count = {{}}\n    \
             for w in words(100000):\n        \
                 count[w] = count.get(w, 0) + 1\n    \
             tree = [{{'key': k, 'value': [v] * 8}} for k, v in sorted(count.items())]\n    \
             total += sum(len(t['value']) * i for i, t in enumerate(tree))\n    \
             total += sum(i * i % 7 for i in range(300000))\n\
         print(total)\n"
    )
}

/// Statements that fill, index and aggregate a table.
fn sql_source(rows: usize) -> String {
    format!(
        "CREATE TABLE item(id INTEGER PRIMARY KEY, kind INTEGER, name TEXT, price REAL);\n\
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})\n\
         INSERT INTO item SELECT i, i * 7919 % 1000, 'item-' || (i * 104729 % 99991), i % 977 * 0.25 FROM n;\n\
         CREATE INDEX by_name ON item(name);\n\
         CREATE INDEX by_kind ON item(kind, price);\n\
         SELECT count(*), sum(price) FROM item WHERE name LIKE 'item-1%';\n\
         SELECT sum(total) FROM (SELECT kind, sum(price) AS total FROM item GROUP BY kind);\n\
         SELECT count(*) FROM item a JOIN item b ON a.name = b.name AND a.id < b.id;\n\
         UPDATE item SET price = price + 1 WHERE kind < 500;\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_file_is_long_and_always_the_same() {
        let source = c_source(4000);
        assert!(source.lines().count() >= 60_000);
        assert_eq!(source, c_source(4000));
    }
}
