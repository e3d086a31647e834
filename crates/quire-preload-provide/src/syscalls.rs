//! `syscall`: some programs make memory and process calls by number. Those
//! that concern managed memory take the same way as the named ones; all others
//! go straight to the kernel, by the few instructions that the C library has.
//! `clone` with shared memory must go straight too: its child returns on
//! another stack.
//!
//! There are futex operations for which the kernel does not wait until a missing page
//! is supplied. They are made again once it is there.

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};

use quire_core::units::BASE_PAGE;
use quire_linux::raw::{Result, check, syscall_raw};
use quire_linux::{left, own_threads};
use quire_vm::Errno;

use crate::mappings::{self, NO_FORK, raw};
use crate::{MANAGER, addresses, processes, set_errno, shared};

/// The bits of a futex operation that are not flags.
const FUTEX_OPERATION: i32 = 0x7f;

#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn syscall(number: i64) -> i64 {
    naked_asm!(
        "cmp rdi, {mmap}",
        "je 3f",
        "cmp rdi, {mprotect}",
        "je 3f",
        "cmp rdi, {munmap}",
        "je 3f",
        "cmp rdi, {mremap}",
        "je 3f",
        "cmp rdi, {madvise}",
        "je 3f",
        "cmp rdi, {prctl}",
        "je 3f",
        "cmp rdi, {shmat}",
        "je 3f",
        "cmp rdi, {mseal}",
        "je 3f",
        "cmp rdi, {remap_file_pages}",
        "je 3f",
        "cmp rdi, {mincore}",
        "je 3f",
        "cmp rdi, {process_madvise}",
        "je 3f",
        "cmp rdi, {pkey_mprotect}",
        "je 3f",
        "cmp rdi, {mlock}",
        "je 3f",
        "cmp rdi, {mlock2}",
        "je 3f",
        "cmp rdi, {munlock}",
        "je 3f",
        "cmp rdi, {mlockall}",
        "je 3f",
        "cmp rdi, {munlockall}",
        "je 3f",
        "cmp rdi, {seccomp}",
        "je 3f",
        "cmp rdi, {exit}",
        "je 3f",
        "cmp rdi, {fork}",
        "je 3f",
        "cmp rdi, {futex}",
        "jne 5f",
        "mov eax, edx",
        "and eax, {futex_operation}",
        "cmp eax, {futex_wake_op}",
        "jae 3f",
        "jmp 2f",
        "5:",
        "cmp rdi, {clone}",
        "jne 2f",
        "test rsi, {clone_vm}",
        "je 3f",
        "2:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 4f",
        "ret",
        "3:",
        "jmp {managed}",
        "4:",
        "mov rdi, rax",
        "jmp {failed}",
        mmap = const libc::SYS_mmap,
        mprotect = const libc::SYS_mprotect,
        munmap = const libc::SYS_munmap,
        mremap = const libc::SYS_mremap,
        madvise = const libc::SYS_madvise,
        prctl = const libc::SYS_prctl,
        shmat = const libc::SYS_shmat,
        mseal = const libc::SYS_mseal,
        remap_file_pages = const libc::SYS_remap_file_pages,
        mincore = const libc::SYS_mincore,
        process_madvise = const libc::SYS_process_madvise,
        pkey_mprotect = const libc::SYS_pkey_mprotect,
        mlock = const libc::SYS_mlock,
        mlock2 = const libc::SYS_mlock2,
        munlock = const libc::SYS_munlock,
        mlockall = const libc::SYS_mlockall,
        munlockall = const libc::SYS_munlockall,
        seccomp = const libc::SYS_seccomp,
        exit = const libc::SYS_exit,
        fork = const libc::SYS_fork,
        futex = const libc::SYS_futex,
        futex_operation = const FUTEX_OPERATION,
        // Those before it only wait and wake.
        futex_wake_op = const libc::FUTEX_WAKE_OP,
        clone = const libc::SYS_clone,
        clone_vm = const libc::CLONE_VM,
        managed = sym managed,
        failed = sym failed,
    )
}

extern "C" fn failed(answer: i64) -> i64 {
    set_errno(Errno(-answer as i32));
    -1
}

/// A call that may concern managed memory, with the arguments where `syscall`
/// had them.
unsafe extern "C" fn managed(
    number: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> i64 {
    let at = a as *mut c_void;
    // SAFETY: passed on as the program gave it.
    unsafe {
        match number {
            libc::SYS_mmap => {
                mappings::map(at, b, c as c_int, d as c_int, e as c_int, f as i64) as i64
            }
            libc::SYS_mprotect => i64::from(mappings::set_protection(at, b, c as c_int)),
            libc::SYS_munmap => i64::from(mappings::unmap(at, b)),
            libc::SYS_mremap => mappings::remap(at, b, c, d as c_int, e as *mut c_void) as i64,
            libc::SYS_madvise => i64::from(mappings::advise(at, b, c as c_int)),
            libc::SYS_prctl => i64::from(mappings::control(a as c_int, [b, c, d, e])),
            libc::SYS_shmat => shared::attach(a as c_int, b as *const c_void, c as c_int) as i64,
            libc::SYS_mseal => i64::from(addresses::seal(at, b, c)),
            libc::SYS_remap_file_pages => i64::from(addresses::remap_pages([a, b, c, d, e, 0])),
            libc::SYS_mincore => i64::from(addresses::residency(at, b, c as *mut u8)),
            libc::SYS_process_madvise => addresses::advise_process([a, b, c, d, e, 0]),
            libc::SYS_pkey_mprotect => i64::from(mappings::set_key(at, b, c as c_int, d as c_int)),
            libc::SYS_mlock | libc::SYS_mlock2 | libc::SYS_munlock => {
                i64::from(mappings::set_lock(number, at, b, c))
            }
            libc::SYS_mlockall => i64::from(mappings::lock_all(a as c_int)),
            libc::SYS_munlockall => i64::from(mappings::unlock_all()),
            libc::SYS_futex => futex([a, b, c, d, e, f]),
            libc::SYS_exit => leave(a),
            libc::SYS_seccomp => {
                MANAGER.leave_alone();
                answer(raw(number, [a, b, c, d, e, f]))
            }
            _ => copy_process(number, [a, b, c, d, e, f]),
        }
    }
}

/// A futex operation that may change the word, at the first argument or at the fifth.
unsafe fn futex(args: [usize; 6]) -> i64 {
    // SAFETY: passed on as the program gave it.
    let call = || unsafe { raw(libc::SYS_futex, args) };
    let answer = match call() {
        Err(Errno(libc::EFAULT)) => {
            supply(args[0]);
            supply(args[4]);
            call()
        }
        answer => answer,
    };
    self::answer(answer)
}

/// The calling thread ends. Where the program has no other, the threads of this library would keep the process, which
/// ends with the status of its last thread.
fn leave(status: usize) -> i64 {
    let number = match own_threads::is_any() && left::is_last(own_threads::is_one) {
        true => libc::SYS_exit_group,
        false => libc::SYS_exit,
    };
    // SAFETY: the program ends this thread, and no thread of its is left if the process ends, too.
    answer(unsafe { raw(number, [status, 0, 0, 0, 0, 0]) })
}

/// As the C library's `syscall` answers.
fn answer(answer: Result<usize>) -> i64 {
    match answer {
        Ok(value) => value as i64,
        Err(errno) => failed(-i64::from(errno.0)),
    }
}

/// Has the page of an address populated, if there is one.
fn supply(address: usize) {
    let page = address / BASE_PAGE as usize * BASE_PAGE as usize;
    let advice = libc::MADV_POPULATE_WRITE as usize;
    // SAFETY: the advice changes no contents.
    let _ = unsafe {
        raw(
            libc::SYS_madvise,
            [page, BASE_PAGE as usize, advice, 0, 0, 0],
        )
    };
}

unsafe fn copy_process(number: i64, args: [usize; 6]) -> i64 {
    debug_assert!(number == libc::SYS_fork || processes::makes_copy(args[0] as _));
    // SAFETY: the caller forks; its child runs on a copy of this stack, or on
    // one that it gave.
    let answer = processes::fork_bare(|| unsafe { syscall_raw(number, args) as i64 });
    match answer.map(|child| check(child as isize)) {
        Some(Ok(child)) => child as i64,
        Some(Err(errno)) => {
            set_errno(errno);
            -1
        }
        None => {
            set_errno(NO_FORK);
            -1
        }
    }
}
