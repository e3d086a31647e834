//! Link options of `libquire_provide_jemalloc.so`.
//!
//! References to the memory calls from inside the library, from jemalloc above all, must reach the kernel and not
//! the replacements that the library offers to the program, so they are bound to `__wrap_` functions (`kernel`). The
//! fork handlers that jemalloc registers are caught in the same way, because their order against the manager's own
//! matters.

#[path = "../quire-preload-provide/link.rs"]
mod link;

fn main() {
    for name in [
        "mmap",
        "munmap",
        "mremap",
        "madvise",
        "mprotect",
        "pthread_atfork",
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={name}");
    }
    // A program that was linked with the other library has this one in its place when it is started with it.
    link::options("libquire_provide.so");
}
