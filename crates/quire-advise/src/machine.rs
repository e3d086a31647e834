//! Whether the machine has room for superpages now: free blocks, memory that is available, the limit of the
//! control group, and pressure. What is read is kept for a moment, as many extents ask.

use std::time::Duration;

use quire_core::pressure::{self, MemoryState};
use quire_core::units::Bytes;
use quire_linux::sysinfo::thp::{self, Setting};
use quire_linux::sysinfo::{FreeBlocks, MemoryGroup, max_map_count, meminfo, psi_memory};

/// For how long an answer holds.
const HOLDS: Duration = Duration::from_millis(100);
/// The same for settings.
const SETTINGS_HOLD: Duration = Duration::from_secs(10);
/// Tasks wait for memory so much of the time when it is short, in percent.
const STALLED: f64 = 10.0;
/// Of the blocks of the buddy allocator, those of a superpage and more.
const SUPERPAGE_ORDER: usize = 9;
/// So many free blocks of a superpage are left to others.
const LEAST_BLOCKS: u64 = 16;

/// What was read of the machine.
#[derive(Debug, Default)]
pub struct Machine {
    blocks: Option<FreeBlocks>,
    group: Option<MemoryGroup>,
    read_at: Option<Duration>,
    settings_at: Option<Duration>,
    has_room: bool,
    is_short: bool,
    setting: Setting,
    small_folios: bool,
    most_mappings: u64,
}

impl Machine {
    /// A machine of which nothing has been read yet.
    #[must_use]
    pub fn new() -> Machine {
        Machine {
            blocks: FreeBlocks::new().ok(),
            group: MemoryGroup::of_self(),
            ..Machine::default()
        }
    }

    /// A machine that always has room, for tests.
    #[cfg(test)]
    pub fn roomy(setting: Setting) -> Machine {
        Machine {
            small_folios: true,
            read_at: Some(Duration::MAX),
            settings_at: Some(Duration::MAX),
            has_room: true,
            setting,
            most_mappings: 65_530,
            ..Machine::default()
        }
    }

    /// Whether superpages may be made at a first touch, at the time `now` of any clock that never goes back: where no
    /// block is free, the kernel would compact memory there, and the program would wait.
    pub fn has_room(&mut self, now: Duration) -> bool {
        self.read(now);
        self.has_room
    }

    /// Whether superpages may be made by copies: there the kernel may compact, as nobody waits but who copies.
    pub fn has_memory(&mut self, now: Duration) -> bool {
        self.read(now);
        !self.is_short
    }

    fn read(&mut self, now: Duration) {
        let is_new = |at: Duration| now < at.saturating_add(HOLDS);
        if !self.read_at.is_some_and(is_new) {
            self.read_at = Some(now);
            self.is_short = self.is_memory_short();
            self.has_room = !self.is_short && self.free_superpages() > LEAST_BLOCKS;
        }
    }

    /// Who has superpages at the first touch.
    pub fn setting(&mut self, now: Duration) -> Setting {
        self.read_settings(now);
        self.setting
    }

    /// Whether advice gives regions that are smaller than a superpage folios of several pages.
    pub fn small_folios(&mut self, now: Duration) -> bool {
        self.read_settings(now);
        self.small_folios
    }

    /// How many mappings a process may have.
    pub fn most_mappings(&mut self, now: Duration) -> u64 {
        self.read_settings(now);
        self.most_mappings
    }

    fn read_settings(&mut self, now: Duration) {
        if self
            .settings_at
            .is_none_or(|at| now >= at.saturating_add(SETTINGS_HOLD))
        {
            self.settings_at = Some(now);
            self.setting = thp::setting().unwrap_or(Setting::Never);
            self.small_folios = thp::small_folios_advised();
            self.most_mappings = max_map_count();
        }
    }

    /// Where the kernel does not say, there are some.
    fn free_superpages(&mut self) -> u64 {
        let count = self.blocks.as_mut().and_then(|blocks| blocks.count().ok());
        count.map_or(u64::MAX, |orders| {
            let large = orders.iter().enumerate().skip(SUPERPAGE_ORDER);
            let superpages = large.map(|(order, count)| count << (order - SUPERPAGE_ORDER).min(30));
            superpages.sum()
        })
    }

    fn is_memory_short(&self) -> bool {
        if psi_memory().is_ok_and(|psi| psi.some.avg10 >= STALLED) {
            return true;
        }
        let Ok(memory) = meminfo() else { return false };
        let room = self.group.as_ref().and_then(MemoryGroup::room);
        let state = MemoryState {
            total: memory.total,
            available: memory.available,
            free: memory.free,
            group_headroom: room.map(|room| room.headroom),
            group_limit: room.map(|room| room.limit),
            stalled: false,
        };
        pressure::advise(&state, Bytes::ZERO, None).missing > Bytes::ZERO
    }
}
