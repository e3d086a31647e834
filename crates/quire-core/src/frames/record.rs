//! A mapping of pages to frames, as it was once: what `exact` and `modulo:@FILE` create
//! again (paper 002, section 3).
//!
//! Its text form is CSV with a header line. The columns `address`, `pages` and `frame`
//! are read, in any order, and others are passed over. Fields are told apart by commas
//! alone, so that text in quotes, which may have commas of its own, has to come after
//! those three. Where there is a column `kind`, only private memory is read (`anonymous`):
//! frames of files and of the kernel's own pages cannot be chosen.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::units::{AddrRange, BASE_PAGE, Frame, PageCount, VirtAddr};

/// The columns that are read and written.
const COLUMNS: [&str; 3] = ["address", "pages", "frame"];
/// The column that may say what a run is, and what it says of private memory.
const KIND: &str = "kind";
const PRIVATE: &str = "anonymous";
/// User addresses lie below this one.
pub(super) const ADDRESS_END: VirtAddr = VirtAddr(1 << 47);
/// Frames lie below this one: physical addresses have 52 bits.
const FRAME_END: u64 = 1 << 40;

/// The mapping: runs of pages, each with neighbouring frames. Runs that continue each
/// other are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record(BTreeMap<VirtAddr, (PageCount, Frame)>);

/// Neighbouring pages with neighbouring frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedRun {
    /// The address of the first page.
    pub page: VirtAddr,
    /// How many base pages.
    pub pages: u64,
    /// The frame of the first page.
    pub frame: Frame,
}

/// Why a run cannot be part of a recorded mapping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The address lies inside a page.
    #[error("address {0:x} is not the start of a page: give a multiple of 1000 (hexadecimal)")]
    NotAligned(u64),
    /// No pages.
    #[error("no pages at address {0:x}: give a number from 1 up")]
    NoPages(u64),
    /// The addresses do not exist.
    #[error(
        "{pages} pages at address {page:x} reach beyond 7fffffffffff, the last address a program has: correct the address or the number"
    )]
    BeyondAddresses {
        /// The address.
        page: u64,
        /// How many base pages.
        pages: u64,
    },
    /// The frames do not exist.
    #[error(
        "{pages} pages from frame {frame:x} reach beyond the last frame there can be: give a frame number, which is a physical address divided by 4096"
    )]
    BeyondFrames {
        /// The frame.
        frame: u64,
        /// How many base pages.
        pages: u64,
    },
    /// A page has two frames.
    #[error("address {0:x} has a frame already: remove one of the lines")]
    Overlap(u64),
}

/// Why a text is no recorded mapping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A column is missing.
    #[error("line 1 names no column `{0}`: begin with a header line such as address,pages,frame")]
    NoColumn(&'static str),
    /// A line has too few fields.
    #[error("line {line}: no field for the column `{column}`: write one for each column of line 1")]
    NoField {
        /// The number of the line, from 1.
        line: usize,
        /// The column.
        column: &'static str,
    },
    /// A field is no number.
    #[error("line {line}: {text:?} in column `{column}` is no number: write a {wanted} one")]
    NotANumber {
        /// The number of the line, from 1.
        line: usize,
        /// The column.
        column: &'static str,
        /// What stands there.
        text: String,
        /// What kind of number should.
        wanted: &'static str,
    },
    /// A run that cannot be.
    #[error("line {line}: {error}")]
    Run {
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        error: RunError,
    },
}

impl RecordedRun {
    /// The addresses of the pages.
    #[must_use]
    pub const fn range(self) -> AddrRange {
        AddrRange::new(self.page, PageCount(self.pages).to_bytes())
    }

    /// Whether a run goes on just where this one ends.
    fn is_continued_by(self, next: RecordedRun) -> bool {
        self.range().end == next.page && self.frame.0 + self.pages == next.frame.0
    }

    fn check(self) -> Result<(), RunError> {
        let RecordedRun { page, pages, frame } = self;
        if !page.is_page_aligned() {
            return Err(RunError::NotAligned(page.0));
        }
        if pages == 0 {
            return Err(RunError::NoPages(page.0));
        }
        let room = ADDRESS_END.0.saturating_sub(page.0);
        if pages > room / BASE_PAGE {
            let page = page.0;
            return Err(RunError::BeyondAddresses { page, pages });
        }
        if pages > FRAME_END.saturating_sub(frame.0) {
            let frame = frame.0;
            return Err(RunError::BeyondFrames { frame, pages });
        }
        Ok(())
    }
}

impl Record {
    /// Adds a run.
    ///
    /// # Errors
    /// When its addresses or frames cannot be, or one of its pages has a frame already.
    pub fn insert(&mut self, run: RecordedRun) -> Result<(), RunError> {
        run.check()?;
        let before = self.last_before(run.range().end);
        if let Some(before) = before.filter(|before| before.range().end > run.page) {
            let overlap = before.page.max(run.page);
            return Err(RunError::Overlap(overlap.0));
        }
        let mut whole = run;
        if let Some(before) = before.filter(|before| before.is_continued_by(whole)) {
            whole = RecordedRun {
                pages: before.pages + whole.pages,
                ..before
            };
        }
        let end = run.range().end;
        if let Some((pages, frame)) = self.0.get(&end).copied() {
            let after = RecordedRun {
                page: end,
                pages: pages.0,
                frame,
            };
            if whole.is_continued_by(after) {
                self.0.remove(&end);
                whole.pages += after.pages;
            }
        }
        self.0
            .insert(whole.page, (PageCount(whole.pages), whole.frame));
        Ok(())
    }

    /// The frame of the page with an address, in O(log n) for n runs.
    #[must_use]
    pub fn frame(&self, address: VirtAddr) -> Option<Frame> {
        let (start, (pages, frame)) = self.0.range(..=address).next_back()?;
        let page = (address - *start).0 / BASE_PAGE;
        (page < pages.0).then(|| Frame(frame.0 + page))
    }

    /// The runs, in order of address.
    pub fn runs(&self) -> impl Iterator<Item = RecordedRun> {
        self.0.iter().map(|(page, (pages, frame))| RecordedRun {
            page: *page,
            pages: pages.0,
            frame: *frame,
        })
    }

    /// Whether nothing is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The last run that begins before an address.
    fn last_before(&self, address: VirtAddr) -> Option<RecordedRun> {
        let (page, (pages, frame)) = self.0.range(..address).next_back()?;
        Some(RecordedRun {
            page: *page,
            pages: pages.0,
            frame: *frame,
        })
    }
}

impl fmt::Display for Record {
    /// Writes what is read again: a header line and a line for each run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", COLUMNS.join(","))?;
        self.runs()
            .try_for_each(|run| writeln!(f, "{:x},{},{:x}", run.page.0, run.pages, run.frame.0))
    }
}

impl FromStr for Record {
    type Err = RecordError;

    /// Reads CSV. Lines whose frame is empty or 0 are passed over: there the frame was
    /// not known.
    fn from_str(text: &str) -> Result<Record, RecordError> {
        let mut lines = (1..).zip(text.lines());
        let header = lines.next().map_or("", |(_, header)| header);
        let places = places(header)?;
        let kind = header.split(',').position(|name| name.trim() == KIND);
        let is_private = |text: &str| {
            kind.is_none_or(|place| text.split(',').nth(place).map(str::trim) == Some(PRIVATE))
        };
        let mut record = Record::default();
        let some = lines.filter(|(_, text)| !text.trim().is_empty() && is_private(text));
        for (line, text) in some {
            if let Some(run) = (Line { line, text }).run(places)? {
                let inserted = record.insert(run);
                inserted.map_err(|error| RecordError::Run { line, error })?;
            }
        }
        Ok(record)
    }
}

/// Where in a line the columns of [`COLUMNS`] are.
fn places(header: &str) -> Result<[usize; COLUMNS.len()], RecordError> {
    let mut places = [0; COLUMNS.len()];
    for (place, column) in places.iter_mut().zip(COLUMNS) {
        let found = header.split(',').position(|name| name.trim() == column);
        *place = found.ok_or(RecordError::NoColumn(column))?;
    }
    Ok(places)
}

/// A line after the header.
#[derive(Clone, Copy)]
struct Line<'a> {
    line: usize,
    text: &'a str,
}

impl Line<'_> {
    /// The run; `None` where its frame is not known.
    fn run(self, places: [usize; COLUMNS.len()]) -> Result<Option<RecordedRun>, RecordError> {
        let [address, pages, frame] = [0, 1, 2].map(|n| (COLUMNS[n], places[n]));
        let page = VirtAddr(self.number(address, "hexadecimal", hex)?);
        let pages = self.number(pages, "decimal", |text| text.parse().ok())?;
        let known = |text: &str| if text.is_empty() { Some(0) } else { hex(text) };
        let frame = Frame(self.number(frame, "hexadecimal", known)?);
        Ok((frame != Frame(0)).then_some(RecordedRun { page, pages, frame }))
    }

    /// The number in a column.
    fn number(
        self,
        (column, place): (&'static str, usize),
        wanted: &'static str,
        read: impl Fn(&str) -> Option<u64>,
    ) -> Result<u64, RecordError> {
        let line = self.line;
        let field = self.text.split(',').nth(place).map(str::trim);
        let field = field.ok_or(RecordError::NoField { line, column })?;
        read(field).ok_or_else(|| RecordError::NotANumber {
            line,
            column,
            text: field.to_owned(),
            wanted,
        })
    }
}

/// Reads a hexadecimal number, with or without `0x`.
pub(super) fn hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    // A sign, which the standard library would take, is no digit.
    let all_digits = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    all_digits.then(|| u64::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn run(page: u64, pages: u64, frame: u64) -> RecordedRun {
        RecordedRun {
            page: VirtAddr(page * BASE_PAGE),
            pages,
            frame: Frame(frame),
        }
    }

    #[test]
    fn needed_columns_are_read_and_others_passed_over() {
        let text = "address,pages,frame,colour,page_size,kind,name\r\n\
            0x7f0000001000,2,0x1a,10,4096,anonymous,\"a, b\"\r\n\
            \r\n\
            5000,1,,,4096,anonymous,[heap]\n\
            6000,1,0,0,4096,anonymous,[heap]\n\
            7000,512,200,0,2097152,anonymous,[heap]\n";
        let record: Record = text.parse().unwrap();
        let expected = [run(7, 512, 0x200), run(0x7_f000_0001, 2, 0x1a)];
        assert!(record.runs().eq(expected));
        assert_eq!(record.frame(VirtAddr(0x7f00_0000_2fff)), Some(Frame(0x1b)));
        assert_eq!(record.frame(VirtAddr(0x7f00_0000_3000)), None);
        assert_eq!(record.frame(VirtAddr(0x5000)), None);
        assert_eq!(record.frame(VirtAddr(0)), None);
        let other_order: Record = "name,frame,pages,address\nx,9,1,1000".parse().unwrap();
        assert!(other_order.runs().eq([run(1, 1, 9)]));
        assert!("address,pages,frame".parse::<Record>().unwrap().is_empty());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let error = |lines: &str| {
            let text = format!("address,pages,frame\n1000,2,8\n{lines}");
            text.parse::<Record>().unwrap_err().to_string()
        };
        assert_eq!(
            error("3000,x,9"),
            "line 3: \"x\" in column `pages` is no number: write a decimal one"
        );
        assert_eq!(
            error("\n+3000,1,9"),
            "line 4: \"+3000\" in column `address` is no number: write a hexadecimal one"
        );
        assert!(error("3000,1").starts_with("line 3: no field for the column `frame`"));
        assert!(error("3001,1,9").starts_with("line 3: address 3001 is not the start"));
        assert!(error("3000,0,9").starts_with("line 3: no pages at address 3000"));
        assert!(error("2000,9,9").starts_with("line 3: address 2000 has a frame already"));
        assert!(error("0,9,9").starts_with("line 3: address 1000 has a frame already"));
        assert!(error("7ffffffff000,2,9").starts_with("line 3: 2 pages at address 7ffffffff000"));
        assert!(error("3000,2,ffffffffff").starts_with("line 3: 2 pages from frame ffffffffff"));
        let no_column = |text: &str| text.parse::<Record>().unwrap_err();
        assert_eq!(no_column(""), RecordError::NoColumn("address"));
        assert_eq!(no_column("address,frame"), RecordError::NoColumn("pages"));
    }

    proptest! {
        /// Against a frame for each page.
        #[test]
        fn each_page_has_its_frame_and_what_is_written_is_read_again(
            runs in prop::collection::vec((0u64..100, 1u64..12, 1u64..200), 0..30)
        ) {
            let mut record = Record::default();
            let mut model: BTreeMap<u64, u64> = BTreeMap::new();
            for (page, pages, frame) in runs {
                // Half of the runs are made to go on where others end.
                let frame = if frame % 2 == 0 { frame } else { page + 300 };
                let known = (page..page + pages).any(|page| model.contains_key(&page));
                prop_assert_eq!(record.insert(run(page, pages, frame)).is_err(), known);
                if !known {
                    model.extend((0..pages).map(|n| (page + n, frame + n)));
                }
            }
            for page in 0..120 {
                let frame = record.frame(VirtAddr(page * BASE_PAGE + 5));
                prop_assert_eq!(frame, model.get(&page).copied().map(Frame));
            }
            let runs: Vec<RecordedRun> = record.runs().collect();
            prop_assert!(!runs.windows(2).any(|two| two[0].is_continued_by(two[1])));
            prop_assert_eq!(record.to_string().parse(), Ok(record));
        }
    }

    #[test]
    fn only_private_memory_is_read() {
        let text = "address,pages,frame,colour,page_size,kind,name\n\
            0x1000,1,0x10,0,4096,anonymous,\n\
            0x2000,1,0x20,0,4096,file,[vdso]\n\
            0x3000,1,0x30,0,4096,zero,\"a,b\"\n";
        let record: Record = text.parse().unwrap();
        assert_eq!(record.frame(VirtAddr(0x1000)), Some(Frame(0x10)));
        assert_eq!(record.runs().count(), 1);
    }
}
