//! What stands behind an object of a server: its pager at work.
//!
//! The scheduler asks for pages and gives pages back, and never waits; the pager answers
//! when it can, from whatever thread. [`Behind`] is what is between them, for one object:
//! [`saves`] knows what is not safe yet and who waits for that, [`gate`] holds back grants
//! of pages that the pager wants to be asked about, [`held`] those requests that a pager is too
//! slow for, [`resident`] knows which contents could go from memory, and [`bell`] wakes the event
//! loop when a pager has said something.

use std::time::{Duration, Instant};

use quire_core::dsm::message::{Access, KernelId, PageNumber, Pages, ToKernel};
use quire_core::units::Bytes;

use self::bell::{Bell, Clapper};
use self::gate::{Gate, Permission};
use self::held::{Burden, Held};
use self::resident::Resident;
use self::saves::{Outcome, Save, Saves};
use super::core::PeerId;
use crate::pager::{Backed, Backing, Event, Pager};
use crate::wire::Contents;
use crate::wire::control::{self, RequestId};

pub mod bell;
pub mod gate;
pub mod held;
pub mod resident;
pub mod saves;

/// What a pager could not keep is tried again after this time.
const RETRY: Duration = Duration::from_secs(5);

/// Who asked, and which question's answer it waits for.
pub type Asker = (PeerId, RequestId);

/// What a pager has said that the scheduler has to do with.
pub enum Heard {
    /// What pages hold that it was asked for, or nothing where that is lost.
    Loaded(Pages, Option<Vec<Option<Contents>>>),
    /// It wants pages back; [`Behind::flushed`] says when that is done.
    WantsBack(Pages),
}

/// The pager of one object at work.
pub struct Behind {
    backing: Backing,
    clapper: Clapper,
    saves: Saves<Asker>,
    gate: Gate,
    resident: Resident,
    name: String,
    page_size: Bytes,
    held: Held,
    /// When more than this is not safe, it is asked for nothing.
    most_unsafe: Bytes,
    /// When what failed is tried again.
    retry_at: Option<Instant>,
}

impl Behind {
    /// Puts a pager to work. What it does not answer within `patience` counts as an error. While
    /// more than `most_unsafe` has been given back and is on its way to it, it is asked for nothing:
    /// who needs more pages waits, so that memory does not fill with what others write faster than
    /// it can be kept.
    pub fn new(
        pager: Box<dyn Pager>,
        object: &control::Object,
        bell: &Bell,
        (patience, most_unsafe): (Duration, Bytes),
    ) -> Behind {
        let (clapper, wake) = Clapper::new(bell.clone(), object.name.clone());
        let backed = Backed {
            name: object.name.plain().to_string(),
            size: object.size,
            page_size: object.page_size.bytes(),
        };
        Behind {
            backing: Backing::new(pager, backed, wake, patience),
            clapper,
            saves: Saves::default(),
            gate: Gate::default(),
            resident: Resident::default(),
            name: object.name.plain().to_string(),
            page_size: object.page_size.bytes(),
            held: Held::default(),
            most_unsafe,
            retry_at: None,
        }
    }

    /// Has the pager be asked for pages. [`Behind::events`] does that, and brings them.
    pub fn load(&mut self, pages: Pages) {
        self.held.add(pages);
    }

    /// More than this must not be on its way to the pager, from now on.
    pub fn set_most_unsafe(&mut self, most: Bytes) {
        self.most_unsafe = most;
    }

    /// Asks for what is needed, as long as the pager keeps up. One that cannot keep what it was
    /// given is asked all the same: what it has may be read.
    fn load_on(&mut self, now: Instant) {
        let Behind {
            backing, clapper, ..
        } = self;
        let burden = match self.saves.failed() {
            0 => Burden {
                has: self.saves.count() as u64,
                most: self.most_unsafe.0 / self.page_size.0,
            },
            _ => Burden {
                has: 0,
                most: u64::MAX,
            },
        };
        while let Some(pages) = self.held.next(now, burden) {
            // Whoever gets them may come to write to them.
            clapper.quietly(|| backing.load(pages, Access::Write, now));
        }
    }

    /// A page was given back; `is_foreign` where it is translated for the pager.
    pub fn given_back(&mut self, page: PageNumber, is_foreign: bool) {
        self.resident.given_back(page, is_foreign);
    }

    /// Pages were given back: what they hold, as the pager gets it.
    pub fn save(&mut self, pages: Pages, data: Vec<Option<Contents>>) {
        self.held.settled(pages);
        let saves = self.saves.given(pages, data);
        self.hand_over(saves);
    }

    fn hand_over(&mut self, saves: Vec<Save>) {
        let Behind {
            backing, clapper, ..
        } = self;
        for (pages, data) in saves {
            clapper.quietly(|| backing.save(pages, data, Instant::now()));
        }
    }

    /// Somebody wants to be told when all that was given back before is safe. What could
    /// not be kept is tried again for that.
    pub fn sync(&mut self, asker: Asker) {
        self.saves.wait(asker);
        let again = self.saves.retry();
        self.hand_over(again);
    }

    /// A message is on its way to a kernel.
    pub fn tell(
        &mut self,
        kernel: KernelId,
        message: ToKernel<Contents>,
        tell: &mut dyn FnMut(KernelId, ToKernel<Contents>),
    ) {
        let Behind {
            backing,
            clapper,
            gate,
            held,
            ..
        } = self;
        if let Some(pages) = not_written(&message) {
            held.settled(pages);
        }
        let permission = |pages| match backing.attributes() {
            Some(promised) if !promised.may_write => Permission::Never,
            _ if backing.is_locked(pages) => Permission::Locked,
            _ => Permission::Granted,
        };
        for pages in gate.pass(kernel, message, permission, tell) {
            clapper.quietly(|| backing.unlock(pages, Instant::now()));
        }
    }

    /// A kernel is gone.
    pub fn forget(&mut self, kernel: KernelId) {
        self.gate.forget(kernel);
    }

    /// Whether the pager takes nothing back, as far as it has said.
    pub fn is_read_only(&self) -> bool {
        let promised = self.backing.attributes();
        promised.is_some_and(|promised| !promised.may_write)
    }

    /// What the pager has said. What concerns nobody else is done here.
    pub fn events(
        &mut self,
        now: Instant,
        tell: &mut dyn FnMut(KernelId, ToKernel<Contents>),
    ) -> Vec<Heard> {
        let mut heard = Vec::new();
        loop {
            self.load_on(now);
            let events = self.backing.events(now);
            if events.is_empty() {
                return heard;
            }
            for event in events {
                match event {
                    Event::Ready(_) => {}
                    Event::Loaded(pages, data) => {
                        self.came(pages, data.as_deref());
                        heard.push(Heard::Loaded(pages, data));
                    }
                    Event::Saved(pages, result) => self.saved(pages, &result, now),
                    Event::Unlocked(pages, result) => {
                        self.gate.unlocked(pages, result.is_ok(), tell);
                    }
                    Event::WantsBack(pages) => heard.push(Heard::WantsBack(pages)),
                }
            }
        }
    }

    /// Contents came from the pager. Zeros take no memory.
    fn came(&mut self, pages: Pages, data: Option<&[Option<Contents>]>) {
        let came = pages.iter().zip(data.unwrap_or_default());
        for (page, _) in came.filter(|(_, contents)| contents.is_some()) {
            self.resident.add(page);
        }
    }

    fn saved(&mut self, pages: Pages, result: &Result<(), String>, now: Instant) {
        let failed_before = self.saves.failed();
        let next = self.saves.answered(pages, result);
        self.hand_over(next);
        for page in pages.iter().filter(|page| self.saves.is_safe(*page)) {
            self.resident.add(page);
        }
        match (failed_before, self.saves.failed(), result) {
            (0, 1.., Err(why)) => {
                self.retry_at = Some(now + RETRY);
                tracing::warn!(
                    "{}: what was given back from page {} on could not be kept: {why}; it is \
                     in memory only, and tried again",
                    self.name,
                    pages.first.0
                );
            }
            (1.., 0, Ok(())) => tracing::warn!("{}: all pages could be kept", self.name),
            _ => {}
        }
    }

    /// Kernels have given back what the pager wanted.
    pub fn flushed(&mut self, pages: Pages) {
        let Behind {
            backing, clapper, ..
        } = self;
        clapper.quietly(|| backing.flushed(pages));
    }

    /// Whether something is on its way to the pager, or waits for that.
    pub fn is_giving_back(&self) -> bool {
        self.saves.is_under_way()
    }

    /// How many pages that were given back are not safe, and why, where the pager could not
    /// keep them.
    pub fn left(&self) -> (usize, Option<&str>) {
        self.saves.left()
    }

    /// Whether the pager has a page that it was given and has not answered for.
    pub fn is_saving(&self, page: PageNumber) -> bool {
        self.saves.is_with_pager(page)
    }

    /// Whether the pager has the latest contents of a page that were given back.
    pub fn is_safe(&self, page: PageNumber) -> bool {
        self.saves.is_safe(page)
    }

    /// Does what is due by now.
    pub fn pass(&mut self, now: Instant) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = (self.saves.failed() > 0).then(|| now + RETRY);
            let again = self.saves.retry();
            self.hand_over(again);
        }
    }

    /// Who has waited long enough, and how that ended: with a page that could not be kept,
    /// and why.
    pub fn ended(&mut self) -> Vec<(Asker, Outcome)> {
        self.saves.ended()
    }

    /// Who waits still.
    pub fn dismiss(&mut self) -> Vec<Asker> {
        self.saves.dismiss()
    }

    /// Whether there is something for which [`Behind::events`] and [`Behind::pass`] have to
    /// be asked now and then, if the pager says nothing.
    pub fn is_busy(&self) -> bool {
        !self.saves.is_idle() || self.backing.is_waited_for() || self.held.is_waiting()
    }

    /// Whether somebody waits for the pager to keep up.
    pub fn is_too_slow(&self) -> bool {
        self.held.is_waiting()
    }

    /// How much of the object is in memory and could go, as the pager has the same.
    pub fn resident(&self) -> Bytes {
        let promised = self.backing.attributes();
        match promised.is_some_and(|promised| promised.keeps) {
            true => Bytes(self.resident.len() as u64 * self.page_size.0),
            false => Bytes::ZERO,
        }
    }

    /// Has pages go from memory, about so much of them; `release` says whether one went.
    pub fn make_room(&mut self, wanted: Bytes, mut release: impl FnMut(PageNumber) -> bool) {
        let mut left = wanted.0.div_ceil(self.page_size.0);
        for _ in 0..self.resident.len() {
            if left == 0 {
                return;
            }
            let Some(page) = self.resident.take_oldest() else {
                return;
            };
            // One that is not safe is known again when it is.
            if !self.saves.is_safe(page) {
                continue;
            }
            match release(page) {
                true => left -= 1,
                false => self.resident.add(page),
            }
        }
    }

    /// Ends without waiting for the pager: another thread does, where there is one to be had.
    pub fn end(self) {
        let end = move || drop(self);
        let thread = std::thread::Builder::new().name("quire-pager-end".to_owned());
        if let Err(error) = thread.spawn(end) {
            tracing::warn!("a pager was ended in the event loop: {error}");
        }
    }
}

/// The pages that a message gives to a kernel that may not write to them.
fn not_written(message: &ToKernel<Contents>) -> Option<Pages> {
    match message {
        ToKernel::DataProvided {
            pages,
            access: Access::Read,
            ..
        }
        | ToKernel::DataError { pages } => Some(*pages),
        _ => None,
    }
}
