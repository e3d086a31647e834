//! Programs that are started by another one, which runs them as they were to be run.

use std::process::Command;

/// The outer command with the inner one, and its arguments, behind its own arguments; the variables
/// and the directory are the inner one's. Where input and output go has to be set on the command
/// that is returned.
pub(crate) fn wrapped(mut outer: Command, inner: &Command) -> Command {
    outer.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    if let Some(directory) = inner.get_current_dir() {
        outer.current_dir(directory);
    }
    outer
}
