//! `quire completions` and `quire man`: made from the command line's own
//! definition, so that they never differ from it.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;
use crate::failure::{Failure, Outcome};

/// The subcommands that have a page of their own, and the names of the pages.
const PAGES: &[(&str, &str)] = &[
    ("run", "quire-run"),
    ("stat", "quire-stat"),
    ("top", "quire-top"),
    ("set", "quire-set"),
    ("attach", "quire-attach"),
    ("tlb", "quire-tlb"),
    ("cache", "quire-cache"),
    ("map", "quire-map"),
    ("remap", "quire-remap"),
    ("bench", "quire-bench"),
    ("plan", "quire-plan"),
    ("tune", "quire-tune"),
    ("perf-map", "quire-perf-map"),
    ("report", "quire-report"),
    ("compare", "quire-compare"),
    ("serve", "quire-serve"),
    ("object", "quire-object"),
    ("dsm", "quire-dsm"),
    ("doctor", "quire-doctor"),
    ("completions", "quire-completions"),
    ("man", "quire-man"),
];

/// Prints completions for a shell.
pub fn completions(shell: Shell) -> Outcome<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "quire", &mut text);
    Ok(io::stdout().write_all(&text)?)
}

/// Prints the main page, or writes all pages into `dir`.
pub fn man(dir: Option<&Path>) -> Outcome<()> {
    let Some(dir) = dir else {
        return Ok(io::stdout().write_all(&page(main_command())?)?);
    };
    let refused = |error: io::Error| {
        let dir = dir.display();
        Failure::bad_usage(format!(
            "cannot write into {dir}: {error}; name a directory that you may write to"
        ))
    };
    fs::create_dir_all(dir).map_err(refused)?;
    let main = main_command();
    for (name, full) in PAGES.iter().copied() {
        let Some(sub) = main.find_subcommand(name) else {
            continue;
        };
        let sub = sub
            .clone()
            .name(full)
            .bin_name(format!("quire {name}"))
            .display_name(full)
            .version(env!("CARGO_PKG_VERSION"));
        fs::write(dir.join(format!("{full}.1")), page(sub)?).map_err(refused)?;
    }
    fs::write(dir.join("quire.1"), page(main)?).map_err(refused)
}

/// The command as the pages describe it: `quire help` has no page.
fn main_command() -> clap::Command {
    Cli::command().disable_help_subcommand(true)
}

/// A page in the order of sections that manual pages have. The text after the
/// options becomes sections of its own, printed as it stands.
fn page(command: clap::Command) -> io::Result<Vec<u8>> {
    let after = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let has_subcommands = command.has_subcommands();
    let man = Man::new(command);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_subcommands {
        man.render_subcommands_section(&mut text)?;
    }
    for paragraph in after.split("\n\n") {
        let (title, body) = paragraph.split_once(":\n").unwrap_or(("NOTES", paragraph));
        writeln!(text, ".SH {title}\n.nf\n{}\n.fi", escape(body))?;
    }
    Ok(text)
}

/// Text as roff prints it unchanged.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = text.lines().map(|line| match line.chars().next() {
        Some('.' | '\'') => format!("\\&{line}"),
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}
