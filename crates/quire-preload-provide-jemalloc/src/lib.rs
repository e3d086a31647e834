//! `libquire_provide_jemalloc.so`: memory that Quire provides, for unmodified programs whose `malloc` becomes jemalloc
//! on managed memory.
//!
//! | module | holds |
//! |---|---|
//! | `functions` | `malloc` and its relatives |
//! | `arenas` | where jemalloc has its memory from |
//! | `kernel` | the calls that jemalloc makes |
//!
//! A process that never asks for much gets the allocator, and nothing else is set up.

mod arenas;
mod functions;
mod kernel;

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use quire_preload_provide::allocator::Allocator;

type Handler = Option<unsafe extern "C" fn()>;

/// jemalloc's handlers of forks: before, in the parent, in the child.
static HANDLERS: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// jemalloc, as the library sees it.
struct Jemalloc;

impl Allocator for Jemalloc {
    fn start(&self) {
        arenas::start();
    }

    fn decided(&self) {
        arenas::install_hooks();
    }

    fn hold(&self) {
        run(0);
    }

    fn release_held(&self) {
        run(1);
    }

    fn renew(&self) {
        run(2);
    }
}

/// jemalloc registers its handlers when it starts; they are run from those of the library.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
) -> c_int {
    for (cell, handler) in HANDLERS.iter().zip([prepare, parent, child]) {
        let address = handler.map_or(0, |h| h as *const () as usize);
        cell.store(address, Ordering::Release);
    }
    0
}

fn run(which: usize) {
    let address = HANDLERS[which].load(Ordering::Acquire);
    // SAFETY: the address is zero or that of a handler that jemalloc gave.
    if let Some(handler) = unsafe { std::mem::transmute::<usize, Handler>(address) } {
        // SAFETY: called at the moment for which it was registered.
        unsafe { handler() };
    }
}

extern "C" fn start() {
    quire_preload_provide::start(Some(&Jemalloc));
}

extern "C" fn finish() {
    quire_preload_provide::finish();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;
