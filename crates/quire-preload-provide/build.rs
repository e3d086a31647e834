//! Link options of `libquire_provide.so`.
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
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libquire_provide.so");
    unwind_from_archive();
    println!("cargo:rerun-if-changed=build.rs");
}

/// Takes the unwinder from the compiler's archive, where there is one: the
/// shared library with it would have to be loaded into every process, which
/// takes a third of the time that this one takes.
fn unwind_from_archive() {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let found = std::process::Command::new(compiler)
        .arg("-print-file-name=libgcc_eh.a")
        .output();
    let path = found.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
    if let Ok(path) = path
        && let Some(dir) = std::path::Path::new(&path).parent()
        && dir.is_absolute()
    {
        println!("cargo:rustc-link-search=native={}", dir.display());
        println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
    }
}
