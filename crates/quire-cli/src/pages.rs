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

/// Prints completions for a shell.
pub fn completions(shell: Shell) -> Outcome<()> {
    let mut text = Vec::new();
    let mut command = without_hidden(&Cli::command());
    clap_complete::generate(shell, &mut command, "quire", &mut text);
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
    pages(&main_command(), &mut |name, page| {
        fs::write(dir.join(format!("{name}.1")), page).map_err(refused)
    })
}

/// Hands out the pages of a command and of all below it, each with its name.
fn pages(
    command: &clap::Command,
    put: &mut dyn FnMut(&str, Vec<u8>) -> Outcome<()>,
) -> Outcome<()> {
    let (name, path) = (command.get_name().to_owned(), command.get_bin_name());
    let path = path.unwrap_or(&name).to_owned();
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let full = format!("{name}-{}", sub.get_name());
        let mut sub = sub
            .clone()
            .bin_name(format!("{path} {}", sub.get_name()))
            .display_name(full.clone())
            .name(full)
            // It is the version of the page, and no option.
            .version(env!("CARGO_PKG_VERSION"))
            .disable_version_flag(true)
            .disable_help_subcommand(true);
        for global in command.get_arguments().filter(|arg| arg.is_global_set()) {
            sub = sub.arg(global.clone());
        }
        pages(&sub, put)?;
    }
    put(&name, page(command.clone())?)
}

/// The command as the main page describes it: `quire help` has no page.
fn main_command() -> clap::Command {
    Cli::command().disable_help_subcommand(true)
}

/// A command without what is hidden below it, as far as completions say something of it.
fn without_hidden(command: &clap::Command) -> clap::Command {
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let shown: Vec<_> = shown.map(without_hidden).collect();
    if shown.is_empty() {
        return command.clone();
    }
    clap::Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .version(command.get_version().map(str::to_owned).unwrap_or_default())
        .disable_version_flag(command.get_version().is_none())
        .args(command.get_arguments().cloned())
        .subcommands(shown)
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
    for paragraph in after.split("\n\n").filter(|text| !text.is_empty()) {
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
