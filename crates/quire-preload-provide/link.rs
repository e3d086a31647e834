//! Link options of the libraries that are made of this crate: their build scripts include this.

/// Tells Cargo the options for a library that programs look for by this name.
pub fn options(name: &str) {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now,-z,relro,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{name}");
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
