//! Link options of `libquire_dsm.so`: it is found by its name, it is bound at once, so that
//! no call of the program waits for the loader's lock, and it is never unloaded.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now,-z,relro,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libquire_dsm.so");
    println!("cargo:rerun-if-changed=build.rs");
}
