//! Pictures of made-up processes.

use quire_core::frames::mapping::{Kind, Run};
use quire_core::units::{BASE_PAGE, Bytes, Frame};

use super::layout::MOST_PIXELS;
use super::palette::{HIDDEN, SWAPPED, ZERO};
use super::*;

const MIB: u64 = 1 << 20;

fn run(page: u64, pages: u64, frame: Option<u64>, kind: Kind) -> Run {
    Run {
        address: VirtAddr(page * BASE_PAGE),
        pages: PageCount(pages),
        frame: frame.map(Frame),
        page_size: Bytes(BASE_PAGE),
        kind,
    }
}

/// A mapping of `pages` pages from page `first` on.
fn mapped(first: u64, pages: u64, runs: &[Run]) -> Mapped {
    let bytes = PageCount(pages).to_bytes();
    let range = AddrRange::new(VirtAddr(first * BASE_PAGE), bytes);
    let mut mapped = Mapped::new(range, "");
    runs.iter().for_each(|run| mapped.push(*run));
    mapped
}

fn pixel(picture: &Picture, x: u32, y: u32) -> Colour {
    let at = 3 * (y * picture.width + x) as usize;
    picture.pixels[at..at + 3].try_into().unwrap()
}

/// The pixel in the middle of a cell, where rows have no gaps between them.
fn cell(picture: &Picture, column: u32, row: u32) -> Colour {
    let side = picture.layout.side;
    pixel(picture, column * side + side / 2, row * side + side / 2)
}

fn check(picture: &Picture) {
    let (width, height) = (u64::from(picture.width), u64::from(picture.height));
    assert_eq!(picture.pixels.len() as u64, 3 * width * height);
    assert!(width * height <= MOST_PIXELS, "{width} x {height}");
}

#[test]
fn each_page_is_a_block_of_its_colour() {
    let colours = Colours::plain(1 << 14);
    let super_run = Run {
        page_size: Bytes(2 * MIB),
        ..run(512, 512, Some(1024), Kind::Anonymous)
    };
    let runs = [
        run(450, 2, Some(1), Kind::Anonymous),
        run(452, 1, None, Kind::Swapped),
        run(453, 1, None, Kind::Zero),
        run(454, 1, None, Kind::File),
        super_run,
    ];
    let picture = draw(&[mapped(449, 1000, &runs)], &colours);
    check(&picture);
    // Rows of 64 pages: that of page 450, and eight for the superpage.
    assert_eq!((picture.width, picture.height), (512, 9 * 8));
    let look = |page: u64| cell(&picture, (page % 64) as u32, (page / 64 - 7) as u32);
    assert_eq!(look(448), OUTSIDE);
    assert_eq!(look(449), ABSENT);
    let palette = Palette::new(&colours);
    assert_eq!(look(450), palette.of(&runs[0], 0));
    assert_eq!(look(451), palette.of(&runs[0], 1));
    assert_ne!(look(450), look(451));
    assert_eq!(look(452), SWAPPED);
    assert_eq!(look(453), ZERO);
    assert_eq!(look(454), HIDDEN);
    assert_eq!(look(455), ABSENT);
    assert_eq!(look(512), palette.of(&super_run, 0));
    assert_eq!(look(512), look(516));
    let base_page = run(0, 1, Some(1024), Kind::Anonymous);
    assert_ne!(look(512), palette.of(&base_page, 0));
    assert!(
        picture
            .to_string()
            .ends_with("a page for each 8 x 8, 256 KiB in a row")
    );
}

#[test]
fn mappings_and_stretches_have_gaps_between_them() {
    let colours = Colours::plain(1 << 14);
    let there = |page| run(page, 1, Some(page), Kind::Anonymous);
    let first = mapped(0, 1 << 30, &[there(1), there(65), there(6400)]);
    let second = mapped(1 << 30, 8, &[there(1 << 30)]);
    let nothing = mapped(1 << 31, 1 << 20, &[]);
    let picture = draw(&[first, second, nothing], &colours);
    check(&picture);
    assert_eq!(picture.height, 4 * 8 + 2 * GAP);
    assert_eq!(pixel(&picture, 0, 2 * 8), OUTSIDE);
    let palette = Palette::new(&colours);
    let begin = palette.of(&there(6400), 0);
    assert_eq!(pixel(&picture, 0, 2 * 8 + GAP), begin);
    // Behind the end of the second mapping.
    let last = picture.height - 1;
    assert_eq!(pixel(&picture, 7 * 8, last), ABSENT);
    assert_eq!(pixel(&picture, 8 * 8, last), OUTSIDE);
}

#[test]
fn nothing_at_all_is_a_picture_too() {
    for mappings in [vec![], vec![mapped(0, 10, &[])]] {
        let picture = draw(&mappings, &Colours::plain(1 << 16));
        check(&picture);
        assert!(picture.height > 0);
        assert!(encode(&picture).is_ok());
    }
}

#[test]
fn much_memory_is_grouped() {
    let colours = Colours::plain(1 << 16);
    let large =
        |page: u64, pages| mapped(page, pages, &[run(page, pages, Some(16), Kind::Anonymous)]);
    let medium = draw(&[large(0, 100_000)], &colours);
    check(&medium);
    assert_eq!(medium.layout.group, 1);
    let picture = draw(&[large(0, 2 << 20)], &colours);
    check(&picture);
    assert!(picture.layout.group > 1, "{picture}");
    assert!(cell(&picture, 0, 0) != ABSENT);
}

#[test]
fn many_small_mappings_share_rows() {
    let colours = Colours::plain(1 << 16);
    let small = |n: u64| mapped(n * 5000, 1, &[run(n * 5000, 1, Some(n), Kind::Anonymous)]);
    let mappings: Vec<Mapped> = (0..60_000).map(small).collect();
    let picture = draw(&mappings, &colours);
    check(&picture);
    let seen: BTreeMap<Colour, usize> =
        picture
            .pixels
            .chunks(3)
            .fold(BTreeMap::new(), |mut seen, pixel| {
                *seen.entry(pixel.try_into().unwrap()).or_default() += 1;
                seen
            });
    assert!(seen.len() > 16, "{}", seen.len());
}

#[test]
fn the_file_is_the_picture() {
    let run = run(3, 500, Some(7), Kind::Shared);
    let picture = draw(&[mapped(0, 600, &[run])], &Colours::plain(1 << 16));
    let file = encode(&picture).unwrap();
    let mut reader = png::Decoder::new(std::io::Cursor::new(file))
        .read_info()
        .unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.height), (picture.width, picture.height));
    assert_eq!(pixels, picture.pixels);
}
