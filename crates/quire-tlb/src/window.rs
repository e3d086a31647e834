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
use crate::tracer::{SIGTRAP, Tracer};

/// How long a system call may block before its thread is left in it.
const BLOCKS: Duration = Duration::from_millis(20);
/// Steps after which signals and progress are looked after.
const ROUND: u64 = 256;
/// Single steps for each instruction of a window, on average, after which it
/// ends: rounds of string instructions are steps, but no instructions.
const STEPS_PER_INSTRUCTION: u64 = 4;

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
    executed: u64,
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
        self.executed += u64::from(is_new);
        self.undecoded += u64::from(decoded.is_none());
        if is_new && self.executed == self.warm_up {
            self.models.base.take_counts();
            self.models.real.take_counts();
            self.undecoded = 0;
        }
    }

    /// What was counted, where the window went beyond its warm-up.
    fn finish(&mut self) -> Option<Window> {
        let (base, real) = (
            self.models.base.take_counts(),
            self.models.real.take_counts(),
        );
        let instructions = self.executed.checked_sub(self.warm_up).filter(|n| *n > 0)?;
        Some(Window {
            instructions,
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

impl Tracer<'_> {
    /// Lets a thread execute a window. `None` where it did not get beyond the
    /// warm-up.
    pub(crate) fn window(&mut self, tid: u32) -> io::Result<Option<Window>> {
        if !self.stop(tid)? {
            return Ok(None);
        }
        let table = self
            .page_table
            .take()
            .map_or_else(|| PageTable::of(self.pid), Ok);
        let Ok(mut table) = table else {
            // The process is ending.
            let _ = ptrace::resume(tid, Resume::Run, 0);
            return Ok(None);
        };
        table.forget();
        let models = self
            .threads
            .get_mut(&tid)
            .and_then(|thread| thread.models.take());
        let mut feed = Feed {
            models: models.unwrap_or_else(|| Box::new(Models::new(self.geometry))),
            stream: Stream::default(),
            warm_up: self.plan.warm_up,
            executed: 0,
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
        let most = self.plan.window.saturating_mul(STEPS_PER_INSTRUCTION);
        let mut signal = 0;
        let mut steps = 0;
        while feed.executed < self.plan.window && steps < most {
            steps += 1;
            if steps % ROUND == 0 {
                self.host.progress(self.sampling.taken(), feed.executed);
                while let Some(arrived) = self.signals.wait_for(Duration::ZERO)? {
                    self.host.arrived(arrived);
                }
            }
            match self.step(tid, &mut signal)? {
                Step::Executed(ip, decoded) => feed.instruction(ip, decoded.as_ref(), table),
                Step::Nothing => {}
                Step::Lost => return Ok(true),
            }
        }
        let _ = ptrace::resume(tid, Resume::Run, signal);
        Ok(false)
    }

    /// Lets a stopped thread execute one instruction. A signal that came in
    /// the step before is given to it, and the one that comes now is noted.
    fn step(&mut self, tid: u32, signal: &mut i32) -> io::Result<Step> {
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
        let given = std::mem::take(signal);
        if ptrace::resume(tid, Resume::Step, given).is_err() {
            return Ok(Step::Lost);
        }
        let blocks = decoded
            .as_ref()
            .is_none_or(|decoded| decoded.is_system_call);
        Ok(match self.step_ends(tid, blocks)? {
            // A handler begins with a stop of its own.
            Some(0) if given != 0 => Step::Nothing,
            Some(0) => {
                if let Some(at) = decoded.as_ref().and_then(|decoded| decoded.saves_flags_at) {
                    let _ = ptrace::clear_saved_trap_flag(tid, at);
                }
                Step::Executed(registers.ip, decoded)
            }
            Some(next) => {
                *signal = next;
                Step::Nothing
            }
            None => Step::Lost,
        })
    }

    /// Waits for the end of a step: zero when the instruction was executed,
    /// the signal that came before it, or nothing when the thread is lost.
    fn step_ends(&mut self, tid: u32, blocks: bool) -> io::Result<Option<i32>> {
        let may_leave = blocks && !self.plan.is_whole();
        let end = Instant::now() + BLOCKS;
        loop {
            let Some((who, event)) = ptrace::wait(!blocks)? else {
                let left = end.saturating_duration_since(Instant::now());
                if may_leave && left.is_zero() {
                    if let Some(thread) = self.threads.get_mut(&tid) {
                        thread.is_left = true;
                    }
                    return Ok(None);
                }
                self.rest(if may_leave { left } else { BLOCKS })?;
                continue;
            };
            if who != tid {
                self.answer(who, event);
                if self.ended.is_some() {
                    return Ok(None);
                }
                continue;
            }
            match event {
                Event::Signal(SIGTRAP) if ptrace::is_step(tid).unwrap_or(true) => {
                    return Ok(Some(0));
                }
                Event::Signal(signal) => return Ok(Some(signal)),
                Event::Stopped | Event::Cloned(_) => {
                    let _ = ptrace::resume(tid, Resume::Step, 0);
                }
                Event::Group(_) | Event::Executed | Event::Ended(_) => {
                    self.answer(tid, event);
                    return Ok(None);
                }
            }
        }
    }
}
