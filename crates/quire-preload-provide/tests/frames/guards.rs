//! First writes, however they come: each page gets its frame, and nothing that was
//! written is lost. Reads take no frame.

use std::collections::BTreeMap;

use quire_core::units::{AddrRange, VirtAddr};
use quire_linux::sysinfo::read_stat_file;

use super::{COLOURS, pages_of};
use crate::harness::held::Held;
use crate::harness::setting::{self, Setting};
use crate::harness::{process, skip};

/// The program `contend` when it is done: where its memory is, and how much was taken by
/// reads.
fn contend(setting: &Setting) -> (Held, BTreeMap<String, AddrRange>, u64) {
    let mut held = Held::launch(setting, "contend", "");
    let (mut ranges, mut taken) = (BTreeMap::new(), 0);
    for _ in 0..4 {
        let line = held.line();
        let words: Vec<&str> = line.split_whitespace().collect();
        if words[0] == "taken" {
            taken = words[1].parse().expect("a number");
            continue;
        }
        let at = |n: usize| VirtAddr(u64::from_str_radix(words[n], 16).expect("an address"));
        let range = AddrRange {
            start: at(1),
            end: at(2),
        };
        ranges.insert(words[0].to_owned(), range);
    }
    held.hear("ready");
    (held, ranges, taken)
}

#[test]
fn first_writes_that_race_keep_their_contents_and_get_their_frames() {
    for setting in [&setting::COLOUR, &setting::MODULO, &setting::BINHOP] {
        let (held, ranges, taken) = contend(setting);
        assert!(
            taken < 1 << 20,
            "{}: reads took {taken} bytes",
            setting.name
        );
        // Written before they were guarded, or not: none is the kernel's in the end.
        let stat = read_stat_file(&held.page()).expect("the process runs");
        assert_eq!(stat.totals.frames_left, 0, "{}", setting.name);
        if !process::is_root() {
            skip("only root may see frames");
        } else if setting.name != setting::BINHOP.name {
            for (name, range) in ranges {
                let pages = pages_of(held.child.id(), range);
                let right = pages.iter().filter(|page| {
                    let of_page = page.number % COLOURS == page.colour;
                    let listed = page.number % 4 + 4 == page.colour;
                    match setting.name == setting::COLOUR.name {
                        true => of_page,
                        false => listed,
                    }
                });
                assert_eq!(right.count(), pages.len(), "{}: {name}", setting.name);
            }
        }
        held.end();
    }
}
