//! `quire cache`: the machine's caches, and the colours that pages have in them.

use std::io::{self, Write};

use quire_core::frames::cache::{self, Cache, IndexedBy};
use quire_core::frames::colour::Colours;
use quire_core::units::Bytes;
use quire_linux::sysinfo::caches;
use serde::Serialize;

use crate::args::CacheArgs;
use crate::failure::{Failure, Outcome};
use crate::table::Table;

/// Prints the caches, changed as the user says.
pub fn cache(options: &CacheArgs) -> Outcome<()> {
    let mut caches = caches::of_this_machine();
    cache::apply(&mut caches, &options.set)
        .map_err(|error| Failure::bad_usage(format!("bad --set: {error}")))?;
    let findings = Findings::new(&caches, caches::is_virtual_machine());
    let mut out = io::BufWriter::new(io::stdout().lock());
    if options.json {
        serde_json::to_writer_pretty(&mut out, &findings)?;
        writeln!(out)?;
    } else {
        findings.write(&mut out)?;
    }
    Ok(out.flush()?)
}

/// The colours of this machine, which must be known.
///
/// # Errors
/// When they are not.
pub fn needed_colours() -> Outcome<Colours> {
    own_colours().ok_or_else(|| {
        Failure::bad_usage(
            "this machine has no cache whose colours are known: `quire cache` says why; give the address bits with --colour-bits",
        )
    })
}

/// The colours of the cache of this machine that page colouring is for; nothing where
/// no cache has any.
pub fn own_colours() -> Option<Colours> {
    caches::own_colours()
}

/// Everything that is said.
#[derive(Debug, Serialize)]
struct Findings<'a> {
    version: u32,
    /// Whether a hypervisor stands between this system and the machine.
    virtual_machine: bool,
    caches: Vec<Row<'a>>,
    /// The cache that page colouring uses.
    colour_cache: Option<Chosen>,
}

/// One cache.
#[derive(Debug, Serialize)]
struct Row<'a> {
    name: String,
    #[serde(flatten)]
    cache: &'a Cache,
    size_bytes: Bytes,
    indexed_by: IndexedBy,
    /// How many colours pages of 4 KiB have; nothing where colours mean nothing.
    colours: Option<u32>,
    /// The address bits that they are made of.
    colour_bits: Option<Colours>,
    /// Why page colouring does not use this cache.
    unused_because: Option<String>,
}

/// The cache that page colouring uses.
#[derive(Debug, Serialize)]
struct Chosen {
    name: String,
    level: u32,
    colours: u32,
    colour_bits: Colours,
    /// A block of so many bytes, aligned to its size, has frames of all colours.
    period_bytes: Bytes,
}

impl Findings<'_> {
    fn new(caches: &[Cache], virtual_machine: bool) -> Findings<'_> {
        let chosen = cache::colour_cache(caches);
        let rows = caches.iter().map(|cache| Row::new(cache, chosen));
        Findings {
            version: 1,
            virtual_machine,
            caches: rows.collect(),
            colour_cache: chosen.and_then(Chosen::new),
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        if self.caches.is_empty() {
            return writeln!(
                out,
                "Neither the kernel nor the processor describes any cache. Give one: quire cache --set level=2,sets=1024,ways=16,line=64"
            );
        }
        self.write_table(out)?;
        writeln!(out)?;
        match &self.colour_cache {
            Some(chosen) => writeln!(
                out,
                "Page colouring uses {}: {} colours, from bits {} of the physical address.",
                chosen.name, chosen.colours, chosen.colour_bits
            )?,
            None => writeln!(out, "Page colouring has no cache to use.")?,
        }
        self.write_unused(out)?;
        if self.virtual_machine {
            warn_of_hypervisor(out, self.colour_cache.as_ref())?;
        }
        Ok(())
    }

    fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        let header = [
            "CACHE",
            "INDEXED BY",
            "INDEX",
            "SIZE",
            "LINE",
            "WAYS",
            "SETS",
            "CPUS",
            "COLOURS",
        ];
        let mut table = Table::new(3, &header);
        for row in &self.caches {
            table.row(row.cells());
        }
        table.write(out, 0)
    }

    /// A line for each reason why caches are not used.
    fn write_unused(&self, out: &mut impl Write) -> io::Result<()> {
        let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
        for row in &self.caches {
            let Some(why) = row.unused_because.as_deref() else {
                continue;
            };
            match groups.iter_mut().find(|group| group.0 == why) {
                Some(group) => group.1.push(&row.name),
                None => groups.push((why, vec![&row.name])),
            }
        }
        for (why, names) in groups {
            writeln!(out, "Not {}: {why}.", names.join(", "))?;
        }
        Ok(())
    }
}

impl<'a> Row<'a> {
    fn new(cache: &'a Cache, chosen: Option<&Cache>) -> Row<'a> {
        let is_chosen = chosen.is_some_and(|chosen| std::ptr::eq(chosen, cache));
        let colours = cache.colours().ok();
        Row {
            name: cache.name(),
            cache,
            size_bytes: cache.shape.size(),
            indexed_by: cache.indexed_by(),
            colours: colours.as_ref().map(Colours::count),
            colour_bits: colours,
            unused_because: (!is_chosen).then(|| reason(cache, chosen)),
        }
    }

    fn cells(&self) -> Vec<String> {
        let or_dash =
            |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let shape = self.cache.shape;
        vec![
            self.name.clone(),
            self.indexed_by.name().to_owned(),
            self.cache.index.to_string(),
            self.size_bytes.to_string(),
            shape.line().0.to_string(),
            shape.ways().to_string(),
            shape.sets().to_string(),
            or_dash(self.cache.shared_by),
            or_dash(self.colours),
        ]
    }
}

/// Why page colouring does not use a cache.
fn reason(cache: &Cache, chosen: Option<&Cache>) -> String {
    match (cache.colours(), chosen) {
        (Err(why @ (cache::NoColours::Hashed | cache::NoColours::Unknown)), _) => format!(
            "{why}; if you know the address bits, give them, as in --set level={},colour-bits=12^18,13^19",
            cache.level
        ),
        (Err(why), _) => why.to_string(),
        (Ok(colours), _) if colours.count() == 1 => {
            "a way is no larger than a page, so all pages have one colour".to_owned()
        }
        (Ok(_), Some(chosen)) if cache.holds_data() => {
            format!("{} is larger, or the same", chosen.name())
        }
        (Ok(_), _) => "it holds instructions only".to_owned(),
    }
}

impl Chosen {
    fn new(cache: &Cache) -> Option<Chosen> {
        let colour_bits = cache.colours().ok()?;
        Some(Chosen {
            name: cache.name(),
            level: cache.level,
            colours: colour_bits.count(),
            period_bytes: Bytes(1 << colour_bits.period_bits()),
            colour_bits,
        })
    }
}

/// What a guest knows of caches, and of their colours.
fn warn_of_hypervisor(out: &mut impl Write, chosen: Option<&Chosen>) -> io::Result<()> {
    writeln!(
        out,
        "Warning: this is a virtual machine, and what is said of caches here is what the hypervisor passes on."
    )?;
    let Some(chosen) = chosen else {
        return Ok(());
    };
    writeln!(
        out,
        "Its frame numbers are not those of the host: its colours are those of the real cache only where the host backs its memory with pages of at least {}.",
        host_page(chosen.period_bytes)
    )
}

/// The smallest page of a host in which a block of `period` bytes is in one piece.
fn host_page(period: Bytes) -> String {
    const LARGEST: Bytes = Bytes(1 << 30);
    let sizes = [Bytes::mib(2), LARGEST];
    let page = sizes.into_iter().find(|size| *size >= period);
    page.unwrap_or(period).to_string()
}

#[cfg(test)]
mod tests {
    use quire_core::frames::cache::{Index, Kind, Shape};

    use super::*;

    fn unified(level: u32, sets: u32, index: Index) -> Cache {
        Cache {
            level,
            kind: Kind::Unified,
            shape: Shape::new(sets, 16, 64).unwrap(),
            index,
            shared_by: None,
        }
    }

    fn text(caches: &[Cache], virtual_machine: bool) -> String {
        let mut out = Vec::new();
        let findings = Findings::new(caches, virtual_machine);
        findings.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_hashed_last_level_is_explained() {
        let caches = [
            Cache {
                kind: Kind::Data,
                ..unified(1, 64, Index::Plain)
            },
            unified(2, 1024, Index::Plain),
            unified(3, 32768, Index::Hashed),
        ];
        let expected = "\
CACHE  INDEXED BY        INDEX     SIZE  LINE  WAYS   SETS  CPUS  COLOURS
L1d    page offset       plain   64 KiB    64    16     64     -        1
L2     physical address  plain    1 MiB    64    16   1024     -       16
L3     physical address  hashed  32 MiB    64    16  32768     -        -

Page colouring uses L2: 16 colours, from bits 12,13,14,15 of the physical address.
Not L1d: a way is no larger than a page, so all pages have one colour.
Not L3: its index is a hash that the processor does not disclose, so colours mean nothing; if you know the address bits, give them, as in --set level=3,colour-bits=12^18,13^19.
";
        assert_eq!(text(&caches, false), expected);
        let guest = text(&caches, true);
        assert!(guest.starts_with(expected), "{guest}");
        assert!(guest.contains("pages of at least 2 MiB"), "{guest}");
    }

    #[test]
    fn smaller_caches_yield() {
        let bits = Index::Given("12^22,13^30".parse().unwrap());
        let caches = [unified(2, 1024, Index::Plain), unified(3, 2048, bits)];
        let text = text(&caches, true);
        assert!(
            text.contains("uses L3: 4 colours, from bits 12^22,13^30"),
            "{text}"
        );
        assert!(text.contains("Not L2: L3 is larger"), "{text}");
        assert!(text.contains("at least 2 GiB"), "{text}");
    }

    #[test]
    fn nothing_to_use_is_said() {
        let text = |caches: &[Cache]| text(caches, true);
        assert!(text(&[]).contains("--set level=2,sets=1024,ways=16,line=64"));
        let only = text(&[unified(1, 256, Index::Plain)]);
        assert!(only.contains("has no cache to use.\nNot L1: "), "{only}");
        assert!(
            only.contains("Warning") && !only.contains("frame numbers"),
            "{only}"
        );
    }
}
