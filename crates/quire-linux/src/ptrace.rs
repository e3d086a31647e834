//! Tracing another process: stopping its threads one by one, letting them
//! execute single instructions, and looking at their registers and memory.
//!
//! Threads are taken with `PTRACE_SEIZE`, so that stops by job control work as
//! without a tracer, and a thread can be stopped at any time.

use std::io;
use std::{mem, ptr};

use quire_core::units::VirtAddr;

use crate::arch::cpuid;
use crate::execution::Ended;

/// How a stopped thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// Freely.
    Run,
    /// For one instruction.
    Step,
    /// To the next entry into a system call, or the return from it.
    ToSystemCall,
}

/// What happened to a traced thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// It is over.
    Ended(Ended),
    /// It is about to be given a signal. It must be resumed with that signal
    /// for the program to see it.
    Signal(i32),
    /// It stopped by job control, and stays so until it is sent SIGCONT. It
    /// must be answered with [`listen`].
    Group(i32),
    /// It stopped because it was interrupted, has just been born, or its stop
    /// by job control ended.
    Stopped,
    /// It made the thread of this number, which is traced.
    Cloned(u32),
    /// It is about to enter a system call, or has returned from one.
    SystemCall,
    /// It executed another program; the process has one thread now.
    Executed,
}

/// The registers that addresses are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// The general registers by their number in instructions: rax, rcx, rdx,
    /// rbx, rsp, rbp, rsi, rdi, r8 to r15.
    pub general: [u64; 16],
    /// Where the next instruction is.
    pub ip: VirtAddr,
    /// The base of segment FS.
    pub fs_base: u64,
    /// The base of segment GS.
    pub gs_base: u64,
    /// Whether the thread is in 64-bit mode.
    pub is_64_bit: bool,
}

/// Makes a ptrace request that takes no pointers into this process.
fn request(number: libc::c_uint, tid: u32, addr: usize, data: usize) -> io::Result<()> {
    // SAFETY: the callers in this module pass only requests whose arguments
    // are numbers, or addresses in the traced process.
    let rc = unsafe { libc::ptrace(number, tid as libc::pid_t, addr, data) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Begins to trace a thread, and those that it will make. It runs on.
///
/// # Errors
/// `EPERM` where it is not allowed, `ESRCH` where the thread is gone.
pub fn seize(tid: u32) -> io::Result<()> {
    let options =
        libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD;
    request(libc::PTRACE_SEIZE, tid, 0, options as usize)
}

/// Asks a running thread to stop.
///
/// # Errors
/// `ESRCH` where it is gone.
pub fn interrupt(tid: u32) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Resumes a stopped thread, with a signal unless that is zero.
///
/// # Errors
/// `ESRCH` where it is gone or not stopped.
pub fn resume(tid: u32, how: Resume, signal: i32) -> io::Result<()> {
    let number = match how {
        Resume::Run => libc::PTRACE_CONT,
        Resume::Step => libc::PTRACE_SINGLESTEP,
        Resume::ToSystemCall => libc::PTRACE_SYSCALL,
    };
    request(number, tid, 0, signal as usize)
}

/// Lets a thread stay in a stop by job control until that ends.
///
/// # Errors
/// `ESRCH` where it is gone or not stopped.
pub fn listen(tid: u32) -> io::Result<()> {
    request(libc::PTRACE_LISTEN, tid, 0, 0)
}

/// Ends the tracing of a stopped thread, which goes on with a signal unless
/// that is zero.
///
/// # Errors
/// `ESRCH` where it is gone or not stopped.
pub fn detach(tid: u32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, signal as usize)
}

/// Whether the SIGTRAP that a stopped thread is about to be given comes from
/// [`Resume::Step`], and not from the program itself.
///
/// # Errors
/// `ESRCH` where the thread is gone.
pub fn is_step(tid: u32) -> io::Result<bool> {
    // After an instruction, after a system call that was not stopped at, and at
    // the first instruction of a signal handler.
    const TRAP_BRKPT: i32 = 1;
    const TRAP_TRACE: i32 = 2;
    // SAFETY: all-zero is a valid `siginfo_t`; the call overwrites it.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    // SAFETY: the request writes one `siginfo_t`, which lives for the call.
    let rc = unsafe {
        libc::ptrace(
            libc::PTRACE_GETSIGINFO,
            tid as libc::pid_t,
            0usize,
            &raw mut info,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(matches!(
        info.si_code,
        TRAP_BRKPT | TRAP_TRACE | libc::SIGTRAP
    ))
}

/// The signals that a stopped thread blocks, a bit for each: signal 1 is the
/// lowest.
///
/// # Errors
/// `ESRCH` where the thread is gone.
pub fn signal_mask(tid: u32) -> io::Result<u64> {
    let mut mask = 0u64;
    // SAFETY: the request writes a mask of the size that it is given, which
    // lives for the call.
    let rc = unsafe {
        libc::ptrace(
            libc::PTRACE_GETSIGMASK,
            tid as libc::pid_t,
            size_of::<u64>(),
            &raw mut mask,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(mask)
}

/// Sets the signals that a stopped thread blocks.
///
/// # Errors
/// `ESRCH` where the thread is gone.
pub fn set_signal_mask(tid: u32, mask: u64) -> io::Result<()> {
    // SAFETY: the request reads a mask of the size that it is given, which
    // lives for the call.
    let rc = unsafe {
        libc::ptrace(
            libc::PTRACE_SETSIGMASK,
            tid as libc::pid_t,
            size_of::<u64>(),
            &raw const mask,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The registers of a stopped thread.
///
/// # Errors
/// `ESRCH` where the thread is gone.
pub fn registers(tid: u32) -> io::Result<Registers> {
    const USER_CODE_64: u64 = 0x33;
    // SAFETY: all-zero is a valid value; the call overwrites it.
    let mut r: libc::user_regs_struct = unsafe { mem::zeroed() };
    // SAFETY: the request writes one such structure, which lives for the call.
    let rc = unsafe { libc::ptrace(libc::PTRACE_GETREGS, tid as libc::pid_t, 0usize, &raw mut r) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Registers {
        general: [
            r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11,
            r.r12, r.r13, r.r14, r.r15,
        ],
        ip: VirtAddr(r.rip),
        fs_base: r.fs_base,
        gs_base: r.gs_base,
        is_64_bit: r.cs == USER_CODE_64,
    })
}

/// The vector registers of a stopped thread, in the layout of `XSAVE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorRegisters(Vec<u8>);

impl VectorRegisters {
    /// Reads them.
    ///
    /// # Errors
    /// `ESRCH` where the thread is gone.
    pub fn of(tid: u32) -> io::Result<VectorRegisters> {
        const NT_X86_XSTATE: usize = 0x202;
        let mut area = vec![0u8; 16 << 10];
        let mut vector = libc::iovec {
            iov_base: area.as_mut_ptr().cast(),
            iov_len: area.len(),
        };
        // SAFETY: the request writes at most `iov_len` bytes to the area, and
        // to the vector itself; both live for the call.
        let rc = unsafe {
            libc::ptrace(
                libc::PTRACE_GETREGSET,
                tid as libc::pid_t,
                NT_X86_XSTATE,
                &raw mut vector,
            )
        };
        if rc < 0 {
            return Err(io::Error::last_os_error());
        }
        area.truncate(vector.iov_len);
        Ok(VectorRegisters(area))
    }

    /// Register `number` of 512 bits; what the machine does not have is zero.
    #[must_use]
    pub fn vector(&self, number: usize) -> [u8; 64] {
        const YMM_HIGH: u32 = 2;
        const ZMM_HIGH: u32 = 6;
        const ZMM_UPPER: u32 = 7;
        let mut all = [0; 64];
        if number >= 16 {
            self.copy(component(ZMM_UPPER), number - 16, &mut all);
        } else {
            self.copy(Some(160), number, &mut all[..16]);
            self.copy(component(YMM_HIGH), number, &mut all[16..32]);
            self.copy(component(ZMM_HIGH), number, &mut all[32..]);
        }
        all
    }

    /// Mask register `number`, k0 to k7.
    #[must_use]
    pub fn mask(&self, number: usize) -> u64 {
        const MASKS: u32 = 5;
        let mut bytes = [0; 8];
        self.copy(component(MASKS), number, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Copies the `index`-th piece of the size of `to` from a component.
    fn copy(&self, start: Option<usize>, index: usize, to: &mut [u8]) {
        let Some(start) = start else { return };
        let at = start + index * to.len();
        if let Some(from) = self.0.get(at..at + to.len()) {
            to.copy_from_slice(from);
        }
    }
}

/// Where a component of the `XSAVE` area begins, where the machine has it.
fn component(number: u32) -> Option<usize> {
    const XSAVE: u32 = 0xd;
    let [size, start, ..] = cpuid(XSAVE, number);
    (size != 0).then_some(start as usize)
}

/// Reads the memory of a process, as far as it is mapped without a gap, and
/// says how many bytes that were.
pub fn read_memory(pid: u32, from: VirtAddr, to: &mut [u8]) -> usize {
    if to.is_empty() {
        return 0;
    }
    // Split at the page boundary, because the kernel reads whole pieces only.
    let end = VirtAddr(from.0.saturating_add(to.len() as u64 - 1)).page_floor();
    let first = (end.0.saturating_sub(from.0) as usize).min(to.len());
    let local = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: to.len(),
    };
    let piece = |at: u64, len: usize| libc::iovec {
        iov_base: ptr::without_provenance_mut(at as usize),
        iov_len: len,
    };
    let remote = [
        piece(from.0, first),
        piece(from.0.wrapping_add(first as u64), to.len() - first),
    ];
    // SAFETY: the local vector names the whole of `to`, which is ours to
    // write; addresses of the other process are checked by the kernel.
    let read = unsafe {
        libc::process_vm_readv(
            pid as libc::pid_t,
            &raw const local,
            1,
            remote.as_ptr(),
            2,
            0,
        )
    };
    usize::try_from(read).unwrap_or(0)
}

/// Clears the trap flag in a word of flags that a stopped thread just saved on
/// its stack, where a single step left it: loaded later, it would trap.
///
/// # Errors
/// `EIO` where there is no memory, `ESRCH` where the thread is gone.
pub fn clear_saved_trap_flag(tid: u32, at: VirtAddr) -> io::Result<()> {
    const TRAP_FLAG: u64 = 1 << 8;
    let mut word = [0; 8];
    if read_memory(tid, at, &mut word) < word.len() {
        return Err(io::Error::from_raw_os_error(libc::EIO));
    }
    let cleared = u64::from_le_bytes(word) & !TRAP_FLAG;
    request(libc::PTRACE_POKEDATA, tid, at.0 as usize, cleared as usize)
}

/// The next event of any traced thread or child; waits for one if `block` is
/// set. `None` where there is none, or no traced thread and no child is left.
///
/// # Errors
/// When the kernel refuses.
pub fn wait(block: bool) -> io::Result<Option<(u32, Event)>> {
    let options = libc::__WALL | if block { 0 } else { libc::WNOHANG };
    let mut status = 0;
    // SAFETY: all-zero is a valid `rusage`; the call overwrites it.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: both out-arguments live for the call.
    let tid = unsafe { libc::wait4(-1, &mut status, options, &mut usage) };
    if tid < 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::ECHILD | libc::EINTR) => Ok(None),
            _ => Err(error),
        };
    }
    if tid == 0 {
        return Ok(None);
    }
    let tid = tid as u32;
    if !libc::WIFSTOPPED(status) {
        return Ok(Some((tid, Event::Ended(Ended::of(status, &usage)))));
    }
    let signal = libc::WSTOPSIG(status);
    const SYSTEM_CALL: i32 = libc::SIGTRAP | 0x80;
    let event = match status >> 16 {
        0 if signal == SYSTEM_CALL => Event::SystemCall,
        0 => Event::Signal(signal),
        libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Event::Stopped,
        libc::PTRACE_EVENT_STOP => Event::Group(signal),
        libc::PTRACE_EVENT_CLONE => Event::Cloned(event_message(tid)?),
        libc::PTRACE_EVENT_EXEC => Event::Executed,
        _ => Event::Stopped,
    };
    Ok(Some((tid, event)))
}

fn event_message(tid: u32) -> io::Result<u32> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the request writes one word, which lives for the call.
    let rc = unsafe {
        libc::ptrace(
            libc::PTRACE_GETEVENTMSG,
            tid as libc::pid_t,
            0usize,
            &raw mut message,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(message as u32)
}

/// Tries whether this process may trace a child, on one that does nothing.
///
/// # Errors
/// `EPERM` where Yama, a seccomp filter or missing privileges forbid it.
pub fn probe() -> io::Result<()> {
    // SAFETY: the child calls only `pause` and `_exit`, which are
    // async-signal-safe, so the state of other threads does not matter to it.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        // SAFETY: as above; `pause` ends only by the SIGKILL below.
        unsafe {
            libc::pause();
            libc::_exit(0)
        }
    }
    let outcome = seize(child as u32);
    // SAFETY: the child is ours and not yet waited for, so the number is its.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, ptr::null_mut(), libc::__WALL);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_up_to_a_gap() {
        let pid = std::process::id();
        let data = [7u8; 64];
        let mut copy = [0; 64];
        let at = VirtAddr(data.as_ptr() as u64);
        assert_eq!(read_memory(pid, at, &mut copy), 64);
        assert_eq!(copy, data);
        assert_eq!(read_memory(pid, VirtAddr(16), &mut copy), 0);
    }

    #[test]
    fn tracing_can_be_tried() {
        match probe() {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
                println!("SKIP: tracing is forbidden here");
            }
        }
    }
}
