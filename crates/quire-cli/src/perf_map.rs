//! `quire perf-map`: names for text that was copied, as `perf` reads them.
//!
//! `perf` learns of text when a file is mapped, so one that records from the
//! start of a program knows all of it. One that is attached later finds private
//! memory where text was copied (`--text`), and looks for the names in
//! `/tmp/perf-PID.map`, as it does for programs that generate code.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};
use quire_core::units::{AddrRange, BASE_PAGE, VirtAddr};
use quire_linux::sysinfo::maps::{Mapping, Reader};
use quire_linux::sysinfo::process;
use rustix::fs::OFlags;

use crate::args::PerfMapArgs;
use crate::failure::{Failure, Outcome};

/// Writes the maps of some processes.
pub fn perf_map(options: &PerfMapArgs) -> Outcome<()> {
    options.pids.iter().try_for_each(|pid| map_of(*pid))
}

fn map_of(pid: u32) -> Outcome<()> {
    let mut mappings = Vec::new();
    Reader::default()
        .of(pid, |mapping, name| {
            mappings.push((mapping, name.to_owned()));
            ControlFlow::Continue(())
        })
        .map_err(|error| cannot_look(pid, &error))?;
    let mut lines = BTreeSet::new();
    for copied in copies(&mappings) {
        lines.extend(names(pid, &copied)?);
    }
    let mut out = io::stdout();
    if lines.is_empty() {
        writeln!(out, "{pid}: no text was copied, perf needs no map")?;
        return Ok(());
    }
    let path = format!("/tmp/perf-{pid}.map");
    let added = add_lines(&path, &lines).map_err(|error| {
        Failure::system(format!(
            "cannot write {path}: {error}; remove it if it is old"
        ))
    })?;
    writeln!(out, "{path}: {added} of {} symbols added", lines.len())?;
    Ok(())
}

fn cannot_look(pid: u32, error: &io::Error) -> Failure {
    Failure::bad_usage(match process::start_time(pid) {
        None => format!("there is no process {pid}: `quire stat` lists those that are managed"),
        Some(_) => {
            format!("process {pid} cannot be looked at: {error}; try `sudo quire perf-map {pid}`")
        }
    })
}

/// Text that was copied, and the file that it is from.
struct Copied<'a> {
    ranges: Vec<AddrRange>,
    /// Where the file is loaded.
    base: VirtAddr,
    path: &'a str,
}

/// Finds, between the mappings of each loaded file, executable memory of no
/// file.
fn copies(mappings: &[(Mapping, String)]) -> Vec<Copied<'_>> {
    let mut found: Vec<Copied<'_>> = Vec::new();
    let begins = |(m, name): &&(Mapping, String)| {
        m.offset.0 == 0 && m.file.is_some() && name.starts_with('/') && !m.shared
    };
    for (base, path) in mappings.iter().filter(begins) {
        let same = mappings.iter().filter(|(m, _)| m.file == base.file);
        let end = same.map(|(m, _)| m.range.end).max();
        let span = AddrRange {
            start: base.range.start,
            end: end.unwrap_or(base.range.end),
        };
        let ranges: Vec<AddrRange> = mappings
            .iter()
            .filter(|(m, name)| m.file.is_none() && name.is_empty() && m.is_executable())
            .map(|(m, _)| m.range)
            .filter(|range| span.contains(*range))
            .collect();
        if !ranges.is_empty() {
            found.push(Copied {
                ranges,
                base: base.range.start,
                path,
            });
        }
    }
    found
}

/// The lines for the functions of a file that lie in copied text.
fn names(pid: u32, copied: &Copied<'_>) -> Outcome<Vec<String>> {
    let path = format!("/proc/{pid}/root{}", copied.path);
    let refused = |error: &dyn std::fmt::Display| {
        Failure::system(format!(
            "cannot read the symbols of {}: {error}",
            copied.path
        ))
    };
    let data = fs::read(&path).map_err(|error| refused(&error))?;
    let file = object::File::parse(&*data).map_err(|error| refused(&error))?;
    let lowest = file.segments().map(|s| s.address()).min().unwrap_or(0);
    let bias = copied.base.0.wrapping_sub(lowest & !(BASE_PAGE - 1));
    let symbols = file.symbols().chain(file.dynamic_symbols());
    let lines = symbols.filter(|s| s.kind() == SymbolKind::Text && s.size() > 0);
    Ok(lines
        .filter_map(|symbol| {
            let at = VirtAddr(symbol.address().wrapping_add(bias));
            let inside = copied.ranges.iter().any(|r| r.start <= at && at < r.end);
            let name = symbol.name().ok().filter(|_| inside)?;
            Some(format!("{:x} {:x} {name}", at.0, symbol.size()))
        })
        .collect())
}

/// Adds the lines that a map lacks, which the program may have made itself.
fn add_lines(path: &str, lines: &BTreeSet<String>) -> io::Result<usize> {
    let mut file: File = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o644)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path)?;
    let about = file.metadata()?;
    if !about.is_file() || about.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to somebody else"));
    }
    let mut before = String::new();
    file.read_to_string(&mut before)?;
    let known: BTreeSet<&str> = before.lines().collect();
    let mut text = String::new();
    let new = lines.iter().filter(|line| !known.contains(line.as_str()));
    let added = new.map(|line| text.extend([line, "\n"])).count();
    file.write_all(text.as_bytes())?;
    Ok(added)
}

#[cfg(test)]
mod tests {
    use quire_core::units::ObjectOffset;
    use quire_linux::sysinfo::maps::FileId;

    use super::*;

    fn mapping(start: u64, end: u64, prot: i32, of: Option<(u64, &str)>) -> (Mapping, String) {
        let mapping = Mapping {
            range: AddrRange {
                start: VirtAddr(start),
                end: VirtAddr(end),
            },
            prot,
            shared: false,
            offset: ObjectOffset(if start.is_multiple_of(0x1000_0000) {
                0
            } else {
                start
            }),
            file: of.map(|(inode, _)| FileId {
                device: (8, 1),
                inode,
            }),
        };
        let name = of.map_or("", |(_, name)| name);
        (mapping, name.to_owned())
    }

    #[test]
    fn copies_lie_between_the_mappings_of_their_file() {
        let (read, execute) = (1, 5);
        let program = Some((1, "/bin/program"));
        let library = Some((2, "/lib/library.so"));
        let mappings = [
            mapping(0x1000_0000, 0x1000_1000, read, program),
            mapping(0x1000_1000, 0x1020_0000, execute, program),
            mapping(0x1020_0000, 0x1040_0000, execute, None),
            mapping(0x1040_0000, 0x1041_0000, execute, program),
            // Code that the program has made.
            mapping(0x1800_0000, 0x1801_0000, execute, None),
            mapping(0x2000_0000, 0x2060_0000, execute, library),
            mapping(0x2060_0000, 0x2061_0000, read, None),
            mapping(0x2061_0000, 0x2062_0000, read, library),
        ];
        let found = copies(&mappings);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "/bin/program");
        assert_eq!(found[0].base, VirtAddr(0x1000_0000));
        assert_eq!(found[0].ranges, [mappings[2].0.range]);
    }
}
