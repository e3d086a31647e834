//! `libquire_provide.so`: memory that Quire provides, for unmodified programs whose `malloc` stays the C library's, or
//! whatever it is.

extern "C" fn start() {
    quire_preload_provide::start(None);
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
