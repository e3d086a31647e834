//! Stacks: a piece of work on a stack of its own, for work during which the calling
//! thread's stack must not be written to (it may lie in the very memory that is being
//! copied, with writers held back), and touching the stack ahead of need, for work during
//! which no page of it may be missing.

use quire_core::units::{BASE_PAGE, Bytes, VirtAddr};

use crate::memory;
use crate::raw::Result;

/// Size of the stack, its guard page included.
const SIZE: Bytes = Bytes(256 << 10);

/// Touches the stack as far as so many bytes below, so that its pages are there, to be
/// written to, for what is called next. What is there does not change: a handler's stack
/// may be smaller, and have something below it.
#[inline(always)]
pub fn touch_below(bytes: Bytes) {
    let mut below = 0;
    while below < bytes.0 {
        below = bytes.0.min(below + BASE_PAGE);
        // SAFETY: nothing is added, atomically, so that also what another thread writes
        // there meanwhile is kept. It reaches no further than the calls would for which
        // it is made.
        unsafe {
            std::arch::asm!(
                "lock add byte ptr [rsp + {below}], 0",
                below = in(reg) below.wrapping_neg(),
                options(nostack),
            );
        }
    }
}

struct Call<F, R> {
    work: Option<F>,
    result: Option<R>,
}

/// Runs `work` on a fresh stack and returns its result. Until `work` returns,
/// nothing is written to the stack of the caller, unless `work` itself does so
/// through what it borrows. A panic in `work` ends the process.
///
/// # Errors
/// As `mmap`, when there is no memory for a stack; `work` has not run then.
pub fn run_elsewhere<F: FnOnce() -> R, R>(work: F) -> Result<R> {
    let stack = memory::new_stack(SIZE)?;
    let room = size_of::<Call<F, R>>() as u64 + align_of::<Call<F, R>>() as u64;
    let at = VirtAddr((stack.end.0 - room) / 64 * 64);
    let call: *mut Call<F, R> = at.as_ptr().cast();
    // SAFETY: the place for the call lies at the end of the new stack, aligned
    // and large enough, and the stack begins below it, aligned as the calling
    // convention wants it. The call is read back after the work has run, which
    // is why the result is there.
    let result = unsafe {
        call.write(Call {
            work: Some(work),
            result: None,
        });
        switch(at, run_call::<F, R>, call.cast());
        call.read().result
    };
    // SAFETY: nothing uses the stack any more.
    unsafe { memory::unmap(stack)? };
    result.ok_or(crate::Errno(libc::EFAULT))
}

extern "C" fn run_call<F: FnOnce() -> R, R>(call: *mut u8) {
    // SAFETY: `run_elsewhere` passes its own call, which nobody else uses.
    let call = unsafe { &mut *call.cast::<Call<F, R>>() };
    call.result = call.work.take().map(|work| work());
}

/// Calls `function` with the stack pointer at `top`, and puts it back.
///
/// # Safety
/// `top` must be the end of a writable stack, a multiple of 16.
unsafe fn switch(top: VirtAddr, function: extern "C" fn(*mut u8), argument: *mut u8) {
    // SAFETY: the old stack pointer waits in a register that the callee saves,
    // and all others that a call may change are declared.
    unsafe {
        std::arch::asm!(
            "xchg rsp, r12",
            "call {function}",
            "mov rsp, r12",
            function = in(reg) function,
            inout("r12") top.0 => _,
            inout("rdi") argument => _,
            clobber_abi("C"),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use quire_core::units::AddrRange;

    use super::*;
    use crate::{pagemap, thread};

    #[test]
    fn work_runs_on_another_stack_and_returns_its_result() {
        let here = 0u8;
        let text = String::from("result");
        let (there, said) = run_elsewhere(|| {
            let there = 0u8;
            ((&raw const there) as u64, format!("{text}, {}", 3.5 * 2.0))
        })
        .unwrap();
        assert_eq!(said, "result, 7");
        let distance = there.abs_diff((&raw const here) as u64);
        assert!(distance > SIZE.0 / 4, "{distance}");
    }

    #[test]
    fn stacks_may_be_nested() {
        let sum = run_elsewhere(|| (0..10).map(|n| run_elsewhere(|| n).unwrap()).sum::<i32>());
        assert_eq!(sum, Ok(45));
    }

    /// A page of a stack that was never used comes into being.
    #[test]
    fn the_stack_below_is_touched() {
        let here = thread::own_memory()[0].page_floor();
        let below = |n: u64| AddrRange::new(VirtAddr(here.0 - n * BASE_PAGE), Bytes(BASE_PAGE));
        // SAFETY: what lies below this function's stack is in no use.
        unsafe { memory::advise(below(4), memory::Advice::DontNeed) }.unwrap();
        touch_below(Bytes(4 * BASE_PAGE));
        let pagemap = pagemap::open().unwrap();
        let mut there = 0;
        pagemap::scan(pagemap.as_fd(), below(4), pagemap::Filter::PRESENT, |_| {
            there += 1
        })
        .unwrap();
        assert_eq!(there, 1);
    }

    #[test]
    fn large_results_fit() {
        let filled = run_elsewhere(|| [7u64; 1000]).unwrap();
        assert!(filled.iter().all(|word| *word == 7));
    }
}
