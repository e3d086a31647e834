//! The helper: the one thread of this library. It looks, advises and copies (`quire-advise`), keeps the statistics
//! page, and answers who asks for changes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use quire_advise::machine::Machine;
use quire_advise::own::{OwnProcess, has_known_sizes};
use quire_advise::process::{Areas, Process};
use quire_advise::{Advisor, Clock};
use quire_core::config::Policy;
use quire_core::control::{Change, DONE};
use quire_core::stat::{Note, Privilege, RegionKind, StatPage};
use quire_core::units::{AddrRange, Bytes, PageCount, Slot};
use quire_linux::control::ControlSocket;
use quire_linux::raw::Result;
use quire_linux::sysinfo::process::{self, disable_huge_pages};
use quire_linux::{futex, lone_thread, stat_map, thread};

use crate::state::State;
use crate::{beside, growth, own_memory, settings, shared};

/// A pause longer than this is sleep from which a growing process wakes the helper.
const LONG: Duration = Duration::from_millis(2);
/// How often the process itself is looked at: whether it has changed its user, or has ended but for this thread.
const SELF_APART: Duration = Duration::from_secs(1);
/// Where there is no session, counts go here.
static PRIVATE_PAGE: StatPage = StatPage::new();

/// Starts it.
///
/// # Errors
/// As `clone`.
pub fn start(state: &'static State) -> Result<()> {
    let argument = std::ptr::from_ref(state) as usize;
    // SAFETY: the helper allocates from its own memory only, and the state stays where it is.
    unsafe {
        state
            .helper
            .start(main, argument, lone_thread::locals_reach())
    }
}

extern "C" fn main(state: usize) {
    // SAFETY: `start` gave the address of the state, which lives as long as the process.
    let state = unsafe { &*(state as *const State) };
    // With the program's descriptors it would keep files open that the program closes.
    if lone_thread::leave_descriptors().is_err() {
        return;
    }
    lone_thread::set_name(c"quire-advise");
    own_memory::begin(state);
    if rustix::process::geteuid().is_root() {
        // Should the program change its user, this thread is none that still has the old one's rights.
        let _ = lone_thread::leave_capabilities();
    }
    if let Some(mut helper) = Helper::new() {
        helper.run(state);
    }
}

/// Makes the statistics page of this process, and says on it whose it is.
fn make_page(pid: u32) -> Option<&'static StatPage> {
    let create = match beside::provides() {
        true => stat_map::create_beside,
        false => stat_map::create,
    };
    let page = create(settings::session()?, pid).ok()?;
    let identity = process::own_identity();
    page.identify(pid, identity.start_time, &identity.comm, settings::policy());
    page.set_privilege(Privilege::Advised);
    Some(page)
}

/// Shows a process that has objects of servers as its shared memory, however small it is: `quire stat` finds such
/// by their pages. To be called when the library starts, while there is no helper.
pub fn show_with_objects() {
    if settings::has_objects() {
        let _ = make_page(thread::process_id());
    }
}

/// This thread's clocks.
struct OwnClock;

impl Clock for OwnClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(thread::now_ns())
    }

    fn used(&self) -> Duration {
        Duration::from_nanos(thread::cpu_time_ns())
    }
}

/// This process, for which it is noted what was advised.
struct Noting {
    own: OwnProcess,
    /// How often the program had said that it wants no superpages somewhere, before the kernel was last asked.
    forbidden: usize,
}

impl Process for Noting {
    fn areas(&mut self, found: &mut Areas) -> Result<()> {
        self.own.areas(found)?;
        beside::leave_managed(&mut found.areas);
        Ok(())
    }

    fn populated(
        &mut self,
        range: AddrRange,
        found: &mut dyn FnMut(AddrRange, bool),
    ) -> Result<()> {
        self.own.populated(range, found)
    }

    fn existing(&mut self, range: AddrRange, found: &mut dyn FnMut(AddrRange, bool)) -> Result<()> {
        let AddrRange { mut start, end } = range;
        while start < end {
            let served = shared::served(start).filter(|served| served.start < end);
            let served = served.unwrap_or(AddrRange { start: end, end });
            let before = AddrRange {
                start,
                end: served.start,
            };
            if !before.is_empty() {
                self.own.populated(before, found)?;
            }
            let served = served.intersect(range);
            if !served.is_empty() {
                self.own.existing(served, found)?;
            }
            start = served.end.max(before.end);
        }
        Ok(())
    }

    fn tells_superpages(&self) -> bool {
        self.own.tells_superpages()
    }

    fn superpages(&mut self, found: &mut dyn FnMut(AddrRange, Bytes)) -> Result<()> {
        self.own.superpages(found)
    }

    fn shared(&mut self, slot: Slot) -> Result<PageCount> {
        self.own.shared(slot)
    }

    fn may_have(&mut self, range: AddrRange) -> bool {
        // Before Linux 6.1 the kernel does not say whether the program wants none.
        let nowhere = self.forbids_nowhere();
        match self.own.collapses() {
            true => self.own.may_have(range),
            false => nowhere,
        }
    }

    fn forbids_nowhere(&mut self) -> bool {
        self.forbidden = growth::forbidden();
        self.forbidden == 0
    }

    fn advise(&mut self, range: AddrRange) -> Result<()> {
        // First: whoever moves the memory must know of every border that advice makes.
        growth::note_advised(range.start, range.end);
        let advised = self.own.advise(range);
        // The program's own advice stands, also where it came in between.
        for part in growth::forbidden_since(self.forbidden, range) {
            self.own.forbid(part)?;
        }
        advised
    }

    fn collapse(&mut self, slot: Slot, kind: RegionKind) -> Result<()> {
        self.own.collapse(slot, kind)
    }
}

/// The thread at work.
struct Helper {
    advisor: Advisor<Noting, OwnClock>,
    control: Option<ControlSocket>,
    user: u32,
    self_at: Duration,
}

impl Helper {
    fn new() -> Option<Helper> {
        let pid = thread::process_id();
        let stats = make_page(pid).unwrap_or(&PRIVATE_PAGE);
        let Some(own) = OwnProcess::open().ok().filter(|_| has_known_sizes()) else {
            stats.note(Note::NoPageTable);
            return None;
        };
        if process::huge_pages_disabled() {
            stats.note(Note::HugePagesDisabled);
        }
        if !own.collapses() {
            stats.note(Note::NoCollapse);
        }
        // Who provides memory answers, too.
        let control = settings::session().filter(|_| !beside::provides());
        let control = control.and_then(|session| ControlSocket::bind(session, pid).ok());
        let (policy, share) = (settings::policy(), settings::share());
        let own = Noting { own, forbidden: 0 };
        let machine = Machine::new();
        Some(Helper {
            advisor: Advisor::new(own, OwnClock, machine, stats, policy, share),
            control,
            user: rustix::process::geteuid().as_raw(),
            self_at: OwnClock.now() + SELF_APART,
        })
    }

    fn run(&mut self, state: &State) {
        while !growth::ends(state) {
            let call = state.call.load(Ordering::Acquire);
            let Ok(pause) = self.advisor.turn() else {
                return;
            };
            if self.is_over() {
                return;
            }
            self.answer();
            if pause >= LONG {
                // What was noted long ago is forgotten, so that growing anew is noticed.
                state
                    .seen
                    .iter()
                    .for_each(|s| s.store(0, Ordering::Relaxed));
                let may_be_woken = self.advisor.may_hurry();
                state.sleeps.store(may_be_woken, Ordering::Relaxed);
            }
            futex::wait_for(&state.call, call, pause);
            state.sleeps.store(false, Ordering::Relaxed);
            if state.call.load(Ordering::Acquire) != call {
                self.advisor.hurry();
            }
        }
    }

    /// Whether the process has another user now, or has no thread but this one.
    fn is_over(&mut self) -> bool {
        let now = OwnClock.now();
        if now < self.self_at {
            return false;
        }
        self.self_at = now + SELF_APART;
        process::leader().is_some_and(|leader| {
            leader.user != self.user || (leader.has_ended && leader.threads <= 2)
        })
    }

    fn answer(&mut self) {
        while let Some(request) = self.control.as_ref().and_then(ControlSocket::next) {
            let answer = match request.line.parse::<Change>() {
                Ok(change) => self.change(&change),
                Err(error) => error.to_string(),
            };
            if let Some(control) = &self.control {
                control.answer(&request, &answer);
            }
        }
    }

    /// Carries a change out, and says what came of it.
    fn change(&mut self, change: &Change) -> String {
        let asked = Change {
            policy: None,
            cpu: None,
            ..*change
        };
        if !asked.is_empty() {
            return "this process is only advised: policy and cpu can be changed; start it with \
                    `quire run --policy reserve` for the others"
                .to_owned();
        }
        if let Some(policy) = change.policy {
            if matches!(policy, Policy::Reserve | Policy::Static) {
                return format!(
                    "this process is only advised: start it with `quire run --policy {policy}`"
                );
            }
            disable_huge_pages(policy == Policy::Base);
            settings::set_policy(policy);
            self.advisor.set_policy(policy);
        }
        if let Some(share) = change.cpu {
            self.advisor.set_share(share);
        }
        DONE.to_owned()
    }
}
