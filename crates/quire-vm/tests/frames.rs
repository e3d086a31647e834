//! A program without `libquire_provide.so` that asks for frames itself. There is one service in a
//! process, so this is one test.

use quire_core::frames::colour::Colours;
use quire_core::units::{AddrRange, Bytes, Frame, VirtAddr};
use quire_linux::memory;
use quire_vm::frames::{self, Page, Setup, Which};
use quire_vm::{Manager, frames::RecordError};

static MANAGER: Manager = Manager::new();
const SIZE: Bytes = Bytes(4 << 20);

fn colours() -> Colours {
    "12,13,14,15".parse().unwrap()
}

fn named(text: &str) -> Which {
    frames::strategy(&text.parse().unwrap(), &colours()).unwrap()
}

fn fill(range: AddrRange) {
    // SAFETY: the ranges of this test are mapped, and it alone uses them.
    unsafe { range.start.as_ptr().write_bytes(7, range.len().0 as usize) };
}

fn pages(range: AddrRange) -> Vec<Page> {
    let mut all = Vec::new();
    frames::pages(range, |page| all.push(page)).unwrap();
    all
}

/// The pages whose colour is not the one that is promised for their number.
fn wrong(range: AddrRange, promised: impl Fn(u64) -> u64) -> usize {
    let wrong = |page: &&Page| {
        let colour = colours().of(page.frame.unwrap()).0;
        u64::from(colour) != promised(page.address.0 / 4096)
    };
    pages(range).iter().filter(wrong).count()
}

/// The thread is started anew in a child, where strategies keep their numbers.
fn check_child(range: AddrRange) {
    frames::hold();
    // SAFETY: the child allocates, which the C library allows, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    frames::release_held();
    if child == 0 {
        frames::after_fork_child();
        let started = frames::start(&MANAGER, Setup::new(colours())).is_ok();
        fill(range);
        let right = started && wrong(range, |n| n % 2 + 4) == 0;
        // SAFETY: the child ends here.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: the child is ours, and the status outlives the call.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((ended, status), (child, 0));
}

#[test]
fn a_program_asks_for_frames_itself() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP: only root may see frames");
        return;
    }
    let of_kernel = map();
    fill(of_kernel);
    assert!(frames::strategy(&"colour".parse().unwrap(), &colours()).is_err());
    frames::start(&MANAGER, Setup::new(colours())).unwrap();
    frames::start(&MANAGER, Setup::new(colours())).unwrap();
    assert_eq!(named("binhop"), named("binhop"));
    assert_ne!(named("binhop"), named("colour"));
    assert!(frames::strategy(&"modulo:16".parse().unwrap(), &colours()).is_err());

    let memory = frames::allocate(SIZE, named("colour")).unwrap();
    assert!(
        pages(memory)
            .iter()
            .all(|page| !page.present && page.frame.is_none())
    );
    fill(memory);
    assert_eq!(wrong(memory, |n| n % 16), 0);

    // Memory that was there before, and back to what was recorded.
    let file = std::env::temp_dir().join(format!("quire-frames.{}.csv", std::process::id()));
    let recorded = frames::record(of_kernel, &colours(), &file).unwrap();
    assert_eq!(recorded, SIZE.to_pages());
    let before: Vec<Option<Frame>> = pages(of_kernel).iter().map(|page| page.frame).collect();
    frames::know(&MANAGER, of_kernel);
    let outcome = frames::remap(of_kernel, named("modulo:3")).unwrap().wait();
    assert_eq!((outcome.left, wrong(of_kernel, |_| 3)), (vec![], 0));
    let again = named(&format!("modulo:@{}", file.display()));
    let outcome = frames::remap(of_kernel, again).unwrap().wait();
    let first = of_kernel.start.0 / 4096;
    let colour_before = |n: u64| {
        let frame = before[(n - first) as usize].unwrap();
        u64::from(colours().of(frame).0)
    };
    assert_eq!((outcome.left, wrong(of_kernel, colour_before)), (vec![], 0));
    std::fs::remove_file(&file).unwrap();

    let empty = frames::allocate(SIZE, named("modulo:4-5")).unwrap();
    let none = frames::record(empty, &colours(), &file);
    assert!(matches!(none, Err(RecordError::Nothing)) && !file.exists());
    check_child(empty);
    fill(empty);
    assert_eq!(wrong(empty, |n| n % 2 + 4), 0);
    for range in [memory, empty, of_kernel] {
        // SAFETY: nothing uses the memory any more.
        unsafe { frames::free(range) }.unwrap();
    }
    assert!(frames::allocate(Bytes::ZERO, Which::KERNEL).is_err());
    assert!(frames::allocate(Bytes(u64::MAX), Which::KERNEL).is_err());
}

fn map() -> AddrRange {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { memory::map_anonymous(VirtAddr(0), SIZE, prot, 0) }.unwrap();
    AddrRange::new(start, SIZE)
}
