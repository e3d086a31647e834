//! `quire object check`: reads everything in a store, and names what is damaged.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

use quire_dsm::store::{self, Damage, Report};
use serde_json::{Value, json};

use crate::failure::{Failure, Outcome};
use crate::progress::LateBar;

/// Looks at a store that no server has open. Nothing is changed.
pub fn check(directory: &Path, in_json_form: bool) -> Outcome<()> {
    let mut bar = LateBar::new("{spinner} {pos} pages");
    let mut pages = 0;
    let report = store::check_with(directory, &mut || {
        pages += 1;
        bar.at(pages, pages);
    });
    drop(bar);
    let report = report.map_err(|error| Failure::bad_usage(error.to_string()))?;
    let mut stdout = io::stdout().lock();
    if in_json_form {
        serde_json::to_writer_pretty(&mut stdout, &in_json(&report))?;
        writeln!(stdout)?;
    } else {
        in_words(&mut stdout, &report)?;
    }
    match report.damage.len() {
        0 => Ok(()),
        places => Err(Failure::system(format!(
            "{} is damaged in {places} {}: bring it back from a copy{}",
            directory.display(),
            if places == 1 { "place" } else { "places" },
            otherwise(&report.damage),
        ))),
    }
}

/// What else helps: a server can start with objects of which pages are damaged, and remove them.
fn otherwise(damage: &[Damage]) -> String {
    let objects: Option<BTreeSet<&str>> = damage.iter().map(|it| it.object.as_deref()).collect();
    let Some(objects) = objects else {
        return String::new();
    };
    let objects: Vec<&str> = objects.into_iter().collect();
    format!(
        ", or start a server with it, remove what is damaged (quire object rm {}), and make it again",
        objects.join(" ")
    )
}

fn in_words(to: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(
        to,
        "{} objects with {} pages, and {} pages in the log",
        report.objects, report.pages, report.logged
    )?;
    if let Some(at) = report.torn {
        writeln!(
            to,
            "the last batch of the log, from byte {at} on, was never finished: nobody was told \
             that it was written"
        )?;
    }
    for line in Damage::lines(&report.damage) {
        writeln!(to, "damaged: {line}")?;
    }
    Ok(())
}

fn in_json(report: &Report) -> Value {
    let damage = |damage: &Damage| {
        json!({
            "object": damage.object,
            "file": damage.file,
            "first_byte": damage.bytes.start,
            "bytes": damage.bytes.end - damage.bytes.start,
            "what": damage.words(),
        })
    };
    json!({
        "objects": report.objects,
        "pages": report.pages,
        "pages_in_log": report.logged,
        "torn_from_byte": report.torn,
        "damage": report.damage.iter().map(damage).collect::<Vec<_>>(),
    })
}
