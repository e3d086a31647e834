//! `libquire_dsm.so`: objects of servers as the shared memory of unmodified programs, and the
//! C interface `quire_dsm.h`.
//!
//! Loaded by `LD_PRELOAD`, with `QUIRE_DSM` in the environment (`quire run --dsm` sets both),
//! it answers the calls by which a program makes, finds and maps the shared memory that is
//! named there. All other calls go on as they came: to the next library, which may be
//! `libquire.so`, or to the C library.
//!
//! | module | holds |
//! |---|---|
//! | `posix` | `shm_open`, `shm_unlink`, `ftruncate` |
//! | `sizes` | `fstat`, `fstatat`, `statx`, `lseek` |
//! | `direct` | `read` and its kin where the file has `O_DIRECT` |
//! | `contents` | `read`, `write` and their kin of an object's descriptor, `sendfile`, `copy_file_range` |
//! | `fallocate` | `posix_fallocate`, `fallocate` |
//! | `locks` | `flock`, `lockf`, `fcntl` |
//! | `sync` | mutexes, conditions, semaphores, barriers and read-write locks in objects, `sem_open` |
//! | `sysv` | `shmget`, `shmat`, `shmdt`, `shmctl` |
//! | `numbers` | the numbers of segments |
//! | `mappings` | `mmap`, `munmap`, `mprotect`, `mremap`, `remap_file_pages`, `madvise`, `msync` |
//! | `paths` | `/dev/shm/NAME` in `open`, `stat`, `access`, `unlink` |
//! | `cookies` | streams of objects: `fopen`, `fdopen` |
//! | `reopening` | `open`, `openat`, `fopen` of a descriptor's name in `/proc` |
//! | `waits` | `waitpid`, `wait3`, `wait4`, `waitid`, for which there is no revoker |
//! | `processes` | what is done at a fork and at the end of the process |
//! | `ages` | which objects the names of the program have stood for |
//! | `files` | the files that stand for objects |
//! | `inherited` | descriptors of objects that a program has from another one |
//! | `state` | what the program has open and mapped, and its lock |
//! | `signals` | what signals do to a thread that waits for a server |
//! | `taken` | which addresses mappings of objects take, known without that lock |
//! | `uses` | which objects the program uses by descriptors alone |
//! | `handed` | which addresses programs in C have, and which of these they may only read |
//! | `pieces` | which parts of a mapping are left, and what they allow |
//! | `ending` | how a process that ends waits until what it wrote is given back |
//! | `impatient` | reads and writes of programs whose system calls do not wait for memory |
//! | `leaving` | the end of a program whose first thread leaves by `pthread_exit` |
//! | `host` | the thread that speaks with servers |
//! | `loss` | what becomes of a program that has lost what it wrote |
//! | `streams` | the program's standard streams, which are not kept open, and the log |
//! | `trouble` | why something cannot be had: `errno`, and a line for the log |
//! | `real` | the functions behind those that it calls itself |
//! | `capi` | the C interface |

use std::sync::Once;

mod ages;
mod capi;
mod contents;
mod cookies;
mod direct;
mod ending;
mod fallocate;
mod files;
mod handed;
mod host;
mod impatient;
mod inherited;
mod leaving;
mod locks;
mod loss;
mod mappings;
mod numbers;
mod paths;
mod pieces;
mod posix;
mod processes;
mod real;
mod reopening;
mod signals;
mod sizes;
mod state;
mod streams;
mod sync;
mod sysv;
mod taken;
mod trouble;
mod uses;
mod waits;

#[cfg(panic = "abort")]
compile_error!(
    "threads of programs that are cancelled, or leave by pthread_exit, unwind through functions of \
     this library: build it with --profile preload-dsm"
);

/// Whether all below is ready.
static IS_READY: Once = Once::new();

/// Makes all ready, at the first time. Libraries that the program is linked with begin before this
/// one, and may ask for shared memory then: so whatever takes a name or a key calls this, too.
fn begin() {
    IS_READY.call_once(|| {
        #[cfg(not(test))]
        end_on_panic();
        // Who looks for a function has the loader's lock, and must not be stopped or left by a
        // signal then: that is over before the program begins.
        mappings::start();
        posix::start();
        fallocate::start();
        sizes::start();
        handed::start();
        direct::start();
        contents::start();
        impatient::start();
        locks::start();
        sync::start();
        reopening::start();
        paths::start();
        cookies::start();
        waits::start();
        sysv::start();
        state::start();
        processes::start();
        leaving::start();
    });
}

/// A thread that panics ends the program. If it is one of this library, memory would wait for it.
#[cfg(not(test))]
fn end_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

extern "C" fn start() {
    begin();
}

extern "C" fn finish() {
    processes::give_back();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;
