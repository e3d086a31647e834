//! Calls that let the kernel write to the program's memory: `read` and its relatives, which are passed on. What they
//! write to is touched before ([`quire_vm::Manager::before_kernel_writes`]).
//!
//! They are cancellation points: the C library unwinds the stack of a thread that is cancelled in them, and must find
//! no frame of this library there. So the functions here jump on.

use std::arch::naked_asm;
use std::ffi::c_void;

use quire_core::units::{AddrRange, Bytes, VirtAddr};
use quire_linux::real::Real;

use crate::MANAGER;

/// The type of the functions does not matter: their arguments stay where they are.
type Function = unsafe extern "C" fn();

/// The kernel is about to write `len` bytes.
fn prepare(to: *mut c_void, len: usize) {
    let start = VirtAddr(to as u64);
    if start.0.checked_add(len as u64).is_some() {
        MANAGER.before_kernel_writes(AddrRange::new(start, Bytes(len as u64)));
    }
}

/// Where a call goes on.
fn go_on(real: &Real<Function>) -> usize {
    real.get()
        .map_or_else(|| std::process::abort(), |real| real as usize)
}

/// Functions of the C library with up to six arguments, and which of these say where and how much.
macro_rules! passed_on {
    ($($module:ident: $name:literal = $export:ident, |$first:ident, $second:ident, $third:ident| $to:expr, $len:expr;)*) => {
        $(mod $module {
            use super::*;

            // SAFETY: it is jumped to with the arguments as they came, and never called by this type.
            static REAL: Real<Function> = unsafe { Real::new($name) };

            pub fn find() {
                let _ = REAL.get();
            }

            extern "C" fn before($first: usize, $second: usize, $third: usize) -> usize {
                prepare($to as *mut c_void, $len);
                go_on(&REAL)
            }

            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $export() {
                naked_asm!(
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "sub rsp, 8",
                    "call {before}",
                    "add rsp, 8",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "jmp rax",
                    before = sym before,
                )
            }
        })*

        /// Looks the functions up before a signal handler may need one.
        pub fn start() {
            $($module::find();)*
        }
    };
}

passed_on! {
    plain: c"read" = read, |_fd, to, len| to, len;
    checked: c"__read_chk" = __read_chk, |_fd, to, len| to, len;
    at: c"pread" = pread, |_fd, to, len| to, len;
    at64: c"pread64" = pread64, |_fd, to, len| to, len;
    received: c"recv" = recv, |_fd, to, len| to, len;
    received_from: c"recvfrom" = recvfrom, |_fd, to, len| to, len;
    stream: c"fread" = fread, |to, size, count| to, size.saturating_mul(count);
}
