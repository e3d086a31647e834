//! The runs as a table with commas, for people's own programs and for asking for the
//! same frames or colours again.
//!
//! Addresses and frames are hexadecimal with `0x`, other numbers decimal. What is not
//! known is empty. Fields are quoted where they have to be, with quotes doubled.

use std::borrow::Cow;
use std::io::{self, Write};

use super::{Line, Mapped};
use crate::frames::colour::Colours;

/// The names of the columns.
pub const HEADER: &str = "address,pages,frame,colour,page_size,kind,name";

/// Writes all runs, in order of address.
///
/// # Errors
/// As `write`.
pub fn write<'a>(
    out: &mut impl Write,
    mappings: impl IntoIterator<Item = &'a Mapped>,
    colours: &Colours,
) -> io::Result<()> {
    writeln!(out, "{HEADER}")?;
    for mapping in mappings {
        let name = quoted(&mapping.name);
        for run in mapping.runs() {
            row(out, &run.line(colours), &name)?;
        }
    }
    Ok(())
}

fn row(out: &mut impl Write, line: &Line, name: &str) -> io::Result<()> {
    let Line { run, colour } = line;
    write!(out, "{:#x},{},", run.address.0, run.pages.0)?;
    if let Some(frame) = run.frame {
        write!(out, "{:#x}", frame.0)?;
    }
    write!(out, ",")?;
    if let Some(colour) = colour {
        write!(out, "{}", colour.0)?;
    }
    writeln!(out, ",{},{},{name}", run.page_size.0, run.kind.name())
}

/// A field as it stands in a row.
fn quoted(text: &str) -> Cow<'_, str> {
    if text.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\"")).into();
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{mapped, pages};
    use super::super::{Kind, Run};
    use super::*;
    use crate::units::{AddrRange, Bytes, Frame, PageCount, VirtAddr};

    fn text(mapping: &Mapped) -> String {
        let mut out = Vec::new();
        write(&mut out, [mapping], &Colours::plain(1 << 16)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_in_their_form() {
        let mut mapping = Mapped::new(AddrRange::default(), "/a, \"b\"");
        let run = Run {
            address: VirtAddr(0x7f00_0020_0000),
            pages: PageCount(512),
            frame: Some(Frame(0x1_2a03)),
            page_size: Bytes(2 << 20),
            kind: Kind::Anonymous,
        };
        mapping.push(run);
        mapping.push(Run {
            address: VirtAddr(0x7f00_0060_0000),
            pages: PageCount(3),
            frame: None,
            page_size: Bytes(4096),
            kind: Kind::Swapped,
        });
        let rows = "0x7f0000200000,512,0x12a03,3,2097152,anonymous,\"/a, \"\"b\"\"\"\n\
                    0x7f0000600000,3,,,4096,swapped,\"/a, \"\"b\"\"\"\n";
        assert_eq!(text(&mapping), format!("{HEADER}\n{rows}"));
    }

    /// The runs of a table without quotes.
    fn parse(text: &str) -> Vec<Run> {
        let hex = |field: &str| {
            let digits = field.strip_prefix("0x").unwrap();
            u64::from_str_radix(digits, 16).unwrap()
        };
        let kinds = [
            Kind::Anonymous,
            Kind::File,
            Kind::Shared,
            Kind::Swapped,
            Kind::Zero,
        ];
        let run = |line: &str| {
            let fields: Vec<&str> = line.split(',').collect();
            assert_eq!(fields.len(), 7);
            Run {
                address: VirtAddr(hex(fields[0])),
                pages: PageCount(fields[1].parse().unwrap()),
                frame: (!fields[2].is_empty()).then(|| Frame(hex(fields[2]))),
                page_size: Bytes(fields[4].parse().unwrap()),
                kind: kinds.into_iter().find(|k| k.name() == fields[5]).unwrap(),
            }
        };
        text.lines().skip(1).map(run).collect()
    }

    proptest! {
        #[test]
        fn nothing_is_lost(pages in pages()) {
            let mapping = mapped(VirtAddr(0x7fff_0000_0000), &pages);
            prop_assert_eq!(parse(&text(&mapping)), mapping.runs());
        }
    }
}
