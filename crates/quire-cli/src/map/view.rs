//! What `quire map` tells: the report, as JSON and as tables for people.

use std::io::{self, Write};

use quire_core::frames::colour::Colours;
use quire_core::frames::mapping::tally::{ColourCounts, Tally};
use quire_core::frames::mapping::{Mapped, Run};
use quire_core::units::AddrRange;
use serde::{Serialize, Serializer};

use crate::stat::printable;
use crate::table::Table;

/// More colours than this are not listed one by one.
const LISTED: usize = 64;
/// The length of the bar of the most frequent colour, in characters.
const BAR: u64 = 40;

/// The mapping of a process, with what it comes to.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    pid: u32,
    /// The address bits that make a colour.
    colours: &'a Colours,
    totals: Tally,
    /// Nothing where no frame is known.
    pages_by_colour: Option<ColourCounts>,
    mappings: Vec<Entry<'a>>,
}

/// One mapping.
#[derive(Debug, Serialize)]
struct Entry<'a> {
    #[serde(flatten)]
    range: AddrRange,
    name: &'a str,
    #[serde(flatten)]
    tally: Tally,
    runs: Lines<'a>,
}

/// Runs with their colours, which are found as they are written: there may be millions.
#[derive(Debug)]
struct Lines<'a> {
    runs: &'a [Run],
    colours: &'a Colours,
}

impl Serialize for Lines<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.runs.iter().map(|run| run.line(self.colours)))
    }
}

impl<'a> Report<'a> {
    /// Counts what there is.
    pub fn new(pid: u32, mappings: &'a [Mapped], colours: &'a Colours) -> Report<'a> {
        let all = || mappings.iter().flat_map(Mapped::runs);
        let counts = ColourCounts::of(all(), colours);
        let entry = |mapped: &'a Mapped| Entry {
            range: mapped.range,
            name: &mapped.name,
            tally: Tally::of(mapped.runs()),
            runs: Lines {
                runs: mapped.runs(),
                colours,
            },
        };
        Report {
            pid,
            colours,
            totals: Tally::of(all()),
            pages_by_colour: (counts.all().0 > 0).then_some(counts),
            mappings: mappings.iter().map(entry).collect(),
        }
    }

    /// Whether pages are there, but their frames are not told.
    pub fn frames_are_hidden(&self) -> bool {
        self.totals.present_pages.0 > 0 && self.pages_by_colour.is_none()
    }
}

/// Writes a line for each mapping, the colours, and the totals.
pub fn write(out: &mut impl Write, report: &Report<'_>) -> io::Result<()> {
    let header = [
        "ADDRESSES",
        "NAME",
        "PRESENT",
        "RUNS",
        "LONGEST",
        "SUPERPAGES",
        "SWAPPED",
        "ZERO",
    ];
    let mut table = Table::new(2, &header);
    for Entry {
        range, name, tally, ..
    } in &report.mappings
    {
        let name = match *name {
            "" => "-".to_owned(),
            name => printable(name),
        };
        table.row([vec![range.to_string(), name], numbers(tally)].concat());
    }
    let total = vec!["total".to_owned(), String::new()];
    table.row([total, numbers(&report.totals)].concat());
    table.write(out, 0)?;
    writeln!(
        out,
        "\nPages of 4 KiB. Present: {}",
        report.totals.present_pages.to_bytes()
    )?;
    match &report.pages_by_colour {
        Some(counts) => write_colours(out, counts, report.colours),
        None => Ok(()),
    }
}

fn numbers(tally: &Tally) -> Vec<String> {
    let share = tally.superpage_share();
    vec![
        tally.present_pages.0.to_string(),
        tally.present_runs.to_string(),
        tally.longest_run_pages.0.to_string(),
        share.map_or_else(|| "-".to_owned(), |share| percent(share, 0)),
        tally.swapped_pages.0.to_string(),
        tally.zero_pages.0.to_string(),
    ]
}

fn percent(share: f64, digits: usize) -> String {
    format!("{:.digits$} %", share * 100.0)
}

fn write_colours(out: &mut impl Write, counts: &ColourCounts, colours: &Colours) -> io::Result<()> {
    let each = counts.each();
    let bits = colours.to_string();
    match bits.as_str() {
        "" => writeln!(out, "\nThe cache has one colour")?,
        bits => writeln!(out, "\n{} colours (address bits {bits})", each.len())?,
    }
    if each.len() <= LISTED {
        let mut table = Table::new(0, &["COLOUR", "PAGES", "SHARE", ""]);
        for (colour, pages) in each.iter().enumerate() {
            let share = *pages as f64 / counts.all().0.max(1) as f64;
            table.row(vec![
                colour.to_string(),
                pages.to_string(),
                percent(share, 1),
                bar(*pages, counts.most()),
            ]);
        }
        table.write(out, 2)?;
    }
    writeln!(
        out,
        "Pages of a colour: at least {}, at most {}, {:.1} on average",
        counts.fewest(),
        counts.most(),
        counts.mean()
    )
}

/// A bar in proportion to the most frequent colour's; any page at all shows. It is as
/// wide as the longest, so that all bars begin in one column.
fn bar(pages: u64, most: u64) -> String {
    let len = (pages * BAR).div_ceil(most.max(1));
    let bar = "#".repeat(len as usize);
    format!("{bar:<width$}", width = BAR as usize)
}

#[cfg(test)]
mod tests {
    use quire_core::frames::mapping::Kind;
    use quire_core::units::{Bytes, Frame, PageCount, VirtAddr};

    use super::*;

    fn mapped(frame: Option<Frame>) -> Mapped {
        let range = AddrRange::new(VirtAddr(0x20_0000), Bytes(4 << 20));
        let mut mapped = Mapped::new(range, "[he\x1bap]");
        let run = |address, pages, frame, page_size, kind| Run {
            address: VirtAddr(address),
            pages: PageCount(pages),
            frame,
            page_size: Bytes(page_size),
            kind,
        };
        mapped.push(run(0x20_0000, 512, frame, 2 << 20, Kind::Anonymous));
        mapped.push(run(0x40_0000, 2, None, 4096, Kind::Swapped));
        mapped.push(run(0x40_2000, 1, frame, 4096, Kind::Anonymous));
        mapped
    }

    fn text(report: &Report<'_>) -> String {
        let mut out = Vec::new();
        write(&mut out, report).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_line_for_each_mapping_and_colour() {
        let colours = Colours::plain(1 << 14);
        let mappings = [mapped(Some(Frame(512)))];
        let report = Report::new(7, &mappings, &colours);
        assert!(!report.frames_are_hidden());
        let text = text(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("ADDRESSES"), "{text}");
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        let expected = ["[he?ap]", "513", "2", "512", "100", "%", "2", "0"];
        assert_eq!(words[1..], expected, "{text}");
        assert!(lines[2].starts_with("total"), "{text}");
        assert!(text.contains("4 colours (address bits 12,13)"), "{text}");
        let full = format!("     0    129  25.1 %  {}\n", "#".repeat(40));
        assert!(text.contains(&full), "{text}");
        assert!(
            text.ends_with("at least 128, at most 129, 128.2 on average\n"),
            "{text}"
        );
    }

    #[test]
    fn many_colours_are_summed_up() {
        let colours = Colours::plain(4096 << 7);
        let mappings = [mapped(Some(Frame(512)))];
        let report = Report::new(7, &mappings, &colours);
        let text = text(&report);
        assert!(
            text.contains("128 colours") && !text.contains('#'),
            "{text}"
        );
        assert!(
            text.contains("at least 4, at most 5, 4.0 on average"),
            "{text}"
        );
    }

    #[test]
    fn hidden_frames_are_null() {
        let (mappings, colours) = ([mapped(None)], Colours::plain(1 << 14));
        let report = Report::new(7, &mappings, &colours);
        assert!(report.frames_are_hidden());
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["pages_by_colour"], serde_json::Value::Null);
        assert_eq!(json["colours"], "12,13");
        let mapping = &json["mappings"][0];
        assert_eq!(mapping["start"], 0x20_0000);
        assert_eq!(mapping["present_pages"], 513);
        assert_eq!(mapping["present_runs"], 2);
        assert_eq!(mapping["runs"].as_array().map(Vec::len), Some(3));
        assert!(mapping["runs"][0]["frame"].is_null() && mapping["runs"][0]["colour"].is_null());
        assert!(!text(&report).contains("colours"));
    }
}
