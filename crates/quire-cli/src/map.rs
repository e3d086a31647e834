//! `quire map`: which physical frames a process has, run by run, and how its pages
//! spread over the colours of a cache; for people, as JSON, as a table with commas, or
//! as a picture.

mod image;
mod view;

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use quire_core::frames::colour::Colours;
use quire_core::frames::mapping::part::Part;
use quire_core::frames::mapping::{Mapped, csv};
use quire_linux::frame_map::{self, FrameMapError};
use quire_linux::sysinfo::process;

use crate::args::MapArgs;
use crate::cache;
use crate::failure::{Failure, Outcome};
use crate::progress::LateBar;
use view::Report;

/// So many pages are read between looks at the clock.
const LOOK_EVERY: u64 = 64 << 10;

/// Prints the mapping of a process.
pub fn map(options: &MapArgs) -> Outcome<()> {
    let given = options.colour_bits.clone();
    let colours = given.unwrap_or_else(default_colours);
    let mappings = read(options)?;
    let report = Report::new(options.pid, &mappings, &colours);
    if report.frames_are_hidden() {
        // Where standard error is closed nobody is told.
        let _ = writeln!(io::stderr(), "quire: {}", hidden(options.pid));
    }
    let picture = match &options.image {
        Some(path) => Some(draw(path, &mappings, &colours)?),
        None => None,
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    if options.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else if options.csv {
        csv::write(&mut out, &mappings, &colours)?;
    } else {
        view::write(&mut out, &report)?;
        picture
            .iter()
            .try_for_each(|line| writeln!(out, "\n{line}"))?;
    }
    Ok(out.flush()?)
}

/// The colours of this machine. Where no cache has any, all frames have one colour.
fn default_colours() -> Colours {
    cache::own_colours().unwrap_or_else(|| {
        // Where standard error is closed nobody is told.
        let note = "no cache has colours that are known: give the address bits with --colour-bits";
        let _ = writeln!(io::stderr(), "quire: {note}");
        Colours::default()
    })
}

fn read(options: &MapArgs) -> Outcome<Vec<Mapped>> {
    let expected = process::resident(options.pid).unwrap_or_default();
    let mut bar = LateBar::new("{bar:40} {pos} of about {len} pages");
    let mut pages = 0_u64;
    let count = || {
        pages += 1;
        if pages.is_multiple_of(LOOK_EVERY) {
            bar.at(pages, expected.to_pages().0.max(pages));
        }
    };
    let mappings = frame_map::read(options.pid, options.part.as_ref(), count);
    drop(bar);
    let mappings = mappings.map_err(|error| refused(options.pid, &error))?;
    if mappings.is_empty() {
        return Err(nothing_there(options.pid, options.part.as_ref()));
    }
    Ok(mappings)
}

/// Why frames are not told.
fn hidden(pid: u32) -> String {
    let remedy = match rustix::process::geteuid().is_root() {
        true => "give the container --cap-add=SYS_ADMIN, or run it outside".to_owned(),
        false => format!("try `sudo quire map {pid}`"),
    };
    format!("frames and colours are hidden from those without CAP_SYS_ADMIN: {remedy}")
}

fn refused(pid: u32, error: &FrameMapError) -> Failure {
    if process::start_time(pid).is_none() {
        return Failure::bad_usage(format!("there is no process {pid}: `ps -e` lists them"));
    }
    match error {
        FrameMapError::Closed(cause) if is_memoryless(cause) => nothing_there(pid, None),
        FrameMapError::Closed(_) if rustix::process::geteuid().is_root() => Failure::bad_usage(
            format!("process {pid} cannot be looked at: {error}; run it outside of the container"),
        ),
        FrameMapError::Closed(_) => Failure::bad_usage(format!(
            "process {pid} cannot be looked at: {error}; try `sudo quire map {pid}`"
        )),
        FrameMapError::Scan(_) => Failure::system(format!(
            "process {pid} cannot be looked at: {error}; this needs PAGEMAP_SCAN (Linux 6.7)"
        )),
        FrameMapError::Entries(_) | FrameMapError::Ended => Failure::system(format!(
            "process {pid} cannot be looked at: {error}; try again while it runs"
        )),
    }
}

/// Whether the kernel says that a process, which is there, has no address space.
fn is_memoryless(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Why no mapping was found.
fn nothing_there(pid: u32, part: Option<&Part>) -> Failure {
    Failure::bad_usage(match part {
        None => format!("process {pid} has no memory: it belongs to the kernel or is about to end"),
        Some(Part::Name(name)) => {
            format!("process {pid} has no mapping {name}: see /proc/{pid}/maps for its names")
        }
        Some(Part::Addresses(range)) => format!(
            "process {pid} has nothing mapped in {:x}-{:x}: see /proc/{pid}/maps for its addresses",
            range.start.0, range.end.0
        ),
    })
}

/// Writes the picture, and says in a line what it shows.
fn draw(path: &Path, mappings: &[Mapped], colours: &Colours) -> Outcome<String> {
    let picture = image::draw(mappings, colours);
    let data = image::encode(&picture)
        .map_err(|error| Failure::system(format!("cannot make the picture: {error}")))?;
    fs::write(path, data).map_err(|error| {
        Failure::bad_usage(format!(
            "cannot write --image {}: {error}; name a file in a directory that you may write to",
            path.display()
        ))
    })?;
    Ok(format!("Picture: {}, {picture}", path.display()))
}
