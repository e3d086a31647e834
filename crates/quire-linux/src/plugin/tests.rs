//! Callbacks as a plug-in has them, without a library around them; and libraries that
//! the compiler makes.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use quire_core::frames::buddy::{FramePool, Run};
use quire_core::frames::strategies::PageColouring;
use quire_core::units::{BASE_PAGE, VirtAddr};

use super::*;

/// Says what it was asked, in the bits of a frame's number.
unsafe extern "C-unwind" fn echo(
    state: *const c_void,
    first: u64,
    order: u32,
    request: *const RawRequest,
) -> u64 {
    // SAFETY: Quire passes a request.
    let request = unsafe { &*request };
    let sum = request.page / BASE_PAGE + u64::from(request.thread) + state as u64;
    first + sum % (2 << order)
}

const PLAIN: RawStrategy = RawStrategy {
    abi_version: ABI,
    flags: 0,
    name: c"test".as_ptr(),
    create: None,
    wanted: None,
    choose: Some(echo),
    note: None,
    destroy: None,
};

fn plugin(callbacks: RawStrategy) -> Plugin {
    Plugin::new(Path::new("./test.so"), callbacks).unwrap()
}

fn sixteen() -> Colours {
    Colours::plain(16 * BASE_PAGE)
}

fn made(callbacks: RawStrategy) -> PluginStrategy {
    plugin(callbacks).strategy(&sixteen(), "", 1).unwrap()
}

fn request(page: u64, thread: u32) -> Request {
    Request {
        page: VirtAddr(page * BASE_PAGE),
        thread,
    }
}

#[test]
fn what_lies_in_the_block_is_taken_and_nothing_else() {
    let strategy = made(PLAIN);
    let block = Block {
        first: Frame(64),
        order: 3,
    };
    let choice = |page, thread| strategy.choose(block, &request(page, thread));
    assert_eq!(choice(0, 3), Some(Frame(67)));
    assert_eq!(choice(4, 3), Some(Frame(71)));
    assert_eq!(choice(5, 3), None);
    assert_eq!(strategy.sequence(&request(1, 1)), None);
    assert_eq!(strategy.wanted(&request(0, 0)), Wanted::Unknown);
}

#[test]
fn no_frame_is_none() {
    unsafe extern "C-unwind" fn none(
        _: *const c_void,
        _: u64,
        _: u32,
        _: *const RawRequest,
    ) -> u64 {
        NO_FRAME
    }
    let strategy = made(RawStrategy {
        choose: Some(none),
        ..PLAIN
    });
    let block = Block::single(Frame(5));
    assert_eq!(strategy.choose(block, &request(1, 1)), None);
}

#[test]
fn colours_that_do_not_exist_are_not_wanted() {
    unsafe extern "C-unwind" fn thread(_: *const c_void, request: *const RawRequest) -> u32 {
        // SAFETY: Quire passes a request.
        unsafe { (*request).thread }
    }
    let strategy = made(RawStrategy {
        wanted: Some(thread),
        flags: DEPENDS_ON_ORDER,
        ..PLAIN
    });
    let wanted = |thread| strategy.wanted(&request(0, thread));
    assert_eq!(wanted(15), Wanted::Colour(Colour(15)));
    assert_eq!(wanted(16), Wanted::Unknown);
    assert_eq!(wanted(u32::MAX), Wanted::Unknown);
    assert_eq!(strategy.sequence(&request(1, 1)), Some(0));
}

/// A state that counts what is noted, in memory that Quire gave.
mod counting {
    use super::*;

    pub static DESTROYED: AtomicU32 = AtomicU32::new(0);

    pub unsafe extern "C-unwind" fn create(
        host: *const RawHost,
        state: *mut *mut c_void,
    ) -> *const c_char {
        // SAFETY: Quire passes a host and a place for the state.
        unsafe {
            if CStr::from_ptr((*host).argument) == c"no" {
                return c"not like\nthat".as_ptr();
            }
            *state = ((*host).allocate)(host, 24);
        }
        ptr::null()
    }

    pub unsafe extern "C-unwind" fn note(
        state: *mut c_void,
        frame: u64,
        request: *const RawRequest,
    ) {
        let state = state.cast::<u64>();
        // SAFETY: `create` made room for three of them.
        unsafe {
            *state += 1;
            *state.add(1) = frame;
            *state.add(2) = (*request).page;
        }
    }

    pub unsafe extern "C-unwind" fn destroy(state: *mut c_void) {
        // SAFETY: the state is there until this returns.
        let count = unsafe { *state.cast::<u64>() };
        DESTROYED.fetch_add(count as u32, Ordering::Relaxed);
    }

    pub const CALLBACKS: RawStrategy = RawStrategy {
        create: Some(create),
        note: Some(note),
        destroy: Some(destroy),
        ..PLAIN
    };
}

#[test]
fn a_state_lives_from_create_to_destroy() {
    let plugin = plugin(counting::CALLBACKS);
    let refused = plugin.strategy(&sixteen(), "no", 1).err().unwrap();
    assert_eq!(
        refused.to_string(),
        "the plug-in ./test.so refuses: test: not like"
    );
    let mut strategy = plugin.strategy(&sixteen(), "yes", 1).unwrap();
    strategy.note(Frame(7), &request(2, 1));
    strategy.note(Frame(8), &request(3, 1));
    // SAFETY: the state of this plug-in has three numbers.
    let state = unsafe { std::slice::from_raw_parts(strategy.state.cast::<u64>(), 3) };
    assert_eq!(state, [2, 8, 3 * BASE_PAGE]);
    assert!(strategy.state.addr().is_multiple_of(16));
    drop(strategy);
    assert_eq!(counting::DESTROYED.load(Ordering::Relaxed), 2);
}

#[test]
fn a_host_knows_colours_and_has_memory() {
    let hashed: Colours = "12^18,13^19".parse().unwrap();
    let strategy = plugin(PLAIN).strategy(&hashed, "text", 42).unwrap();
    let host: *const RawHost = strategy.host.as_ptr().cast();
    // SAFETY: the host is lent as long as the strategy is there.
    unsafe {
        assert_eq!(((*host).colours, (*host).process), (4, 42));
        assert_eq!(CStr::from_ptr((*host).argument), c"text");
        assert_eq!(((*host).colour_of)(host, 1 << 6), 1);
        let first = |first, order, colour| ((*host).first_of_colour)(host, first, order, colour);
        assert_eq!(first(64, 2, 3), 66);
        assert_eq!(first(64, 0, 3), NO_FRAME);
        // No block, no order, no colour.
        assert_eq!(first(65, 2, 3), NO_FRAME);
        assert_eq!(first(0, 64, 3), NO_FRAME);
        assert_eq!(first(64, 2, 4), NO_FRAME);
        assert_eq!(((*host).allocate)(host, usize::MAX), ptr::null_mut());
        let memory = ((*host).allocate)(host, 1 << 20).cast::<u8>();
        assert!(
            std::slice::from_raw_parts(memory, 1 << 20)
                .iter()
                .all(|b| *b == 0)
        );
        memory.write_bytes(1, 1 << 20);
        assert!(!((*host).allocate)(host, 0).is_null());
    }
}

#[test]
fn what_is_not_complete_is_refused() {
    let error = |callbacks| {
        let error = Plugin::new(Path::new("./p.so"), callbacks).err().unwrap();
        error.to_string()
    };
    let nameless = RawStrategy {
        name: ptr::null(),
        ..PLAIN
    };
    assert!(error(nameless).contains("no name"));
    let mute = RawStrategy {
        choose: None,
        ..PLAIN
    };
    assert!(error(mute).contains("`choose`"));
    let strange = RawStrategy { flags: 6, ..PLAIN };
    assert!(error(strange).contains("flags"));
}

/// Compiles a library from a text, or from the file of an example.
fn library(scratch: &tempfile::TempDir, name: &str, text: Option<&str>) -> PathBuf {
    let preload = Path::new(env!("CARGO_MANIFEST_DIR")).join("../quire-preload-provide");
    let out = scratch.path().join(format!("{name}.so"));
    let source = match text {
        Some(text) => {
            let source = scratch.path().join(format!("{name}.c"));
            std::fs::write(&source, text).unwrap();
            source
        }
        None => preload.join("examples").join(format!("{name}.c")),
    };
    let compiled = Command::new("cc")
        .args([
            "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-I",
        ])
        .arg(preload.join("include"))
        .arg("-o")
        .args([&out, &source])
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(compiled.success(), "{name}");
    out
}

#[test]
fn examples_do_what_they_say() {
    let scratch = tempfile::tempdir().unwrap();
    let pool = || {
        let mut pool = FramePool::new(&sixteen());
        pool.add(Block {
            first: Frame(512),
            order: 9,
        });
        pool
    };
    let skew = Plugin::load(&library(&scratch, "skew", None)).unwrap();
    assert!(skew.strategy(&sixteen(), "0", 1).is_err());
    assert!(skew.strategy(&sixteen(), "4x", 1).is_err());
    let mut strategy = skew.strategy(&sixteen(), "4", 1).unwrap();
    assert_eq!(strategy.wanted(&request(9, 1)), Wanted::Colour(Colour(11)));
    let run = pool().allocate_run(&mut strategy, &request(8, 1), 100);
    // The next row begins a colour further.
    let row = Run {
        first: Frame(512 + 10),
        count: 4,
        accepted: true,
    };
    assert_eq!(run, Some(row));

    let shares = Plugin::load(&library(&scratch, "shares", None)).unwrap();
    for bad in ["3", "32", "x", "2x", "-1"] {
        assert!(shares.strategy(&sixteen(), bad, 1).is_err(), "{bad}");
    }
    let mut strategy = shares.strategy(&sixteen(), "4", 1).unwrap();
    assert_eq!(strategy.sequence(&request(1, 1)), Some(0));
    let mut pool = pool();
    let colours = [70, 71, 70, 70, 70, 71, 72, 73, 74, 70].map(|thread| {
        let placed = pool.allocate(&mut strategy, &request(5, thread)).unwrap();
        assert!(placed.accepted);
        sixteen().of(placed.frame).0
    });
    assert_eq!(colours, [0, 4, 1, 2, 3, 5, 8, 12, 0, 0]);
}

/// The first program that who writes a plug-in reads.
#[test]
fn the_example_of_the_guide_is_page_colouring() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plugins.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let source = guide.split("```c\n").nth(1).unwrap();
    let source = source.split("```").next().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let mine = Plugin::load(&library(&scratch, "mine", Some(source))).unwrap();
    let strategy = mine.strategy(&sixteen(), "", 1).unwrap();
    let built_in = PageColouring::new(&sixteen(), 0);
    for (page, first, order) in [(0x1234, 512, 9), (77, 64, 3), (5, 5, 0), (5, 6, 0)] {
        let (first, request) = (Frame(first), request(page, 1));
        let block = Block { first, order };
        assert_eq!(
            strategy.choose(block, &request),
            built_in.choose(block, &request)
        );
    }
}

#[test]
fn what_is_no_plugin_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let error = |path: &Path| Plugin::load(path).err().unwrap().to_string();
    let missing = error(&scratch.path().join("missing.so"));
    assert!(missing.contains("No such file"), "{missing}");
    let text = scratch.path().join("text.so");
    std::fs::write(&text, "no library\n").unwrap();
    let unread = error(&text);
    let path = text.display();
    assert!(
        unread.starts_with(&format!("cannot load the plug-in {path}: file too short;")),
        "{unread}"
    );
    let other = error(&library(&scratch, "other", Some("int quire;\n")));
    assert!(other.contains("no symbol `quire_strategy`"), "{other}");
    let undefined = "int missing_function(void); int f(void) { return missing_function(); }\n";
    let undefined = error(&library(&scratch, "undefined", Some(undefined)));
    assert!(undefined.contains("missing_function"), "{undefined}");
    let newer = "unsigned quire_strategy = 7;\n";
    let newer = error(&library(&scratch, "newer", Some(newer)));
    assert!(
        newer.contains("version 7") && newer.contains("has 1"),
        "{newer}"
    );
}
