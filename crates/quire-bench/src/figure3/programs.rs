//! The programs. Each stands for one of Table 1 of paper 000, is in Debian 12,
//! runs for some seconds on one thread, and uses as much memory as its kind does.

use std::path::Path;

use anyhow::Result;

use crate::figure3::inputs;
use crate::figure3::usage::{STDERR, STDIN, STDOUT};

/// Keeps what counts of an output: not times and dates.
type Filter = fn(&[u8]) -> Vec<u8>;

/// A program of the figure.
#[derive(Debug)]
pub struct Program {
    /// The name in reports.
    pub name: &'static str,
    /// The file that is run.
    pub binary: &'static str,
    /// The Debian packages that it needs.
    pub package: &'static str,
    /// Writes its input into a directory; small, if so asked.
    pub job: fn(&Path, bool) -> Result<Job>,
}

/// How a program is called, in the directory of its input.
#[derive(Debug)]
pub struct Job {
    /// Its arguments.
    pub args: Vec<String>,
    /// The files that must be the same under every variant.
    pub compared: &'static [(&'static str, Filter)],
}

const fn program(
    name: &'static str,
    binary: &'static str,
    package: &'static str,
    job: fn(&Path, bool) -> Result<Job>,
) -> Program {
    Program {
        name,
        binary,
        package,
        job,
    }
}

/// In the order of Table 1: go, gcc, mcf, parser, vortex, bzip2, perl, twolf,
/// crafty, Konqueror.
pub static PROGRAMS: [Program; 10] = [
    program("gnugo", "gnugo", "gnugo", gnugo),
    program("gcc", "gcc", "gcc", gcc),
    program("lemon", "dimacs-solver", "liblemon-utils", lemon),
    program("link-parser", "link-parser", "link-grammar", link_parser),
    program("sqlite", "sqlite3", "sqlite3", sqlite),
    program("xz", "xz", "xz-utils", xz),
    program("perl", "perl", "perl", perl),
    program("nextpnr", "nextpnr-generic", "nextpnr-generic", nextpnr),
    program("stockfish", "stockfish", "stockfish", stockfish),
    program(
        "wkhtmltopdf",
        "wkhtmltopdf",
        "wkhtmltopdf fonts-dejavu-core",
        wkhtmltopdf,
    ),
];

fn job(args: &[&str], compared: &'static [(&'static str, Filter)]) -> Job {
    Job {
        args: args.iter().map(|&a| a.to_owned()).collect(),
        compared,
    }
}

/// Plays go against itself, with a cache of positions.
fn gnugo(dir: &Path, quick: bool) -> Result<Job> {
    std::fs::write(dir.join(STDIN), inputs::go(if quick { 2 } else { 10 }))?;
    let args = [
        "--mode",
        "gtp",
        "--level",
        "8",
        "--seed",
        "1",
        "--cache-size",
        "128",
    ];
    Ok(job(&args, &[(STDOUT, whole)]))
}

/// Compiles one large file.
fn gcc(dir: &Path, quick: bool) -> Result<Job> {
    std::fs::write(dir.join("big.c"), inputs::c(if quick { 100 } else { 1200 }))?;
    let args = ["-O1", "-w", "-c", "big.c", "-o", "big.o"];
    Ok(job(&args, &[("big.o", whole)]))
}

/// Finds the cheapest flow in a network by its simplex algorithm.
fn lemon(dir: &Path, quick: bool) -> Result<Job> {
    let nodes = if quick { 2000 } else { 80_000 };
    std::fs::write(dir.join("net.min"), inputs::network(nodes))?;
    Ok(job(&["net.min"], &[(STDOUT, whole), (STDERR, no_times)]))
}

/// Parses sentences by a grammar of links.
fn link_parser(dir: &Path, quick: bool) -> Result<Job> {
    let sentences = if quick { 2 } else { 40 };
    std::fs::write(dir.join(STDIN), inputs::sentences(sentences))?;
    let args = ["en", "-verbosity=1", "-limit=1000"];
    Ok(job(&args, &[(STDOUT, whole)]))
}

/// Fills, joins and changes tables in memory.
fn sqlite(dir: &Path, quick: bool) -> Result<Job> {
    let rows = if quick { 10_000 } else { 800_000 };
    std::fs::write(dir.join("work.sql"), inputs::statements(rows))?;
    Ok(job(&[":memory:", ".read work.sql"], &[(STDOUT, whole)]))
}

/// Compresses text with a window that holds all of it.
fn xz(dir: &Path, quick: bool) -> Result<Job> {
    let bytes = if quick { 200_000 } else { 6_000_000 };
    std::fs::write(dir.join("data"), inputs::text(bytes))?;
    let args = ["-9", "-T1", "-k", "-c", "data"];
    Ok(job(&args, &[(STDOUT, whole)]))
}

/// Counts in hashes and works on a long string.
fn perl(dir: &Path, quick: bool) -> Result<Job> {
    let rounds = if quick { 10_000 } else { 900_000 };
    std::fs::write(dir.join("work.pl"), inputs::script(rounds))?;
    Ok(job(&["work.pl"], &[(STDOUT, whole)]))
}

/// Places and routes a netlist of lookup tables on a grid.
fn nextpnr(dir: &Path, quick: bool) -> Result<Job> {
    let tables = if quick { 20 } else { 250 };
    std::fs::write(dir.join("netlist.json"), inputs::netlist(tables))?;
    let args = [
        "-q",
        "--uarch",
        "example",
        "--json",
        "netlist.json",
        "--write",
        "routed.json",
        "--seed",
        "1",
        "--router",
        "router2",
        "--threads",
        "1",
    ];
    Ok(job(&args, &[("routed.json", whole)]))
}

/// Searches chess positions of its own to a fixed depth, with a hash table.
fn stockfish(_dir: &Path, quick: bool) -> Result<Job> {
    let (table, depth) = if quick { ("16", "5") } else { ("256", "12") };
    let args = ["bench", table, "1", depth, "default", "depth"];
    Ok(job(&args, &[(STDOUT, moves)]))
}

/// Lays out a long page with tables and columns, and prints it.
fn wkhtmltopdf(dir: &Path, quick: bool) -> Result<Job> {
    let pages = if quick { 1 } else { 30 };
    std::fs::write(dir.join("pages.html"), inputs::html(pages))?;
    let args = ["-q", "pages.html", "pages.pdf"];
    Ok(job(&args, &[("pages.pdf", no_date)]))
}

fn whole(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}

fn without_lines(bytes: &[u8], drop: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let lines = bytes.split(|b| *b == b'\n').filter(|line| !drop(line));
    lines.collect::<Vec<_>>().join(&b'\n')
}

/// Without the lines in which the solver says how long a step took.
fn no_times(bytes: &[u8]) -> Vec<u8> {
    without_lines(bytes, |line| {
        String::from_utf8_lossy(line).contains("real:")
    })
}

/// Without the line of a PDF file that says when it was made.
fn no_date(bytes: &[u8]) -> Vec<u8> {
    without_lines(bytes, |line| line.starts_with(b"/CreationDate"))
}

/// Without the time and the speed that a chess program prints with each depth.
fn moves(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let mut kept = String::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        while let Some(word) = words.next() {
            if matches!(word, "time" | "nps") {
                words.next();
            } else {
                kept.push_str(word);
                kept.push(' ');
            }
        }
        kept.push('\n');
    }
    kept.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_times_and_dates_are_left_out() {
        let kept = moves(b"info depth 3 nodes 5 nps 77 time 12 pv e2e4\nbestmove e2e4\n");
        assert_eq!(kept, b"info depth 3 nodes 5 pv e2e4 \nbestmove e2e4 \n");
        assert_eq!(no_times(b"a\nRun: real: 0.1s\ncost: 5"), b"a\ncost: 5");
        assert_eq!(no_date(b"%PDF\n/CreationDate (D:2)\n\xff"), b"%PDF\n\xff");
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = PROGRAMS.iter().map(|p| p.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PROGRAMS.len());
    }
}
