//! The mapping of this process from addresses to frames: to look at, and to record for a
//! later run.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::path::Path;

use quire_core::frames::colour::Colours;
use quire_core::frames::mapping::part::Part;
use quire_core::frames::mapping::{Mapped, csv};
use quire_core::units::{AddrRange, Frame, PageCount, VirtAddr};
use quire_linux::frame_map::{self, FrameMapError};
use quire_linux::pagemap::{self, Filter, PageRun};
use quire_linux::thread::{self, Uncancelled};

/// What the page table says of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Where it is.
    pub address: VirtAddr,
    /// Its frame; nothing where it has none, and without `CAP_SYS_ADMIN`.
    pub frame: Option<Frame>,
    /// It is there.
    pub present: bool,
    /// It is in swap.
    pub swapped: bool,
    /// Another process maps it as well, or it belongs to a file or to shared memory.
    pub shared: bool,
    /// It is the kernel's page of zeros: it has been read and not been written.
    pub zero: bool,
    /// A superpage maps it.
    pub superpage: bool,
}

/// Why a mapping was not recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The page table.
    #[error(transparent)]
    Map(#[from] FrameMapError),
    /// Nothing is there that has a frame.
    #[error("no page of the range is there: touch them first")]
    Nothing,
    /// Frame numbers are hidden.
    #[error("frame numbers are hidden from those without CAP_SYS_ADMIN: run as root")]
    Hidden,
    /// The file.
    #[error("the file cannot be written: {0}")]
    File(#[source] io::Error),
}

/// Calls `found` with each page of a range, also those that are not there, in order of
/// address. No lock is held meanwhile.
///
/// # Errors
/// When the page table cannot be read.
pub fn pages(range: AddrRange, mut found: impl FnMut(Page)) -> io::Result<()> {
    const SOMETHING: Filter = Filter {
        all: 0,
        none: 0,
        any: pagemap::PRESENT | pagemap::SWAPPED,
        report: pagemap::ZERO | pagemap::HUGE,
    };
    let _uncancelled = Uncancelled::new();
    let error = |errno: quire_linux::Errno| io::Error::from_raw_os_error(errno.0);
    let pagemap = pagemap::open().map_err(error)?;
    let mut runs: Vec<PageRun> = Vec::new();
    pagemap::scan(pagemap.as_fd(), range, SOMETHING, |run| runs.push(run)).map_err(error)?;
    let mut runs = runs.iter().peekable();
    pagemap::frames_of(pagemap.as_fd(), range, |address, entry| {
        while runs.next_if(|run| run.range().end <= address).is_some() {}
        let here = runs.peek().filter(|run| run.range().start <= address);
        let categories = here.map_or(0, |run| run.categories);
        let present = entry.is_present();
        let zero = present && categories & pagemap::ZERO != 0;
        found(Page {
            address,
            frame: entry.frame().filter(|_| !zero),
            present,
            swapped: entry.is_swapped(),
            shared: present && (entry.is_file() || (!entry.is_exclusive() && !zero)),
            zero,
            superpage: present && categories & pagemap::HUGE != 0,
        });
    })
}

/// Writes the mapping of a range to a file, as `quire map --csv` does: for
/// `modulo:@FILE` and `exact:FILE`, now or in a later run. Returns how many pages have
/// their frame in it. A file of that name is replaced when all is written.
///
/// # Errors
/// When no frame is known, or the file cannot be written.
pub fn record(range: AddrRange, colours: &Colours, file: &Path) -> Result<PageCount, RecordError> {
    let _uncancelled = Uncancelled::new();
    let part = Part::Addresses(range);
    let mapped = frame_map::read(thread::process_id(), Some(&part), || ())?;
    let runs = || mapped.iter().flat_map(Mapped::runs);
    let present = runs().filter(|run| run.kind.is_present());
    let with_frame = present.clone().filter(|run| run.frame.is_some());
    let pages = with_frame.map(|run| run.pages.0).sum();
    match pages {
        0 if present.count() > 0 => return Err(RecordError::Hidden),
        0 => return Err(RecordError::Nothing),
        _ => (),
    }
    write(&mapped, colours, file).map_err(RecordError::File)?;
    Ok(PageCount(pages))
}

fn write(mapped: &[Mapped], colours: &Colours, file: &Path) -> io::Result<()> {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(
        ".{}-{}",
        thread::process_id(),
        thread::current_id()
    ));
    let fresh = Path::new(&name);
    let mut out = BufWriter::new(fs::File::create_new(fresh)?);
    let written = csv::write(&mut out, mapped, colours)
        .and_then(|()| out.flush())
        .and_then(|()| fs::rename(fresh, file));
    if written.is_err() {
        // It may be gone already.
        let _ = fs::remove_file(fresh);
    }
    written
}
