//! The statistics page: a block of shared memory in which a managed process
//! keeps its counters, and which `quire stat` reads without disturbing it.
//!
//! The page is a fixed `repr(C)` layout of atomics. Counters are monotone and
//! are read one by one. The region table is rewritten as a whole by one writer
//! at a time and is guarded by a sequence number: odd while it is written, so
//! a reader that saw an odd or a changed number tries again. The cells of the
//! regions' pictures lie behind the table and are guarded with it. What frame
//! strategies gave is in tables that are read without a lock (see `strategies`).

mod call;
pub mod picture;
mod strategies;
mod superpages;
mod text;

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use serde::{Deserialize, Serialize};

use crate::config::Policy;
use crate::registry::Holding;
use crate::units::{AddrRange, Bytes, VirtAddr};
pub use call::{Call, FailedCall};
pub use picture::{Cell, CellState, Picture};
use strategies::StrategyTable;
pub use strategies::{
    FrameCounts, FrameTally, Given, MAX_PLACED, MAX_STRATEGIES, PlacedStat, StrategyName,
    StrategyStat,
};
use superpages::SuperpageTable;
pub use superpages::{MAX_SUPERPAGE_REGIONS, SuperpageRegion};

/// First word of every statistics page.
pub const STAT_MAGIC: u64 = u64::from_le_bytes(*b"quirepg\0");
/// Version of the layout below.
pub const STAT_VERSION: u32 = 7;
/// Regions that the table can hold; the rest is summed into the last entry.
pub const MAX_REGIONS: usize = 512;
/// Cells that the pictures of all regions share: one for each extent of
/// 128 GiB. The page lies on a file system in memory, so cells that are not
/// used take none.
pub const MAX_CELLS: usize = 1 << 16;
/// Name of the file in the session directory, before the process number.
pub const STAT_FILE_PREFIX: &str = "stat.";
/// What follows the process number in the name of a page of `libquire.so` beside a library that provides memory.
pub const ADVICE_SUFFIX: &str = ".advice";

/// What a process counts. The discriminant is the counter's place in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Bytes of managed address space, now.
    Mapped,
    /// Bytes of managed memory that the program has populated, now.
    Populated,
    /// Bytes reserved and not populated, now.
    Reserved,
    /// Superpages mapped, now.
    Superpages,
    /// Largest number of superpages mapped at once.
    SuperpagesPeak,
    /// Largest number of bytes reserved and not populated at once.
    ReservedPeak,
    /// Largest number of bytes populated at once.
    PopulatedPeak,
    /// Reservations made.
    Reservations,
    /// Reservations that failed for want of a contiguous block or of memory.
    FailedReservations,
    /// Extents that became a superpage in place.
    Promotions,
    /// Superpages that went back to base pages.
    Demotions,
    /// Reservations whose unpopulated pages were taken back.
    Preemptions,
    /// Faults that the pager thread resolved.
    PagerFaults,
    /// Forks in which managed memory was split between parent and child.
    Forks,
    /// Superpages taken back by the parent after a fork.
    Returned,
    /// CPU time of the pager thread, nanoseconds.
    PagerCpu,
    /// Time that the program's own threads spent in Quire's calls, nanoseconds.
    CallTime,
    /// Superpages zeroed ahead of need, ready in the pool, now.
    PoolReady,
    /// Time that promotions took, nanoseconds.
    PromotionTime,
    /// Superpages made of shared memory, files and stacks.
    FilePromotions,
    /// Superpages of program text and read-only data.
    TextSuperpages,
    /// Extents that were given folios smaller than a superpage, because no block
    /// of that size was free.
    SmallReservations,
    /// Extents of smaller folios that became a superpage, by a copy.
    SmallPromotions,
    /// Pages of 1 GiB from the hugetlb pool, now. Each counts as 512 superpages,
    /// too.
    Gigapages,
    /// Largest number of them at once.
    GigapagesPeak,
    /// Touches of missing pages for which a strategy was asked for frames.
    FrameFaults,
    /// Pages that got a frame that their strategy chose.
    FramesChosen,
    /// Pages whose strategy accepted no free frame, and that got any.
    FramesOther,
    /// Pages that were left to the kernel although they have a strategy.
    FramesLeft,
    /// Pages in stock for strategies, now.
    FramesStocked,
    /// Extents that the kernel was advised to give superpages at the first touch.
    Advised,
    /// Extents that the kernel refused to make a superpage of, for reasons other than
    /// want of memory.
    Refused,
}

/// Number of counters.
pub const COUNTERS: usize = 32;

/// Why a process, or a part of it, is managed less than it could be. Each is a
/// bit of the page's note word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub enum Note {
    /// `userfaultfd` is missing or refused.
    NoUserfaultfd = 0,
    /// Only faults from user mode can be handled.
    UserModeOnly = 1,
    /// No file system with huge folios could be had.
    NoHugeFolios = 2,
    /// The hugetlb pool was empty.
    HugetlbPoolEmpty = 3,
    /// `vm.overcommit_memory=2`.
    StrictOvercommit = 4,
    /// `RLIMIT_DATA` is set.
    DataLimit = 5,
    /// The pager thread could not be started.
    NoPager = 6,
    /// `PAGEMAP_SCAN` is missing.
    NoPagemapScan = 7,
    /// Memory was short, so reservations were refused or taken back.
    MemoryShort = 8,
    /// After a fork the parent's changed pages could not be taken back.
    ForkNotReturned = 9,
    /// Transparent huge pages are switched off for this process.
    HugePagesDisabled = 10,
    /// The statistics page could not be shared.
    NoStatPage = 11,
    /// A system call that Quire needed failed.
    SystemCallFailed = 12,
    /// The program opened a file of its own memory.
    OwnMemoryFile = 13,
    /// Mappings were short (`vm.max_map_count`).
    MapsShort = 14,
    /// The same touch was reported again and again.
    TouchRepeated = 15,
    /// Frames could not be given by strategy: pages cannot be moved.
    FramesUnmoved = 16,
    /// Frames could not be given by strategy: system calls would fail.
    FramesUserMode = 17,
    /// Frames could not be given by strategy: their numbers are hidden.
    FramesHidden = 18,
    /// Frames could not be given by strategy for want of memory or a thread.
    FramesUnserved = 19,
    /// Frames could not be given by strategy: a file of a strategy could not be used.
    FramesNoFile = 20,
    /// The page table cannot be read (`/proc/self/pagemap`).
    NoPageTable = 21,
    /// The kernel makes no superpages on request (`MADV_COLLAPSE`).
    NoCollapse = 22,
    /// The program serves its own page faults.
    OwnFaults = 23,
    /// The program forbade itself system calls (seccomp).
    Sandboxed = 24,
    /// The program lists more mappings than are looked at.
    ManyMappings = 25,
    /// `RLIMIT_NOFILE` is too low.
    FewDescriptors = 26,
    /// `RLIMIT_FSIZE` is set.
    FileSizeLimit = 27,
    /// `userfaultfd` lacks what is needed.
    OldUserfaultfd = 28,
}

impl Note {
    /// Every note.
    pub const ALL: [Note; 29] = [
        Note::NoUserfaultfd,
        Note::UserModeOnly,
        Note::NoHugeFolios,
        Note::HugetlbPoolEmpty,
        Note::StrictOvercommit,
        Note::DataLimit,
        Note::NoPager,
        Note::NoPagemapScan,
        Note::MemoryShort,
        Note::ForkNotReturned,
        Note::HugePagesDisabled,
        Note::NoStatPage,
        Note::SystemCallFailed,
        Note::OwnMemoryFile,
        Note::MapsShort,
        Note::TouchRepeated,
        Note::FramesUnmoved,
        Note::FramesUserMode,
        Note::FramesHidden,
        Note::FramesUnserved,
        Note::FramesNoFile,
        Note::NoPageTable,
        Note::NoCollapse,
        Note::OwnFaults,
        Note::Sandboxed,
        Note::ManyMappings,
        Note::FewDescriptors,
        Note::FileSizeLimit,
        Note::OldUserfaultfd,
    ];

    /// One sentence for people, with the remedy where there is one.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Note::NoUserfaultfd => {
                "userfaultfd is refused, so memory stayed on the kernel's own pages (see `quire doctor`)"
            }
            Note::UserModeOnly => {
                "userfaultfd handles user mode only: touched reservations cannot be preempted and superpages do not come back after a fork (see `quire doctor`)"
            }
            Note::NoHugeFolios => {
                "no tmpfs with huge=always could be mounted, so memory stayed on the kernel's own pages (see `quire doctor`)"
            }
            Note::HugetlbPoolEmpty => {
                "the hugetlb pool was empty: base pages were used (sysctl vm.nr_hugepages=N provides it)"
            }
            Note::StrictOvercommit => {
                "vm.overcommit_memory=2: the kernel's accounting must see every mapping, so memory stayed on its own pages"
            }
            Note::DataLimit => {
                "RLIMIT_DATA is set, so the kernel kept the mappings that count against it"
            }
            Note::NoPager => {
                "the pager thread could not be started, so memory stayed on the kernel's own pages"
            }
            Note::NoPagemapScan => {
                "PAGEMAP_SCAN is missing (Linux 6.7 has it), so memory stayed on the kernel's own pages"
            }
            Note::MemoryShort => "memory was short: reservations were refused or taken back",
            Note::ForkNotReturned => {
                "after a fork, pages that the parent changed stayed base pages"
            }
            Note::HugePagesDisabled => {
                "huge pages are disabled for this process (PR_SET_THP_DISABLE)"
            }
            Note::NoStatPage => {
                "the statistics page could not be shared, so `quire stat` does not see this process"
            }
            Note::SystemCallFailed => {
                "a system call failed, and part of the memory stayed on base pages"
            }
            Note::OwnMemoryFile => {
                "the program opened /proc/self/mem, which cannot wait for Quire: since then reservations run behind the program and are not preempted, and frames are the kernel's choice"
            }
            Note::MapsShort => {
                "half of vm.max_map_count was in use, so some superpages were not made (sysctl vm.max_map_count=N raises it)"
            }
            Note::TouchRepeated => {
                "the kernel reported one touch again and again, so its superpage was left to base pages"
            }
            Note::FramesUnmoved => {
                "userfaultfd cannot move pages here (Linux 6.8 can), so frames are the kernel's choice"
            }
            Note::FramesUserMode => {
                "userfaultfd handles user mode only, so frames are the kernel's choice (run as root, or sysctl vm.unprivileged_userfaultfd=1)"
            }
            Note::FramesHidden => {
                "the kernel hides frame numbers, so frames are its choice (`exact` needs CAP_SYS_ADMIN: run as root)"
            }
            Note::FramesUnserved => {
                "no thread, or no block of 2 MiB to begin with, so frames are the kernel's choice"
            }
            Note::FramesNoFile => {
                "a strategy's plug-in or recorded mapping could not be used, so frames are the kernel's choice (it must stay where it was, readable to every program that is started)"
            }
            Note::NoPageTable => {
                "/proc/self/maps and /proc/self/pagemap cannot be read, so what is populated is not known and nothing was advised"
            }
            Note::NoCollapse => {
                "the kernel makes no superpages on request (MADV_COLLAPSE, Linux 6.1, and CONFIG_TRANSPARENT_HUGEPAGE), so full extents were left to khugepaged"
            }
            Note::OwnFaults => {
                "the program serves its own page faults (userfaultfd), so its memory was left alone from then on"
            }
            Note::Sandboxed => {
                "the program forbade itself system calls (seccomp), so its memory was left alone from then on"
            }
            Note::ManyMappings => {
                "half of vm.max_map_count was in use, so nothing was advised that makes more mappings (sysctl vm.max_map_count=N raises it)"
            }
            Note::FewDescriptors => {
                "RLIMIT_NOFILE is below 24, so memory stayed on the kernel's own pages (ulimit -n raises it)"
            }
            Note::FileSizeLimit => {
                "RLIMIT_FSIZE is set, and memory that Quire provides is a file, so memory stayed on the kernel's own pages (ulimit -f unlimited)"
            }
            Note::OldUserfaultfd => {
                "userfaultfd cannot protect pages that are not there (Linux 6.4 can, with CONFIG_PTE_MARKER_UFFD_WP), so memory stayed on the kernel's own pages"
            }
        }
    }
}

/// What kind of memory a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RegionKind {
    /// The allocator's.
    Heap,
    /// A private anonymous mapping of the program.
    Anon,
    /// The stack of a thread.
    Stack,
    /// Memory that processes share.
    Shared,
    /// A file, program text among them.
    File,
    /// The sum of the regions that the table has no room for.
    Rest,
}

impl RegionKind {
    /// How it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            RegionKind::Heap => "heap",
            RegionKind::Anon => "anon",
            RegionKind::Stack => "stack",
            RegionKind::Shared => "shared",
            RegionKind::File => "file",
            RegionKind::Rest => "rest",
        }
    }

    const fn code(self) -> u32 {
        match self {
            RegionKind::Heap => 0,
            RegionKind::Anon => 1,
            RegionKind::Rest => 2,
            RegionKind::Stack => 3,
            RegionKind::Shared => 4,
            RegionKind::File => 5,
        }
    }

    const fn from_code(code: u32) -> RegionKind {
        match code {
            0 => RegionKind::Heap,
            1 => RegionKind::Anon,
            3 => RegionKind::Stack,
            4 => RegionKind::Shared,
            5 => RegionKind::File,
            _ => RegionKind::Rest,
        }
    }
}

/// The state of one region, as it is reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionStat {
    /// Its addresses.
    #[serde(flatten)]
    pub range: AddrRange,
    /// What it is.
    pub kind: RegionKind,
    /// Its policy.
    pub policy: Policy,
    /// Bytes of address space.
    pub mapped_bytes: Bytes,
    /// Bytes that the program has populated.
    pub populated_bytes: Bytes,
    /// Bytes reserved and not populated.
    pub reserved_bytes: Bytes,
    /// Superpages mapped now.
    pub superpages: u64,
    /// Promotions since the region exists.
    pub promotions: u64,
    /// Demotions since the region exists.
    pub demotions: u64,
    /// Preemptions since the region exists.
    pub preemptions: u64,
    /// Failed reservations since the region exists.
    pub failed_reservations: u64,
    /// Its extents.
    pub picture: Picture,
}

const REGION_WORDS: usize = 12;

/// Where the cells of a picture are in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Placed {
    first: usize,
    count: usize,
}

impl Placed {
    fn encode(self) -> u64 {
        (self.first as u64) << 32 | self.count as u64
    }

    /// A place that no page has holds nothing.
    fn decode(word: u64) -> Placed {
        let first = (word >> 32) as usize;
        let room = MAX_CELLS.saturating_sub(first);
        Placed {
            first: first.min(MAX_CELLS),
            count: (word as u32 as usize).min(room),
        }
    }
}

impl RegionStat {
    /// A region of which nothing is populated, and with which nothing has happened.
    #[must_use]
    pub const fn untouched(range: AddrRange, kind: RegionKind, policy: Policy) -> RegionStat {
        RegionStat {
            range,
            kind,
            policy,
            mapped_bytes: range.len(),
            populated_bytes: Bytes::ZERO,
            reserved_bytes: Bytes::ZERO,
            superpages: 0,
            promotions: 0,
            demotions: 0,
            preemptions: 0,
            failed_reservations: 0,
            picture: Picture {
                extents_per_cell: 1,
                cells: Vec::new(),
            },
        }
    }

    fn encode(&self, placed: Placed) -> [u64; REGION_WORDS] {
        let (kind, policy) = (self.kind.code(), self.policy.code());
        [
            self.range.start.0,
            self.range.end.0,
            u64::from(kind)
                | u64::from(policy) << 8
                | u64::from(self.picture.extents_per_cell) << 32,
            placed.encode(),
            self.mapped_bytes.0,
            self.populated_bytes.0,
            self.reserved_bytes.0,
            self.superpages,
            self.promotions,
            self.demotions,
            self.preemptions,
            self.failed_reservations,
        ]
    }

    fn decode(words: [u64; REGION_WORDS]) -> RegionStat {
        RegionStat {
            range: AddrRange {
                start: VirtAddr(words[0]),
                end: VirtAddr(words[1]),
            },
            kind: RegionKind::from_code(words[2] as u32 & 0xff),
            policy: Policy::from_code(words[2] as u32 >> 8).unwrap_or_default(),
            mapped_bytes: Bytes(words[4]),
            populated_bytes: Bytes(words[5]),
            reserved_bytes: Bytes(words[6]),
            superpages: words[7],
            promotions: words[8],
            demotions: words[9],
            preemptions: words[10],
            failed_reservations: words[11],
            picture: Picture {
                extents_per_cell: (words[2] >> 32) as u32,
                cells: Vec::new(),
            },
        }
    }

    /// Adds `other` to this entry, which then stands for both, and has no
    /// picture.
    pub fn absorb(&mut self, other: &RegionStat) {
        self.range.start = self.range.start.min(other.range.start);
        self.range.end = self.range.end.max(other.range.end);
        self.kind = RegionKind::Rest;
        self.mapped_bytes += other.mapped_bytes;
        self.populated_bytes += other.populated_bytes;
        self.reserved_bytes += other.reserved_bytes;
        self.superpages += other.superpages;
        self.promotions += other.promotions;
        self.demotions += other.demotions;
        self.preemptions += other.preemptions;
        self.failed_reservations += other.failed_reservations;
        self.picture = Picture::default();
    }
}

/// How much of the machinery a process could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Privilege {
    /// Nothing is managed by Quire's own objects.
    None,
    /// `userfaultfd` for user mode only.
    User,
    /// `userfaultfd` for user and kernel mode.
    Full,
    /// No faults: the process is advised, and its memory stays the kernel's.
    Advised,
}

impl Privilege {
    /// How it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Privilege::None => "none",
            Privilege::User => "user",
            Privilege::Full => "full",
            Privilege::Advised => "advised",
        }
    }
}

/// The shared page. All fields are atomics because the writer is a running
/// process and the reader another one.
#[repr(C)]
pub struct StatPage {
    magic: AtomicU64,
    version: AtomicU32,
    pid: AtomicU32,
    start_time: AtomicU64,
    policy: AtomicU32,
    privilege: AtomicU32,
    switches: AtomicU64,
    oldest_ms: AtomicU64,
    group: AtomicU64,
    comm: [AtomicU64; 2],
    notes: AtomicU64,
    failed_call: AtomicU64,
    counters: [AtomicU64; COUNTERS],
    strategies: StrategyTable,
    superpages: SuperpageTable,
    sequence: AtomicU32,
    region_count: AtomicU32,
    regions: [[AtomicU64; REGION_WORDS]; MAX_REGIONS],
    cells: [AtomicU8; MAX_CELLS],
}

/// Everything that a statistics page says, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStat {
    /// Process number.
    pub pid: u32,
    /// Start time of the process in clock ticks since boot; with the number it
    /// names a process for ever.
    pub start_time: u64,
    /// Command name.
    pub comm: String,
    /// Policy of the process.
    pub policy: Policy,
    /// What the process could have.
    pub privilege: Privilege,
    /// Whether its own mappings begin on a superpage boundary.
    pub align: bool,
    /// Why it is managed less than it could be.
    pub notes: Vec<Note>,
    /// The call that failed last, where one of the notes says that one did.
    #[serde(default)]
    pub failed_call: Option<FailedCall>,
    /// Its counters.
    #[serde(flatten)]
    pub totals: Totals,
    /// What its frame strategies gave, the one for memory without a hint first; empty
    /// where frames are not given by strategy.
    #[serde(default)]
    pub strategies: Vec<StrategyStat>,
    /// Where there are such strategies: the regions that had the most superpages, these
    /// first, also those that are gone.
    #[serde(default)]
    pub superpage_regions: Vec<SuperpageRegion>,
    /// Its regions.
    pub regions: Vec<RegionStat>,
}

impl ProcessStat {
    /// Takes in what is told of the same process by the library that advises beside the one that provides memory.
    pub fn take_in(&mut self, advised: ProcessStat) {
        self.totals.add(&advised.totals);
        let new = |note: &Note| !self.notes.contains(note);
        let notes: Vec<Note> = advised.notes.into_iter().filter(new).collect();
        self.notes.extend(notes);
        self.failed_call = self.failed_call.or(advised.failed_call);
        self.regions.extend(advised.regions);
        self.regions.sort_by_key(|region| region.range.start);
    }
}

/// The counters by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "each field is the counter of the same name, see Counter"
)]
pub struct Totals {
    pub mapped_bytes: u64,
    pub populated_bytes: u64,
    pub reserved_bytes: u64,
    pub superpages: u64,
    pub superpages_peak: u64,
    pub reserved_peak_bytes: u64,
    pub populated_peak_bytes: u64,
    pub reservations: u64,
    pub failed_reservations: u64,
    pub promotions: u64,
    pub demotions: u64,
    pub preemptions: u64,
    pub pager_faults: u64,
    pub forks: u64,
    pub returned: u64,
    pub pager_cpu_ns: u64,
    /// Time that promotions took, nanoseconds.
    pub promotion_ns: u64,
    pub call_time_ns: u64,
    pub pool_ready: u64,
    pub file_promotions: u64,
    pub text_superpages: u64,
    pub small_reservations: u64,
    pub small_promotions: u64,
    pub gigapages: u64,
    pub gigapages_peak: u64,
    pub frame_faults: u64,
    pub frames_chosen: u64,
    pub frames_other: u64,
    pub frames_left: u64,
    pub frames_stocked: u64,
    pub advised: u64,
    pub refused: u64,
}

impl ProcessStat {
    /// Its notes in words, for people. A call that failed is named.
    pub fn remarks(&self) -> impl Iterator<Item = String> {
        self.notes.iter().map(|note| self.remark(*note))
    }

    /// One of its notes in words.
    #[must_use]
    pub fn remark(&self, note: Note) -> String {
        match (note, self.failed_call) {
            (Note::SystemCallFailed, Some(failed)) => format!("{} ({failed})", note.text()),
            _ => note.text().to_owned(),
        }
    }
}

impl Totals {
    fn from_words(w: [u64; COUNTERS]) -> Totals {
        let at = |c: Counter| w[c as usize];
        Totals {
            mapped_bytes: at(Counter::Mapped),
            populated_bytes: at(Counter::Populated),
            reserved_bytes: at(Counter::Reserved),
            superpages: at(Counter::Superpages),
            superpages_peak: at(Counter::SuperpagesPeak),
            reserved_peak_bytes: at(Counter::ReservedPeak),
            populated_peak_bytes: at(Counter::PopulatedPeak),
            reservations: at(Counter::Reservations),
            failed_reservations: at(Counter::FailedReservations),
            promotions: at(Counter::Promotions),
            demotions: at(Counter::Demotions),
            preemptions: at(Counter::Preemptions),
            pager_faults: at(Counter::PagerFaults),
            forks: at(Counter::Forks),
            returned: at(Counter::Returned),
            pager_cpu_ns: at(Counter::PagerCpu),
            promotion_ns: at(Counter::PromotionTime),
            call_time_ns: at(Counter::CallTime),
            pool_ready: at(Counter::PoolReady),
            file_promotions: at(Counter::FilePromotions),
            text_superpages: at(Counter::TextSuperpages),
            small_reservations: at(Counter::SmallReservations),
            small_promotions: at(Counter::SmallPromotions),
            gigapages: at(Counter::Gigapages),
            gigapages_peak: at(Counter::GigapagesPeak),
            frame_faults: at(Counter::FrameFaults),
            frames_chosen: at(Counter::FramesChosen),
            frames_other: at(Counter::FramesOther),
            frames_left: at(Counter::FramesLeft),
            frames_stocked: at(Counter::FramesStocked),
            advised: at(Counter::Advised),
            refused: at(Counter::Refused),
        }
    }

    /// Adds the counters of another process, or of another library in the same, to these.
    pub fn add(&mut self, other: &Totals) {
        self.mapped_bytes += other.mapped_bytes;
        self.populated_bytes += other.populated_bytes;
        self.reserved_bytes += other.reserved_bytes;
        self.superpages += other.superpages;
        self.superpages_peak += other.superpages_peak;
        self.reserved_peak_bytes += other.reserved_peak_bytes;
        self.populated_peak_bytes += other.populated_peak_bytes;
        self.reservations += other.reservations;
        self.failed_reservations += other.failed_reservations;
        self.promotions += other.promotions;
        self.demotions += other.demotions;
        self.preemptions += other.preemptions;
        self.pager_faults += other.pager_faults;
        self.forks += other.forks;
        self.returned += other.returned;
        self.pager_cpu_ns += other.pager_cpu_ns;
        self.promotion_ns += other.promotion_ns;
        self.call_time_ns += other.call_time_ns;
        self.pool_ready += other.pool_ready;
        self.file_promotions += other.file_promotions;
        self.text_superpages += other.text_superpages;
        self.small_reservations += other.small_reservations;
        self.small_promotions += other.small_promotions;
        self.gigapages += other.gigapages;
        self.gigapages_peak += other.gigapages_peak;
        self.frame_faults += other.frame_faults;
        self.frames_chosen += other.frames_chosen;
        self.frames_other += other.frames_other;
        self.frames_left += other.frames_left;
        self.frames_stocked += other.frames_stocked;
        self.advised += other.advised;
        self.refused += other.refused;
    }
}

/// A block of memory that is not a statistics page of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatError {
    /// The magic number is missing.
    #[error("not a statistics page")]
    NotAPage,
    /// The page was written by another version.
    #[error(
        "statistics page of version {0}, this program reads version {STAT_VERSION}: use the same version of quire on both sides"
    )]
    Version(u32),
    /// The writer never left the region table alone long enough, or died while
    /// writing it.
    #[error("the region table kept changing")]
    Busy,
}

impl Default for StatPage {
    fn default() -> StatPage {
        StatPage::new()
    }
}

impl StatPage {
    /// A page that belongs to nobody yet.
    #[must_use]
    pub const fn new() -> StatPage {
        StatPage {
            magic: AtomicU64::new(0),
            version: AtomicU32::new(0),
            pid: AtomicU32::new(0),
            start_time: AtomicU64::new(0),
            policy: AtomicU32::new(0),
            privilege: AtomicU32::new(0),
            switches: AtomicU64::new(0),
            oldest_ms: AtomicU64::new(0),
            group: AtomicU64::new(0),
            comm: [const { AtomicU64::new(0) }; 2],
            notes: AtomicU64::new(0),
            failed_call: AtomicU64::new(0),
            counters: [const { AtomicU64::new(0) }; COUNTERS],
            strategies: StrategyTable::new(),
            superpages: SuperpageTable::new(),
            sequence: AtomicU32::new(0),
            region_count: AtomicU32::new(0),
            regions: [const { [const { AtomicU64::new(0) }; REGION_WORDS] }; MAX_REGIONS],
            cells: [const { AtomicU8::new(0) }; MAX_CELLS],
        }
    }

    /// Forgets what has been counted, for the copy of a page that a forked
    /// child inherited.
    pub fn reset(&self) {
        self.notes.store(0, Ordering::Relaxed);
        self.failed_call.store(0, Ordering::Relaxed);
        self.region_count.store(0, Ordering::Relaxed);
        self.counters
            .iter()
            .for_each(|c| c.store(0, Ordering::Relaxed));
        self.strategies.reset();
        self.superpages.reset();
    }

    /// Fills in who the page belongs to. The magic number goes in last, so
    /// that a reader never takes a half-made page for a whole one.
    pub fn identify(&self, pid: u32, start_time: u64, comm: &str, policy: Policy) {
        text::store(&self.comm, comm);
        self.pid.store(pid, Ordering::Relaxed);
        self.start_time.store(start_time, Ordering::Relaxed);
        self.policy.store(policy.code(), Ordering::Relaxed);
        self.version.store(STAT_VERSION, Ordering::Relaxed);
        self.magic.store(STAT_MAGIC, Ordering::Release);
    }

    /// Says what the process could have.
    pub fn set_privilege(&self, privilege: Privilege) {
        let code = match privilege {
            Privilege::None => 0,
            Privilege::User => 1,
            Privilege::Full => 2,
            Privilege::Advised => 3,
        };
        self.privilege.store(code, Ordering::Relaxed);
    }

    /// Says which policy is in force, where it is not the one asked for.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.store(policy.code(), Ordering::Relaxed);
    }

    /// Says whether the program's own mappings begin on a superpage boundary.
    pub fn set_align(&self, align: bool) {
        self.switches.store(u64::from(align), Ordering::Relaxed);
    }

    /// Says when the reservation that is preempted first was last allocated from,
    /// and which control group the process is in (see [`Holding`]).
    pub fn set_oldest(&self, oldest_ms: u64, group: u64) {
        self.oldest_ms.store(oldest_ms, Ordering::Relaxed);
        self.group.store(group, Ordering::Relaxed);
    }

    /// What the process says to others that need memory, with its start time.
    ///
    /// # Errors
    /// When it is not a page of this version.
    pub fn holding(&self) -> Result<(Holding, u64), StatError> {
        self.check()?;
        let holding = Holding {
            pid: self.pid.load(Ordering::Relaxed),
            reserved: Bytes(self.get(Counter::Reserved)),
            oldest_ms: self.oldest_ms.load(Ordering::Relaxed),
            group: self.group.load(Ordering::Relaxed),
        };
        Ok((holding, self.start_time.load(Ordering::Relaxed)))
    }

    fn check(&self) -> Result<(), StatError> {
        if self.magic.load(Ordering::Acquire) != STAT_MAGIC {
            return Err(StatError::NotAPage);
        }
        match self.version.load(Ordering::Relaxed) {
            STAT_VERSION => Ok(()),
            version => Err(StatError::Version(version)),
        }
    }

    /// Adds `n` to a counter.
    pub fn add(&self, counter: Counter, n: u64) {
        self.counters[counter as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// Sets a counter that reports a present state.
    pub fn set(&self, counter: Counter, n: u64) {
        self.counters[counter as usize].store(n, Ordering::Relaxed);
    }

    /// Sets a counter that reports a maximum.
    pub fn raise(&self, counter: Counter, n: u64) {
        self.counters[counter as usize].fetch_max(n, Ordering::Relaxed);
    }

    /// Reads a counter.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Ordering::Relaxed)
    }

    /// Says that frames are given by strategies, and what these are called, in the
    /// order of their numbers. What they give counts a [`FrameTally`].
    pub fn name_strategies(&self, names: &[StrategyName]) {
        self.strategies.set_names(names);
    }

    /// Adds a note; adding it again changes nothing.
    pub fn note(&self, note: Note) {
        self.notes.fetch_or(1 << note as u32, Ordering::Relaxed);
    }

    /// Says which call failed last. Whether that matters, a note says.
    pub fn set_failed_call(&self, failed: FailedCall) {
        self.failed_call.store(failed.encode(), Ordering::Relaxed);
    }

    /// Rewrites the region table. Each region comes with a picture that has a
    /// cell for every extent; where the page has too little room, large ones
    /// are folded. Calls must not overlap.
    pub fn set_regions(&self, regions: impl IntoIterator<Item = RegionStat>) {
        let has_strategies = self.strategies.are_named();
        let noted = regions.into_iter().inspect(|region| {
            if has_strategies {
                self.superpages.note(region);
            }
        });
        let regions = fit_table(noted);
        let lengths: Vec<usize> = regions.iter().map(|r| r.picture.cells.len()).collect();
        let factors = picture::fold_factors(&lengths, MAX_CELLS);
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        let mut first = 0;
        for ((entry, mut region), factor) in self.regions.iter().zip(regions).zip(factors) {
            if factor > 1 {
                region.picture = region.picture.folded(factor);
            }
            let count = self.store_cells(first, &region.picture.cells);
            let words = region.encode(Placed { first, count });
            for (word, value) in entry.iter().zip(words) {
                word.store(value, Ordering::Relaxed);
            }
            first += count;
        }
        self.region_count
            .store(lengths.len() as u32, Ordering::Relaxed);
        self.sequence
            .store((sequence | 1).wrapping_add(1), Ordering::Release);
    }

    /// Writes the cells that differ, from number `first` on, so that others'
    /// cache lines stay as they are; returns how many there was room for.
    fn store_cells(&self, first: usize, cells: &[Cell]) -> usize {
        let places = self.cells[first.min(MAX_CELLS)..].iter();
        let mut count = 0;
        for (place, cell) in places.zip(cells) {
            let byte = cell.encode();
            if place.load(Ordering::Relaxed) != byte {
                place.store(byte, Ordering::Relaxed);
            }
            count += 1;
        }
        count
    }

    fn load_region(&self, entry: &[AtomicU64; REGION_WORDS]) -> RegionStat {
        let words: [u64; REGION_WORDS] = std::array::from_fn(|i| entry[i].load(Ordering::Relaxed));
        let mut region = RegionStat::decode(words);
        let Placed { first, count } = Placed::decode(words[3]);
        let cells = self.cells[first..first + count].iter();
        region.picture.cells = cells
            .map(|cell| Cell::decode(cell.load(Ordering::Relaxed)))
            .collect();
        region
    }

    /// Reads the whole page.
    ///
    /// # Errors
    /// When it is not a page of this version. A region table that is never at
    /// rest is reported as empty, with the counters, rather than as an error.
    pub fn read(&self) -> Result<ProcessStat, StatError> {
        self.check()?;
        let notes = self.notes.load(Ordering::Relaxed);
        Ok(ProcessStat {
            pid: self.pid.load(Ordering::Relaxed),
            start_time: self.start_time.load(Ordering::Relaxed),
            comm: text::load(&self.comm),
            policy: Policy::from_code(self.policy.load(Ordering::Relaxed)).unwrap_or_default(),
            privilege: match self.privilege.load(Ordering::Relaxed) {
                0 => Privilege::None,
                1 => Privilege::User,
                3 => Privilege::Advised,
                _ => Privilege::Full,
            },
            align: self.switches.load(Ordering::Relaxed) != 0,
            notes: Note::ALL
                .into_iter()
                .filter(|n| notes & (1 << *n as u32) != 0)
                .collect(),
            failed_call: FailedCall::decode(self.failed_call.load(Ordering::Relaxed)),
            totals: Totals::from_words(std::array::from_fn(|i| {
                self.counters[i].load(Ordering::Relaxed)
            })),
            strategies: self.strategies.read(),
            superpage_regions: self.superpages.read(),
            regions: self.read_regions().unwrap_or_default(),
        })
    }

    /// Reads the region table at rest.
    ///
    /// # Errors
    /// [`StatError::Busy`] when it was never at rest.
    pub fn read_regions(&self) -> Result<Vec<RegionStat>, StatError> {
        for _ in 0..1000 {
            let before = self.sequence.load(Ordering::Acquire);
            if before & 1 == 0 {
                let count = self.region_count.load(Ordering::Relaxed) as usize;
                let regions = self.regions[..count.min(MAX_REGIONS)]
                    .iter()
                    .map(|entry| self.load_region(entry))
                    .collect();
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == before {
                    return Ok(regions);
                }
            }
            std::thread::yield_now();
        }
        Err(StatError::Busy)
    }
}

/// As many regions as the table holds, of which the last stands for those that
/// it has no room for.
fn fit_table(regions: impl IntoIterator<Item = RegionStat>) -> Vec<RegionStat> {
    let mut fitting: Vec<RegionStat> = Vec::new();
    for region in regions {
        let is_full = fitting.len() == MAX_REGIONS;
        match fitting.last_mut() {
            Some(rest) if is_full => rest.absorb(&region),
            _ => fitting.push(region),
        }
    }
    fitting
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{BASE_PAGE, PageCount};
    use proptest::prelude::*;

    fn region(n: u64) -> RegionStat {
        let range = AddrRange::new(VirtAddr(n << 21), Bytes(1 << 21));
        RegionStat {
            populated_bytes: Bytes(BASE_PAGE),
            reserved_bytes: Bytes((1 << 21) - BASE_PAGE),
            superpages: 1,
            promotions: n,
            picture: picture(n, 1),
            ..RegionStat::untouched(range, RegionKind::Anon, Policy::Reserve)
        }
    }

    fn picture(n: u64, extents: usize) -> Picture {
        let state = CellState::ALL[n as usize % CellState::ALL.len()];
        Picture::of_extents(vec![Cell::new(state, PageCount(n)); extents])
    }

    #[test]
    fn what_is_written_is_read() {
        let page = Box::new(StatPage::default());
        assert_eq!(page.read(), Err(StatError::NotAPage));
        page.identify(
            7,
            99,
            "a-name-that-is-longer-than-the-kernel-allows",
            Policy::Eager,
        );
        page.set_privilege(Privilege::Full);
        page.add(Counter::Promotions, 3);
        page.raise(Counter::SuperpagesPeak, 5);
        page.raise(Counter::SuperpagesPeak, 4);
        page.note(Note::MemoryShort);
        page.note(Note::SystemCallFailed);
        page.set_failed_call(FailedCall {
            call: Call::AdviseHuge,
            errno: 12,
        });
        page.set_regions([region(1), region(2)]);
        let stat = page.read().unwrap();
        assert_eq!(
            (stat.pid, stat.start_time, stat.policy),
            (7, 99, Policy::Eager)
        );
        assert_eq!(stat.comm, "a-name-that-is-l");
        assert_eq!(
            (stat.totals.promotions, stat.totals.superpages_peak),
            (3, 5)
        );
        assert_eq!(stat.notes, [Note::MemoryShort, Note::SystemCallFailed]);
        let remarks: Vec<String> = stat.remarks().collect();
        assert_eq!(remarks[0], Note::MemoryShort.text());
        assert!(remarks[1].contains("madvise(MADV_HUGEPAGE): "));
        page.reset();
        assert_eq!(page.read().unwrap().failed_call, None);
        assert_eq!(stat.regions, [region(1), region(2)]);
    }

    #[test]
    fn regions_past_the_table_are_summed() {
        let page = Box::new(StatPage::default());
        page.set_regions((0..MAX_REGIONS as u64 + 10).map(region));
        let regions = page.read_regions().unwrap();
        assert_eq!(regions.len(), MAX_REGIONS);
        let rest = regions.last().unwrap();
        assert_eq!((rest.kind, rest.superpages), (RegionKind::Rest, 11));
        let promotions: u64 = regions.iter().map(|r| r.promotions).sum();
        assert_eq!(promotions, (0..MAX_REGIONS as u64 + 10).sum::<u64>());
    }

    #[test]
    fn a_reader_never_sees_a_torn_table() {
        let page = Box::new(StatPage::default());
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for n in 0..2000 {
                    page.set_regions((0..8).map(|_| RegionStat {
                        picture: picture(n, 100),
                        ..region(n)
                    }));
                }
            });
            while !writer.is_finished() {
                if let Ok(regions) = page.read_regions() {
                    assert!(regions.windows(2).all(|w| w[0] == w[1]));
                    let mut cells = regions.iter().flat_map(|r| &r.picture.cells);
                    let promotions = regions.first().map_or(0, |r| r.promotions);
                    let wanted = picture(promotions, 1).cells[0];
                    assert!(cells.all(|cell| *cell == wanted));
                }
            }
        });
    }

    #[test]
    fn pictures_past_the_room_are_folded() {
        let page = Box::new(StatPage::default());
        let large = RegionStat {
            picture: picture(3, 3 * MAX_CELLS),
            ..region(3)
        };
        page.set_regions([region(1), large, region(2)]);
        let regions = page.read_regions().unwrap();
        assert_eq!([&regions[0], &regions[2]], [&region(1), &region(2)]);
        let folded = &regions[1].picture;
        assert_eq!(folded.extents_per_cell, 6);
        assert_eq!(folded.cells.len(), MAX_CELLS / 2);
        assert!(folded.cells.iter().all(|c| *c == picture(3, 1).cells[0]));
    }

    #[test]
    fn a_place_outside_of_the_page_holds_nothing() {
        let last = Placed {
            first: MAX_CELLS - 1,
            count: 9,
        };
        assert_eq!(Placed::decode(last.encode()), Placed { count: 1, ..last });
        assert_eq!(Placed::decode(u64::MAX).count, 0);
    }

    proptest! {
        #[test]
        fn any_table_with_room_is_read_as_written(
            table in prop::collection::vec((0u64..600, 0usize..300), 0..12),
            then in prop::collection::vec((0u64..600, 0usize..300), 0..12),
        ) {
            let page = Box::new(StatPage::default());
            for table in [table, then] {
                let regions: Vec<RegionStat> = table
                    .into_iter()
                    .map(|(n, extents)| RegionStat { picture: picture(n, extents), ..region(n) })
                    .collect();
                page.set_regions(regions.clone());
                prop_assert_eq!(page.read_regions().unwrap(), regions);
            }
        }
    }
}
