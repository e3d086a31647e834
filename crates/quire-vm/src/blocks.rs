//! What is known of the kernel's free blocks, and what it may cost to have one
//! made. A superpage is taken where a block is free; where none is, the kernel is
//! left to compact memory only within an allowance (`quire_core::policy`), so that
//! a program whose memory is fragmented is no slower than with base pages.

use std::time::Duration;

use quire_core::level::Level;
use quire_core::policy::{Allowance, Backoff};
use quire_core::pressure;
use quire_core::units::Bytes;
use quire_linux::huge_file::Effort;
use quire_linux::sysinfo::FreeBlocks;
use quire_linux::thread;

use crate::extent::now_ms;

/// How often free blocks are counted at most, in milliseconds.
const COUNT_MS: u64 = 2;

/// The kernel's free blocks, as they were counted last.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// Missing where the kernel does not say how many there are.
    reader: Option<FreeBlocks>,
    /// Those of each order.
    free: Vec<u64>,
    /// Superpages among them, less what was taken since.
    superpages: u64,
    next_count_ms: u64,
    /// Holds back attempts where blocks were counted and none was to be had.
    refused: Backoff,
    allowance: Allowance,
    /// The kernel has caches to drop.
    pub caches: bool,
}

impl Blocks {
    /// Nothing is known; one part in `part` of the time is allowed.
    pub fn new(part: u64) -> Blocks {
        Blocks {
            reader: FreeBlocks::new().ok(),
            free: Vec::new(),
            superpages: 0,
            next_count_ms: 0,
            refused: Backoff::default(),
            allowance: Allowance::one_in(part),
            caches: false,
        }
    }

    /// How a superpage may be had now, if at all.
    pub fn effort(&mut self) -> Option<Effort> {
        if self.has_superpage() {
            return Some(Effort::Free);
        }
        let allowed = self.allowance.may_spend(thread::now_ns(), self.caches);
        allowed.then_some(Effort::Compact)
    }

    /// Notes what came of an attempt, and how long it took.
    pub fn note(&mut self, effort: Effort, huge: bool, took: Duration) {
        match (effort, huge) {
            (Effort::Free, true) => self.refused.succeeded(),
            (Effort::Free, false) => self.refused.failed(now_ms()),
            (Effort::Compact, _) => {
                self.allowance.spent(took, huge);
                self.forget();
            }
        }
        self.superpages = self.superpages.saturating_sub(1);
    }

    /// Whether a superpage is free, as far as is known: where the kernel does not
    /// say, an attempt tells.
    pub fn has_superpage(&mut self) -> bool {
        self.count();
        (self.superpages > 0 || self.reader.is_none()) && self.refused.may_try(now_ms())
    }

    /// Whether folios below a superpage can be counted on.
    pub fn has_small(&mut self) -> bool {
        self.count();
        Level::plentiful(&self.free).is_some()
    }

    /// Whether a program could use up the free superpages before the pager looks
    /// again; `before` is what this said last.
    pub fn are_scarce(&mut self, before: bool) -> bool {
        self.count();
        self.reader.is_some() && pressure::scarce(self.free_superpages(), before)
    }

    /// What is free in superpages.
    pub fn free_superpages(&self) -> Bytes {
        Bytes(self.superpages * Level::SUPERPAGE.bytes().0)
    }

    /// Blocks were freed: what was counted is not true any more.
    pub fn forget(&mut self) {
        self.next_count_ms = 0;
    }

    fn count(&mut self) {
        let now = now_ms();
        if now < self.next_count_ms {
            return;
        }
        self.next_count_ms = now + COUNT_MS;
        let counted = self.reader.as_mut().and_then(|r| r.count().ok());
        self.free = counted.unwrap_or_default();
        let order = Level::SUPERPAGE.order();
        let large = self.free.iter().enumerate().skip(order);
        self.superpages = large.map(|(n, count)| count << (n - order)).sum();
    }
}
