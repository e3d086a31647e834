//! `libquire.so`: superpages by advice, for unmodified programs.
//!
//! Loaded by `LD_PRELOAD`, it leaves the program's memory, its allocator and its forks alone. When the process has
//! grown to 64 MiB, it starts one thread, which looks at what is populated and advises the kernel (`quire-advise`).
//! Until then it does nothing, so a program that has to be single-threaded at some moment still is.
//!
//! | module | holds |
//! |---|---|
//! | `calls` | the functions of the C library that are passed through: `malloc` and its relatives, `mmap`, `mremap`, `mprotect`, `madvise`, `prctl`, `syscall` |
//! | `growth` | how much the process has grown, and when the thread is started |
//! | `state` | what is the process's alone: a forked child finds zeros |
//! | `helper` | the thread |
//! | `sanitizers` | what programs built with AddressSanitizer are told |
//! | `moving` | `mremap` of what advice has made several mappings of |
//! | `shared` | where shared memory is mapped, so that it can have superpages |
//! | `settings` | what the user chose, and how it is changed in a running process |
//! | `own_memory` | the allocator of the thread |
//!
//! Rules for what runs on threads of the program: nothing is allocated, no lock is taken, nothing waits for another
//! thread (with one exception, which is bounded: `growth::leave_alone`), and `errno` stays what it is.

mod beside;
mod calls;
mod growth;
mod helper;
mod moving;
mod own_memory;
mod sanitizers;
mod settings;
mod shared;
mod state;

#[global_allocator]
static OWN: own_memory::OwnMemory = own_memory::OwnMemory;

extern "C" fn start() {
    calls::find();
    beside::find();
    settings::read();
    state::make();
    helper::show_with_objects();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
