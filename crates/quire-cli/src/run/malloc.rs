//! Whose `malloc` a program has for which Quire provides memory (`--malloc`), and for which programs it must be their
//! own.

use std::env;
use std::path::Path;

use quire_core::config::{ENV_MALLOC, Malloc};
use quire_core::frames::hints::Target;

use super::program::Program;
use crate::args::RunArgs;
use crate::failure::{Failure, Outcome};

/// What was asked for: by the option, else by the environment. Frames are chosen for what the library maps, which is
/// little of a program with its own `malloc`; so where a strategy is asked for and nothing else is said, it is
/// jemalloc.
///
/// # Errors
/// When the variable holds something else, or the heap is to have a strategy of which nothing would be seen.
pub fn choose(options: &RunArgs) -> Outcome<Malloc> {
    let has_strategy = options.frames.is_some() || !options.hint.is_empty();
    let otherwise = match has_strategy {
        true => Malloc::Jemalloc,
        false => Malloc::Libc,
    };
    let malloc = match options.malloc {
        Some(malloc) => malloc,
        None => from_environment()?.unwrap_or(otherwise),
    };
    let mut targets = options.hint.iter().map(|hint| &hint.target);
    if malloc == Malloc::Libc && targets.any(|target| *target == Target::Heap) {
        return Err(Failure::bad_usage(
            "--hint heap= has no effect on the C library's malloc, whose memory Quire does not map: \
             use --malloc jemalloc",
        ));
    }
    Ok(malloc)
}

fn from_environment() -> Outcome<Option<Malloc>> {
    let text = env::var_os(ENV_MALLOC).filter(|text| !text.is_empty());
    let parse = |text: std::ffi::OsString| {
        let parsed = text.to_string_lossy().parse::<Malloc>();
        parsed.map_err(|error| Failure::bad_usage(format!("{ENV_MALLOC}: {error}")))
    };
    text.map(parse).transpose()
}

/// Refuses programs that cannot have jemalloc, as far as their names tell.
///
/// # Errors
/// When it is one; the message has the remedy.
pub fn check(malloc: Malloc, program: &Program) -> Outcome<()> {
    if malloc == Malloc::Libc {
        return Ok(());
    }
    let mut names = program.files.iter().filter_map(|file| name_of(file));
    let found = names.find_map(|name| Some((name, why_not(name)?)));
    let why = match found {
        Some((name, why)) => format!("{name} {why}"),
        None if env::var_os("LD_AUDIT").is_some_and(|list| !list.is_empty()) => {
            "LD_AUDIT is set, and with its modules the loader has no room for jemalloc's thread-local variables"
                .to_owned()
        }
        None => return Ok(()),
    };
    Err(Failure::bad_usage(format!(
        "no jemalloc for this program: {why}; use --malloc libc"
    )))
}

fn name_of(file: &Path) -> Option<&str> {
    file.file_name()?.to_str()
}

/// Why a program of this name cannot have jemalloc.
fn why_not(name: &str) -> Option<&'static str> {
    let is_version = |c: char| c.is_ascii_digit() || c == '.';
    // Such as php8.4, php-fpm8.4 and phpdbg.
    let php = name
        .strip_prefix("php")
        .map(|rest| rest.trim_matches(is_version).trim_start_matches('-'));
    if matches!(php, Some("" | "cgi" | "cli" | "dbg" | "fpm")) {
        return Some(
            "opens its extensions with RTLD_DEEPBIND, and they would give jemalloc's memory to the C library",
        );
    }
    matches!(name, "valgrind" | "valgrind.bin").then_some("replaces malloc itself")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_refused_by_name() {
        for name in [
            "php",
            "php8.4",
            "php7.4",
            "php-fpm8.4",
            "php-cgi",
            "phpdbg8.4",
            "valgrind",
        ] {
            assert!(why_not(name).is_some(), "{name}");
        }
        for name in ["phpunit", "phpize8.4", "python3", "php-config", "vgdb", ""] {
            assert!(why_not(name).is_none(), "{name}");
        }
    }
}
