//! The tables of `quire stat`.

use std::io::{self, Write};

use quire_core::pool::GIGAPAGE;
use quire_core::stat::{Privilege, ProcessStat, RegionStat};
use quire_core::units::{BASE_PAGE, Bytes, PageCount, SUPERPAGE};

use super::frames;
use super::machine::Machine;
use crate::table::Table;

/// Ranges of a strategy that are shown.
const RANGES: usize = 8;

/// Writes the table of processes, then each one's regions and notes.
pub fn write_processes(out: &mut impl Write, processes: &[ProcessStat]) -> io::Result<()> {
    if processes.is_empty() {
        writeln!(
            out,
            "No managed process is known (from 64 MiB on). Try `quire run -- PROGRAM`.\n"
        )?;
        return Ok(());
    }
    let mut table = Table::new(
        4,
        &[
            "PID",
            "COMMAND",
            "POLICY",
            "FAULTS",
            "MAPPED",
            "POPULATED",
            "RESERVED",
            "SUPERPAGES",
            "PEAK",
            "PROMOTED",
            "DEMOTED",
            "PREEMPTED",
            "FAILED",
            "AHEAD",
        ],
    );
    for stat in processes {
        table.row(process_row(stat));
    }
    table.write(out, 0)?;
    writeln!(out)?;
    processes
        .iter()
        .try_for_each(|stat| write_details(out, stat))
}

fn process_row(stat: &ProcessStat) -> Vec<String> {
    let t = &stat.totals;
    vec![
        stat.pid.to_string(),
        printable(&stat.comm),
        stat.policy.to_string(),
        stat.privilege.name().to_owned(),
        Bytes(t.mapped_bytes).to_string(),
        Bytes(t.populated_bytes).to_string(),
        Bytes(t.reserved_bytes).to_string(),
        t.superpages.to_string(),
        t.superpages_peak.to_string(),
        t.promotions.to_string(),
        t.demotions.to_string(),
        t.preemptions.to_string(),
        t.failed_reservations.to_string(),
        t.pool_ready.to_string(),
    ]
}

/// A command name without what could drive a terminal.
pub fn printable(name: &str) -> String {
    name.replace(char::is_control, "?")
}

fn write_details(out: &mut impl Write, stat: &ProcessStat) -> io::Result<()> {
    let is_advised = stat.privilege == Privilege::Advised;
    let has_more = !stat.notes.is_empty() || !stat.strategies.is_empty() || is_advised;
    if stat.regions.is_empty() && !has_more {
        return Ok(());
    }
    writeln!(out, "Process {} ({}):", stat.pid, printable(&stat.comm))?;
    if !stat.regions.is_empty() {
        let mut table = Table::new(
            3,
            &[
                "REGION",
                "KIND",
                "POLICY",
                "MAPPED",
                "POPULATED",
                "RESERVED",
                "SUPERPAGES",
                "PROMOTED",
                "DEMOTED",
                "PREEMPTED",
                "FAILED",
            ],
        );
        for region in &stat.regions {
            table.row(region_row(region));
        }
        table.write(out, 2)?;
    }
    if is_advised {
        let t = &stat.totals;
        let (advised, refused) = (t.advised, t.refused);
        writeln!(
            out,
            "  {advised} extents advised at the first touch, {refused} refused"
        )?;
    }
    if stat.totals.gigapages > 0 {
        let pages = stat.totals.gigapages;
        let superpages = pages * (GIGAPAGE / SUPERPAGE);
        writeln!(out, "  {superpages} of the superpages are {pages} of 1 GiB")?;
    }
    if !stat.strategies.is_empty() {
        write_frames(out, stat)?;
    }
    for remark in stat.remarks() {
        writeln!(out, "  note: {remark}")?;
    }
    writeln!(out)
}

/// Writes what strategies gave, by addresses.
fn write_frames(out: &mut impl Write, stat: &ProcessStat) -> io::Result<()> {
    let header = [
        "FRAMES FOR",
        "STRATEGY",
        "ADDRESSES",
        "CHOSEN",
        "OTHER",
        "LEFT",
    ];
    let mut table = Table::new(3, &header);
    for strategy in frames::strategies(stat) {
        let places = frames::places(strategy.counts, frames::ranges(strategy), RANGES);
        for (n, (place, counts)) in places.into_iter().enumerate() {
            let first = |text: &str| match n {
                0 => printable(text),
                _ => String::new(),
            };
            table.row(vec![
                first(&strategy.target),
                first(&strategy.strategy),
                place,
                counts.chosen.0.to_string(),
                counts.other.0.to_string(),
                counts.left.0.to_string(),
            ]);
        }
    }
    table.write(out, 2)?;
    let stock = PageCount(stat.totals.frames_stocked).to_bytes();
    writeln!(
        out,
        "  frames: {} reports of touches, {stock} in stock",
        stat.totals.frame_faults
    )
}

fn region_row(region: &RegionStat) -> Vec<String> {
    vec![
        region.range.to_string(),
        region.kind.name().to_owned(),
        region.policy.to_string(),
        region.mapped_bytes.to_string(),
        region.populated_bytes.to_string(),
        region.reserved_bytes.to_string(),
        region.superpages.to_string(),
        region.promotions.to_string(),
        region.demotions.to_string(),
        region.preemptions.to_string(),
        region.failed_reservations.to_string(),
    ]
}

/// Writes the free blocks by size, and the memory pressure.
pub fn write_machine(out: &mut impl Write, machine: &Machine) -> io::Result<()> {
    if machine.free_blocks.is_empty() {
        writeln!(
            out,
            "Free blocks: the kernel does not tell (/proc/buddyinfo)"
        )?;
    } else {
        let mut table = Table::new(1, &[]);
        let sizes = (0..machine.free_blocks.len()).map(|order| Bytes(BASE_PAGE << order));
        let counts = machine.free_blocks.iter().map(u64::to_string);
        let head = ["Block size".to_owned()];
        table.row(
            head.into_iter()
                .chain(sizes.map(|s| s.to_string()))
                .collect(),
        );
        table.row(
            ["Free blocks".to_owned()]
                .into_iter()
                .chain(counts)
                .collect(),
        );
        table.write(out, 0)?;
    }
    match &machine.pressure {
        Some(psi) => writeln!(
            out,
            "Memory pressure over 10 s: some {:.2} %, full {:.2} %",
            psi.some.avg10, psi.full.avg10
        ),
        None => writeln!(
            out,
            "Memory pressure: the kernel does not tell (boot with psi=1)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use quire_core::config::Policy;
    use quire_core::stat::{Counter, RegionKind, StatPage};
    use quire_core::units::{AddrRange, VirtAddr};

    use super::*;

    #[test]
    fn an_advised_process_is_shown_as_such() {
        let page = Box::new(StatPage::default());
        page.identify(7, 9, "solver", Policy::Adaptive);
        page.set_privilege(Privilege::Advised);
        page.add(Counter::Advised, 496);
        page.add(Counter::Refused, 2);
        let kinds = [RegionKind::Stack, RegionKind::Shared, RegionKind::File];
        let region = |(n, kind): (usize, RegionKind)| {
            let range = AddrRange::new(VirtAddr((n as u64 + 1) << 30), Bytes::mib(64));
            RegionStat::untouched(range, kind, Policy::Adaptive)
        };
        page.set_regions(kinds.into_iter().enumerate().map(region));
        let mut text = Vec::new();
        write_processes(&mut text, &[page.read().unwrap()]).unwrap();
        let text = String::from_utf8(text).unwrap();
        for part in [
            " advised ",
            "  496 extents advised at the first touch, 2 refused\n",
            " stack ",
            " shared ",
            " file ",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
