//! What the user asks of a running process about its pages, line by line, over the
//! control socket (see [`quire_core::frames::remap`]).

use std::sync::Arc;

use quire_core::control::DONE;
use quire_core::frames::remap::{Ask, LEFT_AT_ONCE, Progress, left_line};
use quire_linux::futex::Lock;

use super::jobs::Shared;
use super::{is_on, remap, strategy as named};

/// The pages that are being moved, or were last.
static CURRENT: Lock<Option<Arc<Shared>>> = Lock::new(None);

/// Holds what is known for the moment of a fork.
pub(super) fn hold() {
    CURRENT.hold();
}

/// Lets go of it.
pub(super) fn release_held() {
    CURRENT.release_held();
}

/// Answers a line that is an [`Ask`].
pub(crate) fn answer(line: &str) -> String {
    match line.parse() {
        Ok(Ask::Progress) => progress().to_string(),
        Ok(Ask::Left(from)) => {
            let current = CURRENT.lock().clone();
            let left = current.map(|shared| shared.left(from, LEFT_AT_ONCE));
            left_line(&left.unwrap_or_default())
        }
        Ok(ask) => begin(&ask).err().unwrap_or_else(|| DONE.to_owned()),
        Err(error) => error.to_string(),
    }
}

fn progress() -> Progress {
    let current = CURRENT.lock().clone();
    current.map(|shared| shared.progress()).unwrap_or_default()
}

fn begin(ask: &Ask) -> Result<(), String> {
    let Ask::Remap {
        range,
        strategy,
        colours,
    } = ask
    else {
        return Ok(());
    };
    if !is_on() {
        return Err(
            "it was not started with strategies: use `quire run --frames default -- PROGRAM`"
                .to_owned(),
        );
    }
    let progress = progress();
    if progress.done < progress.of && !progress.ended {
        return Err("pages of it are being moved already: wait for that".to_owned());
    }
    let which = named(strategy, colours)?;
    let shared = remap(*range, which).map_err(|note| note.text().to_owned())?;
    *CURRENT.lock() = Some(shared);
    Ok(())
}
