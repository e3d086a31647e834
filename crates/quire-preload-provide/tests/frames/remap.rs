//! Pages that exist get other frames while the program writes to them.

use std::os::fd::AsFd as _;
use std::thread::sleep;
use std::time::Duration;

use quire_core::control::DONE;
use quire_core::frames::colour::Colours;
use quire_core::frames::remap::{Ask, LEFT_AT_ONCE, Left, Progress, Reason, parse_left};
use quire_core::frames::spec::StrategySpec;
use quire_core::units::{AddrRange, Bytes, Frame, PageCount, VirtAddr};
use quire_linux::{control, pagemap};

use crate::harness::held::Held;
use crate::harness::setting::{self, Setting};
use crate::harness::{process, skip};

const PATIENCE: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;
const START: VirtAddr = VirtAddr(0x2000_0000_0000);

fn colours() -> Colours {
    "12,13,14,15".parse().expect("the colours of most caches")
}

fn whole() -> AddrRange {
    AddrRange::new(START, Bytes(SIZE))
}

/// What is touched at first.
fn touched() -> AddrRange {
    AddrRange::new(START, Bytes(SIZE - MIB))
}

fn first_mib() -> AddrRange {
    AddrRange::new(START, Bytes(MIB))
}

/// The program whose pages are moved.
struct Moving(Held);

impl Moving {
    fn start(setting: &Setting) -> Moving {
        Moving(Held::start(setting, "moving", "16"))
    }

    fn ask(&self, line: &str) -> String {
        control::ask(&self.0.control(), line, PATIENCE, || true).expect("the process answers")
    }

    /// Moves pages, waits until that is done, and returns what became of them.
    fn remap(&self, range: AddrRange, strategy: &str) -> (Progress, Vec<Left>) {
        let strategy: StrategySpec = strategy.parse().expect("a strategy");
        let colours = colours();
        let ask = Ask::Remap {
            range,
            strategy,
            colours,
        };
        assert_eq!(self.ask(&ask.to_string()), DONE);
        let progress: Progress = loop {
            let told = self.ask(&Ask::Progress.to_string());
            let progress: Progress = told.parse().expect("this version");
            if progress.ended {
                break progress;
            }
            sleep(Duration::from_millis(1));
        };
        let mut left = Vec::new();
        for from in (0..progress.left).step_by(LEFT_AT_ONCE) {
            let told = self.ask(&Ask::Left(from).to_string());
            left.extend(parse_left(&told).expect("this version"));
        }
        (progress, left)
    }

    fn frames(&self, range: AddrRange) -> Vec<(u64, Option<Frame>)> {
        let pagemap = pagemap::open_of(self.0.child.id()).expect("the process is ours");
        let mut frames = Vec::new();
        let read = pagemap::frames_of(pagemap.as_fd(), range, |at, entry| {
            frames.push((at.0 / 4096, entry.frame()));
        });
        read.expect("the process is ours");
        frames
    }

    /// The pages of a range whose colour is not the one that is promised.
    fn wrong(&self, range: AddrRange, promised: impl Fn(u64) -> u32) -> Vec<u64> {
        let frames = self.frames(range).into_iter();
        let colours = colours();
        let is_wrong = |(page, frame): &(u64, Option<Frame>)| {
            let frame = frame.expect("every page is there");
            colours.of(frame).0 != promised(*page)
        };
        frames.filter(is_wrong).map(|(page, _)| page).collect()
    }

    fn obey(&mut self, line: &str) {
        self.0.tell(line);
        self.0.hear("obeyed");
    }
}

fn own_colour(page: u64) -> u32 {
    (page % 16) as u32
}

#[test]
fn pages_move_while_they_are_written() {
    if !process::is_root() {
        return skip("only root may see frames");
    }
    let mut moving = Moving::start(&setting::KERNEL_FRAMES);
    assert_ne!(moving.wrong(touched(), own_colour), [0; 0]);
    for _ in 0..3 {
        let (progress, left) = moving.remap(whole(), "colour");
        assert_eq!(left, []);
        assert_eq!(progress.done, PageCount(SIZE / 4096));
        assert_eq!(
            progress.moved + progress.kept + progress.missing,
            progress.of
        );
        assert_eq!(progress.missing, PageCount(MIB / 4096));
        assert_eq!(moving.wrong(touched(), own_colour), [0; 0]);
        let (_, left) = moving.remap(touched(), "modulo:4-7");
        assert_eq!(left, []);
        let one_of_four = |page| (page % 4 + 4) as u32;
        assert_eq!(moving.wrong(touched(), one_of_four), [0; 0]);
    }
    // What was not touched before gets the frame of the last strategy for it.
    moving.obey("grow");
    assert_eq!(
        moving.wrong(whole(), |page| match page * 4096 < touched().end.0 {
            true => (page % 4 + 4) as u32,
            false => own_colour(page),
        }),
        [0; 0]
    );
    moving.0.end();
}

/// Each page of one half demands the frame of a page of the other, which has to make
/// way.
#[test]
fn demanded_frames_are_exchanged_between_pages() {
    if !process::is_root() {
        return skip("only root may see frames");
    }
    let moving = Moving::start(&setting::KERNEL_FRAMES);
    let frames = moving.frames(touched());
    let (low, high) = frames.split_at(frames.len() / 2);
    let frame = |(_, frame): &(u64, Option<Frame>)| frame.expect("every page is there");
    let wanted: Vec<Frame> = high.iter().chain(low).map(frame).collect();
    let lines = frames
        .iter()
        .zip(&wanted)
        .map(|((page, _), frame)| format!("0x{:x},1,0x{:x}\n", page * 4096, frame.0));
    let text: String = lines.collect();
    let file = moving.0.session.join("frames.csv");
    std::fs::write(&file, format!("address,pages,frame\n{text}")).expect("it is ours");
    let (progress, left) = moving.remap(touched(), &format!("exact:{}", file.display()));
    let got: Vec<Frame> = moving.frames(touched()).iter().map(frame).collect();
    let right = got.iter().zip(&wanted).filter(|(a, b)| a == b).count();
    // The kernel may have moved some since they were looked up.
    assert!(
        right + 8 >= got.len(),
        "{right} of {}: {progress:?} {left:?}",
        got.len()
    );
    moving.0.end();
}

#[test]
fn what_cannot_be_moved_is_listed_and_stays() {
    if !process::is_root() {
        return skip("only root may see frames");
    }
    let mut moving = Moving::start(&setting::KERNEL_FRAMES);
    moving.obey("protect");
    let reasons = |left: &[Left]| -> Vec<Reason> { left.iter().map(|left| left.reason).collect() };
    let before = moving.frames(first_mib());
    let (progress, left) = moving.remap(first_mib(), "colour");
    assert!(
        reasons(&left).iter().all(|r| *r == Reason::Protected),
        "{left:?}"
    );
    let pages: u64 = left.iter().map(|left| left.range.len().to_pages().0).sum();
    assert_eq!(pages + progress.kept.0, MIB / 4096);
    assert_eq!(moving.frames(first_mib()), before);
    moving.obey("open");
    moving.obey("fork");
    // What a child has as well is copied, and the child keeps what it has.
    let (_, left) = moving.remap(first_mib(), "colour");
    assert_eq!(left, []);
    assert_eq!(moving.wrong(first_mib(), own_colour), [0; 0]);
    moving.obey("reap");
    let nowhere = AddrRange::new(VirtAddr(0x1000), Bytes(0x3000));
    let (_, left) = moving.remap(nowhere, "colour");
    let all = Left {
        range: nowhere,
        reason: Reason::Foreign,
    };
    assert_eq!(left, [all]);
    moving.0.end();
}

#[test]
fn requests_that_cannot_be_served_change_nothing() {
    let moving = Moving::start(&setting::KERNEL_FRAMES);
    for line in [
        "remap",
        "remap 1000-2000",
        "remap 1000-2000 12 best",
        "remap 1000-2000 12 exact:/nowhere/frames.csv",
        "remap 1000-2000 12 modulo:7",
    ] {
        assert_ne!(moving.ask(line), DONE, "{line}");
    }
    assert_eq!(
        moving.ask("remap-progress").parse(),
        Ok(Progress::default())
    );
    moving.0.end();
    // More than a program must ask for before the library begins.
    let without = Held::start(&setting::RESERVE, "fill", "32");
    let line = "remap 1000-2000 12 colour";
    let answer = control::ask(&without.control(), line, PATIENCE, || true);
    let answer = answer.expect("the process answers");
    assert!(answer.contains("--frames default"), "{answer}");
    without.end();
}
