//! Link options of `libquire.so`.
//!
//! References to the memory calls from inside the library (from jemalloc,
//! above all) must reach the kernel and not the replacements that the library
//! offers to the program, so they are bound to `__wrap_` functions. The fork
//! handlers that jemalloc registers are caught in the same way, because their
//! order against the manager's own matters.

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
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now,-z,relro,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libquire.so");
    println!("cargo:rerun-if-changed=build.rs");
}
