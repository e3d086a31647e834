//! Link options of `libquire_provide.so`.

#[path = "../quire-preload-provide/link.rs"]
mod link;

fn main() {
    link::options("libquire_provide.so");
}
