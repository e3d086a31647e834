//! A window: one thread executes instruction by instruction, and what it uses
//! is fed to the models.

use std::io;
use std::time::{Duration, Instant};

use quire_core::tlb::{Access, Counts, Geometry, PageSize, Tlb};
use quire_core::units::VirtAddr;
use quire_linux::ptrace::{self, Event, Resume, VectorRegisters};

use crate::decode::{Decoded, LONGEST};
use crate::pages::PageTable;
use crate::stream::Stream;
use crate::tracer::{Tracer, ignores};

/// The signal that single steps end with.
const SIGTRAP: i32 = 5;
/// It, in a mask of signals.
const TRAP_BIT: u64 = 1 << (SIGTRAP - 1);
/// How long a system call may block before its thread is left in it.
const BLOCKS: Duration = Duration::from_millis(20);
/// Steps after which signals and progress are looked after.
const ROUND: u64 = 256;
/// What a window counted after its warm-up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    /// Instructions.
    pub instructions: u64,
    /// Of these, those that could not be decoded. They are not in the counts.
    pub undecoded: u64,
    /// Data and code with base pages only.
    pub base: (Counts, Counts),
    /// Data and code with the pages that the process has.
    pub real: (Counts, Counts),
}

/// The two models that a thread's windows are fed to.
#[derive(Debug)]
pub(crate) struct Models {
    base: Tlb,
    real: Tlb,
}

impl Models {
    /// Begins a window: what the thread did since the last one is not known.
    fn begin(&mut self) {
        self.base.begin_window();
        self.real.begin_window();
    }

    pub(crate) fn new(geometry: &Geometry) -> Models {
        Models {
            base: Tlb::new(geometry),
            real: Tlb::new(geometry),
        }
    }
}

/// What is fed in a window.
struct Feed {
    models: Box<Models>,
    stream: Stream,
    warm_up: u64,
    /// Steps so far: instructions, and further rounds of string instructions.
    executed: u64,
    instructions: u64,
    undecoded: u64,
}

impl Feed {
    /// Feeds one instruction.
    fn instruction(&mut self, ip: VirtAddr, decoded: Option<&Decoded>, table: &mut PageTable) {
        let models = &mut self.models;
        let is_new = match decoded {
            Some(decoded) => self.stream.feed(ip, decoded, |addr, kind| {
                let access = |size| Access { addr, kind, size };
                models.base.access(access(PageSize::Base));
                models.real.access(access(table.size_at(addr)));
            }),
            None => true,
        };
        self.executed += 1;
        self.instructions += u64::from(is_new);
        self.undecoded += u64::from(decoded.is_none());
        if self.executed == self.warm_up {
            self.models.base.take_counts();
            self.models.real.take_counts();
            (self.instructions, self.undecoded) = (0, 0);
        }
    }

    /// What was counted, where the window went beyond its warm-up.
    fn finish(&mut self) -> Option<Window> {
        let (base, real) = (
            self.models.base.take_counts(),
            self.models.real.take_counts(),
        );
        (self.executed > self.warm_up).then_some(Window {
            instructions: self.instructions,
            undecoded: self.undecoded,
            base,
            real,
        })
    }
}

/// What became of one step.
enum Step {
    /// The instruction was executed.
    Executed(VirtAddr, Option<Decoded>),
    /// A signal came before it.
    Nothing,
    /// The thread is not in our hands any more: it blocks, stays stopped, is
    /// over, or executes another program.
    Lost,
}

/// What the thread in a window needs for its next step.
#[derive(Default)]
struct Stepping {
    /// The signal that came in the step before and is given to it now.
    signal: i32,
    /// The signals that it blocks; nothing where that may have changed.
    mask: Option<u64>,
}

impl Tracer<'_> {
    /// Lets a thread execute a window. `None` where it did not get beyond the
    /// warm-up, or cannot be stepped.
    pub(crate) fn window(&mut self, tid: u32) -> io::Result<Option<Window>> {
        // The kernel ends each step with a SIGTRAP. Where that is ignored, it
        // would make the kernel forget so.
        if ignores(self.pid, SIGTRAP) || !self.stop(tid)? {
            return Ok(None);
        }
        let table = self.page_table.take();
        let Ok(mut table) = table.map_or_else(|| PageTable::of(self.pid), Ok) else {
            // The process is ending.
            let _ = ptrace::resume(tid, Resume::Run, 0);
            return Ok(None);
        };
        table.forget();
        let models = self
            .threads
            .get_mut(&tid)
            .and_then(|thread| thread.models.take());
        let mut models = models.unwrap_or_else(|| Box::new(Models::new(self.geometry)));
        models.begin();
        let mut feed = Feed {
            models,
            stream: Stream::default(),
            warm_up: self.plan.warm_up,
            executed: 0,
            instructions: 0,
            undecoded: 0,
        };
        let is_lost = self.steps(tid, &mut feed, &mut table)?;
        if !is_lost {
            self.page_table = Some(table);
        }
        let window = feed.finish();
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.models = Some(feed.models);
        }
        Ok(window)
    }

    /// Steps to the end of the window, and lets the thread run on then. Says
    /// whether it was lost before.
    fn steps(&mut self, tid: u32, feed: &mut Feed, table: &mut PageTable) -> io::Result<bool> {
        let mut stepping = Stepping::default();
        let mut steps = 0u64;
        while feed.executed < self.plan.window {
            steps += 1;
            if steps.is_multiple_of(ROUND) {
                self.host.progress(self.sampling.taken(), feed.executed);
                while let Some(arrived) = self.signals.wait_for(Duration::ZERO)? {
                    self.host.arrived(arrived);
                }
            }
            match self.step(tid, &mut stepping)? {
                Step::Executed(ip, decoded) => feed.instruction(ip, decoded.as_ref(), table),
                Step::Nothing => {}
                Step::Lost => return Ok(true),
            }
        }
        let _ = ptrace::resume(tid, Resume::Run, stepping.signal);
        Ok(false)
    }

    /// Lets a stopped thread execute one instruction.
    fn step(&mut self, tid: u32, stepping: &mut Stepping) -> io::Result<Step> {
        let Ok(registers) = ptrace::registers(tid) else {
            return Ok(Step::Lost);
        };
        let decoded = if registers.is_64_bit {
            let mut code = [0; LONGEST];
            let len = ptrace::read_memory(self.pid, registers.ip, &mut code);
            let vectors = || VectorRegisters::of(tid).ok();
            self.instructions.decode(&code[..len], &registers, vectors)
        } else {
            None
        };
        let is_call = decoded
            .as_ref()
            .is_some_and(|decoded| decoded.is_system_call);
        let given = stepping.signal;
        let ends = if is_call && given == 0 {
            stepping.mask = None;
            self.system_call(tid)?
        } else {
            self.instruction(tid, stepping)?
        };
        Ok(match ends {
            // A handler begins with a stop of its own.
            Some(0) if given != 0 => Step::Nothing,
            Some(0) => {
                if let Some(at) = decoded.as_ref().and_then(|decoded| decoded.saves_flags_at) {
                    let _ = ptrace::clear_saved_trap_flag(tid, at);
                }
                Step::Executed(registers.ip, decoded)
            }
            Some(signal) => {
                stepping.signal = signal;
                Step::Nothing
            }
            None => Step::Lost,
        })
    }

    /// Executes an instruction that is no system call, or begins the handler
    /// of a signal: zero when that is done, the signal that came before it, or
    /// nothing when the thread is lost.
    ///
    /// The kernel ends the step with a SIGTRAP that it forces upon the thread.
    /// Where the thread blocks it, as in its own handler, that would remove the
    /// handler; so it is not blocked for the length of the step.
    fn instruction(&mut self, tid: u32, stepping: &mut Stepping) -> io::Result<Option<i32>> {
        let given = std::mem::take(&mut stepping.signal);
        let known = stepping.mask.take();
        let Ok(mask) = known.map_or_else(|| ptrace::signal_mask(tid), Ok) else {
            return Ok(None);
        };
        let is_blocked = given == 0 && mask & TRAP_BIT != 0;
        if is_blocked {
            let _ = ptrace::set_signal_mask(tid, mask & !TRAP_BIT);
        }
        if ptrace::resume(tid, Resume::Step, given).is_err() {
            return Ok(None);
        }
        stepping.mask = (given == 0).then_some(mask);
        self.step_ends(tid, is_blocked.then_some(mask))
    }

    /// Waits for the end of a step. Then the thread blocks the signals of
    /// `mask` again, where one is given.
    fn step_ends(&mut self, tid: u32, mask: Option<u64>) -> io::Result<Option<i32>> {
        while self.ended.is_none() {
            let Some((who, event)) = ptrace::wait(true)? else {
                return Ok(None);
            };
            let ends = matches!(event, Event::Signal(_) | Event::Group(_));
            if let Some(mask) = mask.filter(|_| who == tid && ends) {
                let _ = ptrace::set_signal_mask(tid, mask);
            }
            match event {
                _ if who != tid => self.answer(who, event),
                Event::Signal(SIGTRAP) if ptrace::is_step(tid).unwrap_or(true) => {
                    return Ok(Some(0));
                }
                Event::Signal(signal) => return Ok(Some(signal)),
                Event::Stopped | Event::Cloned(_) | Event::SystemCall => {
                    let _ = ptrace::resume(tid, Resume::Step, 0);
                }
                Event::Group(_) | Event::Executed | Event::Ended(_) => {
                    self.answer(tid, event);
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    /// Executes a system call. The thread stops at its entry and at the return
    /// from it, and no SIGTRAP is forced upon it, because the call may be the
    /// one that blocks it. A call that blocks for long loses the thread.
    fn system_call(&mut self, tid: u32) -> io::Result<Option<i32>> {
        let mut stops = 0;
        let end = Instant::now() + BLOCKS;
        let _ = ptrace::resume(tid, Resume::ToSystemCall, 0);
        while self.ended.is_none() {
            let Some((who, event)) = ptrace::wait(false)? else {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() && !self.plan.is_whole() {
                    return Ok(None);
                }
                self.rest(if left.is_zero() { BLOCKS } else { left })?;
                continue;
            };
            match event {
                _ if who != tid => self.answer(who, event),
                Event::SystemCall if stops == 1 => return Ok(Some(0)),
                Event::SystemCall | Event::Stopped | Event::Cloned(_) => {
                    stops += u32::from(event == Event::SystemCall);
                    let _ = ptrace::resume(tid, Resume::ToSystemCall, 0);
                }
                Event::Signal(signal) => return Ok(Some(signal)),
                Event::Group(_) | Event::Executed | Event::Ended(_) => {
                    self.answer(tid, event);
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }
}
