//! What is asked about a process, and of it. The trait is there so that what the kernel may answer at a bad
//! moment can be tested.

use quire_core::stat::RegionKind;
use quire_core::units::{AddrRange, Bytes, PageCount, Slot};
use quire_linux::Errno;
use quire_linux::raw::Result;

/// A mapping that could have superpages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Its addresses.
    pub range: AddrRange,
    /// What it is.
    pub kind: RegionKind,
}

impl Area {
    /// Whether it is private memory of the program: only that is advised ahead.
    #[must_use]
    pub const fn is_private(&self) -> bool {
        matches!(
            self.kind,
            RegionKind::Heap | RegionKind::Anon | RegionKind::Stack
        )
    }
}

/// The mappings of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Areas {
    /// Whether those are wanted, too, that are too small for superpages.
    pub small: bool,
    /// Those that could have superpages, in order of address. The kernel's list may have several neighbours where
    /// only advice differs.
    pub areas: Vec<Area>,
    /// How many mappings there are in all.
    pub mappings: u64,
}

/// Why the kernel made no superpage of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No block was free, or the control group is full. `ENOMEM` also means that nothing is mapped there.
    NoBlock,
    /// Pages are in use.
    Busy,
    /// The mapping may have none, or is gone.
    Mapping,
    /// The process is gone.
    Gone,
    /// The process may not be advised.
    Denied,
}

impl Refusal {
    /// What an answer to `MADV_COLLAPSE` means.
    #[must_use]
    pub const fn of(errno: Errno) -> Refusal {
        match errno.0 {
            libc::ENOMEM | libc::EBUSY => Refusal::NoBlock,
            libc::EAGAIN => Refusal::Busy,
            libc::ESRCH => Refusal::Gone,
            libc::EPERM | libc::EACCES => Refusal::Denied,
            _ => Refusal::Mapping,
        }
    }
}

/// A process.
pub trait Process {
    /// Its mappings now.
    ///
    /// # Errors
    /// As the kernel refuses.
    fn areas(&mut self, found: &mut Areas) -> Result<()>;

    /// Calls `found` with each run of populated pages of a range, and whether superpages map it. The kernel's page
    /// of zeros is not populated.
    ///
    /// # Errors
    /// As the kernel refuses.
    fn populated(&mut self, range: AddrRange, found: &mut dyn FnMut(AddrRange, bool))
    -> Result<()>;

    /// The same of shared memory; with the pages that only other processes have touched, where this one serves them.
    ///
    /// # Errors
    /// As the kernel refuses.
    fn existing(&mut self, range: AddrRange, found: &mut dyn FnMut(AddrRange, bool)) -> Result<()> {
        self.populated(range, found)
    }

    /// Whether [`populated`](Self::populated) can tell what superpages map.
    fn tells_superpages(&self) -> bool;

    /// Where that does not tell: how much is on superpages, mapping by mapping, in order of address.
    ///
    /// # Errors
    /// As the kernel refuses.
    fn superpages(&mut self, found: &mut dyn FnMut(AddrRange, Bytes)) -> Result<()> {
        let _ = found;
        Err(Errno(libc::ENOSYS))
    }

    /// How many pages of an extent another process maps, too.
    ///
    /// # Errors
    /// As the kernel refuses.
    fn shared(&mut self, slot: Slot) -> Result<PageCount>;

    /// Whether the kernel would make superpages in the mapping at the beginning of a range.
    fn may_have(&mut self, range: AddrRange) -> bool;

    /// Whether the program has said nowhere that it wants no superpages, as far as is known: of what is smaller than
    /// one, the kernel does not say it.
    fn forbids_nowhere(&mut self) -> bool {
        true
    }

    /// Advises that a range may have superpages at its first touch.
    ///
    /// # Errors
    /// As `madvise`.
    fn advise(&mut self, range: AddrRange) -> Result<()>;

    /// Makes a superpage of an extent, by a copy.
    ///
    /// # Errors
    /// As `madvise` with `MADV_COLLAPSE`.
    fn collapse(&mut self, slot: Slot, kind: RegionKind) -> Result<()>;
}
