//! The mapping of a process from addresses to frames, as runs: pages that follow
//! each other in the address space and in physical memory.
//!
//! Pages are entered one by one in order of address and joined here, so what reads a
//! page table need not know what a run is.
//!
//! | module | holds |
//! |---|---|
//! | [`part`] | which part of a process is meant |
//! | [`tally`] | pages, runs and colours, counted |
//! | [`csv`] | the runs as a file that can be read again |

pub mod csv;
pub mod part;
pub mod tally;

use serde::{Deserialize, Serialize};

use super::colour::{Colour, Colours};
use crate::units::{AddrRange, BASE_PAGE, Bytes, Frame, PageCount, VirtAddr};

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Private memory, and private copies of a file's pages.
    Anonymous,
    /// A page of a file's cache.
    File,
    /// Shared memory: a file that lives in memory only.
    Shared,
    /// In swap: it has no frame.
    Swapped,
    /// The kernel's page of zeros, which all processes share. Its frame is not the
    /// process's and is not noted.
    Zero,
}

/// Pages of one kind and one page size that follow each other, in frames that follow
/// each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Run {
    /// Where it begins.
    pub address: VirtAddr,
    /// Its length in pages of 4 KiB, whatever the page size.
    pub pages: PageCount,
    /// The frame of the first page; nothing where there is none or it is hidden.
    pub frame: Option<Frame>,
    /// How much one entry of the page table maps: 4 KiB, 2 MiB or 1 GiB. A run need
    /// not consist of whole superpages where only a part was asked for.
    pub page_size: Bytes,
    /// What its pages are.
    pub kind: Kind,
}

/// A run with its colour, as it is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The run.
    #[serde(flatten)]
    pub run: Run,
    /// The colour of the first page; nothing where no frame is known.
    pub colour: Option<Colour>,
}

/// One mapping of the process, or the part of it that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Its addresses.
    pub range: AddrRange,
    /// Its name as the kernel lists it: a path, a word in brackets, or empty.
    pub name: String,
    /// What is there, in order of address.
    runs: Vec<Run>,
}

impl Kind {
    /// Whether such a page has a frame that holds data of the process.
    #[must_use]
    pub const fn is_present(self) -> bool {
        matches!(self, Kind::Anonymous | Kind::File | Kind::Shared)
    }

    /// The word that files use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Anonymous => "anonymous",
            Kind::File => "file",
            Kind::Shared => "shared",
            Kind::Swapped => "swapped",
            Kind::Zero => "zero",
        }
    }
}

impl Run {
    /// The first address behind it.
    #[must_use]
    pub fn end(&self) -> VirtAddr {
        self.address + self.pages.to_bytes()
    }

    /// The frame of page `n` of the run, where frames are known.
    #[must_use]
    pub fn frame_of(&self, n: u64) -> Option<Frame> {
        self.frame.map(|first| Frame(first.0 + n))
    }

    /// Whether superpages map it.
    #[must_use]
    pub const fn is_super(&self) -> bool {
        self.page_size.0 > BASE_PAGE
    }

    /// The run with the colour of its first page.
    #[must_use]
    pub fn line(self, colours: &Colours) -> Line {
        Line {
            run: self,
            colour: self.frame.map(|frame| colours.of(frame)),
        }
    }

    fn is_continued_by(&self, next: &Run) -> bool {
        self.end() == next.address
            && self.frame_of(self.pages.0) == next.frame
            && (self.page_size, self.kind) == (next.page_size, next.kind)
    }
}

impl Mapped {
    /// A mapping of which nothing is known yet.
    #[must_use]
    pub fn new(range: AddrRange, name: impl Into<String>) -> Mapped {
        Mapped {
            range,
            name: name.into(),
            runs: Vec::new(),
        }
    }

    /// Enters what comes next in order of address: a page or several, joined to the
    /// last run where they continue it.
    pub fn push(&mut self, next: Run) {
        match self.runs.last_mut() {
            Some(last) if last.is_continued_by(&next) => last.pages += next.pages,
            _ => self.runs.push(next),
        }
    }

    /// What is there, in order of address.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }
}

#[cfg(test)]
pub(super) mod testing {
    //! Pages for tests, and what they should become.

    use proptest::prelude::*;

    use super::*;

    /// What one page has: frame, whether a superpage maps it, kind.
    pub type Page = (Option<Frame>, bool, Kind);

    /// A few frames, so that neighbours are frequent.
    fn page() -> impl Strategy<Value = Option<Page>> {
        let frame = prop::option::weighted(0.9, (1u64..6).prop_map(Frame));
        let kinds = [Kind::Anonymous, Kind::File, Kind::Swapped, Kind::Zero];
        let kind = prop::sample::select(kinds.to_vec());
        prop::option::weighted(0.8, (frame, prop::bool::weighted(0.2), kind))
    }

    /// Neighbouring pages, of which some are absent. Long runs are made by counting up.
    pub fn pages() -> impl Strategy<Value = Vec<Option<Page>>> {
        let stretch = (page(), 1u64..9).prop_map(|(page, len)| {
            let nth = move |n: u64| {
                page.map(|(frame, is_super, kind)| (frame.map(|f| Frame(f.0 + n)), is_super, kind))
            };
            (0..len).map(nth).collect::<Vec<_>>()
        });
        prop::collection::vec(stretch, 0..20).prop_map(|all| all.concat())
    }

    /// Enters pages from address `base` on.
    pub fn mapped(base: VirtAddr, pages: &[Option<Page>]) -> Mapped {
        let size = PageCount(pages.len() as u64).to_bytes();
        let mut mapped = Mapped::new(AddrRange::new(base, size), "name");
        for (n, page) in pages.iter().enumerate() {
            let Some((frame, is_super, kind)) = *page else {
                continue;
            };
            mapped.push(Run {
                address: base + PageCount(n as u64).to_bytes(),
                pages: PageCount(1),
                frame,
                page_size: Bytes(if is_super { 2 << 20 } else { BASE_PAGE }),
                kind,
            });
        }
        mapped
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::testing::{mapped, pages};
    use super::*;

    #[test]
    fn neighbours_are_joined() {
        let at = |n: u64, frame, kind| Run {
            address: VirtAddr(n * BASE_PAGE),
            pages: PageCount(1),
            frame,
            page_size: Bytes(BASE_PAGE),
            kind,
        };
        let mut map = Mapped::new(AddrRange::default(), "");
        let frame = |n| Some(Frame(n));
        map.push(at(1, frame(7), Kind::File));
        map.push(at(2, frame(8), Kind::File));
        map.push(at(3, frame(9), Kind::Anonymous));
        map.push(at(4, frame(11), Kind::Anonymous));
        map.push(at(6, frame(12), Kind::Anonymous));
        map.push(at(7, None, Kind::Swapped));
        map.push(at(8, None, Kind::Swapped));
        let lens: Vec<u64> = map.runs().iter().map(|run| run.pages.0).collect();
        assert_eq!(lens, [2, 1, 1, 1, 2]);
    }

    #[test]
    fn a_line_has_the_colour_of_its_first_page() {
        let run = Run {
            address: VirtAddr(0x1000),
            pages: PageCount(3),
            frame: Some(Frame(0x13)),
            page_size: Bytes(BASE_PAGE),
            kind: Kind::Shared,
        };
        let line = run.line(&Colours::plain(1 << 16));
        assert_eq!(line.colour, Some(Colour(3)));
        let json = serde_json::to_string(&line).unwrap();
        let expected =
            r#"{"address":4096,"pages":3,"frame":19,"page_size":4096,"kind":"shared","colour":3}"#;
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<Line>(&json).unwrap(), line);
        assert_eq!(serde_json::to_value(Kind::Zero).unwrap(), Kind::Zero.name());
    }

    proptest! {
        #[test]
        fn runs_expand_to_the_pages(pages in pages(), base in 0u64..1 << 30) {
            let base = VirtAddr(base * BASE_PAGE);
            let map = mapped(base, &pages);
            let mut expanded = vec![None; pages.len()];
            for run in map.runs() {
                let first = (run.address - base).0 / BASE_PAGE;
                for n in 0..run.pages.0 {
                    let page = (run.frame_of(n), run.is_super(), run.kind);
                    let place = &mut expanded[(first + n) as usize];
                    prop_assert_eq!(*place, None);
                    *place = Some(page);
                }
            }
            prop_assert_eq!(expanded, pages);
            for pair in map.runs().windows(2) {
                prop_assert!(pair[0].end() <= pair[1].address);
                prop_assert!(!pair[0].is_continued_by(&pair[1]));
            }
        }
    }
}
