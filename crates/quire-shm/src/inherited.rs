//! Descriptors of objects that a program has from another one: as it was executed by that, or got them by a
//! socket. What each stands for is noted at its file, in an extended attribute, which tmpfs has since Linux 6.6.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use quire_dsm::attachment::Target;
use quire_dsm::wire::control::Name;

use crate::ages::{self, Entry};
use crate::posix;
use crate::state::{self, Opened, State};
use crate::trouble::Trouble;

/// The attribute.
const NOTE: &CStr = c"user.quire.object";
/// No note is longer, in bytes: two names, and what lies between them.
const LONGEST: usize = 1024;

/// Whether a line has said that one cannot be used.
static IS_TOLD: AtomicBool = AtomicBool::new(false);

/// What is noted.
#[derive(Debug, PartialEq, Eq)]
struct Note {
    /// Whether the program opened it to write, too.
    writable: bool,
    /// The exact spelling of the object's key.
    exact: Name,
    /// The name by which the program asked for it.
    asked: String,
}

impl Note {
    /// The name that the program asked for may have any letters, so it is the last.
    fn to_text(&self) -> String {
        let how = if self.writable { "rw" } else { "r" };
        format!("{how} {} {}", self.exact, self.asked)
    }

    fn from_text(text: &str) -> Option<Note> {
        let mut parts = text.splitn(3, ' ');
        let writable = match parts.next()? {
            "rw" => true,
            "r" => false,
            _ => return None,
        };
        Some(Note {
            writable,
            exact: parts.next()?.parse().ok()?,
            asked: parts.next()?.to_owned(),
        })
    }
}

/// Notes what a descriptor stands for. Where the system has no such attributes, another program that inherits
/// it says that it cannot use it.
pub fn note(descriptor: c_int, entry: Entry, writable: bool) {
    let target = state::attachment(entry.place).map(|found| &found.target);
    let (Some(exact), Some(Target::Posix(asked))) = (ages::exact(entry), target) else {
        return;
    };
    let note = Note {
        writable,
        exact,
        asked: asked.clone(),
    };
    let text = note.to_text();
    // SAFETY: the name is a C string, and the text has this length.
    unsafe {
        let from = text.as_ptr().cast::<c_void>();
        libc::fsetxattr(descriptor, NOTE.as_ptr(), from, text.len(), 0);
    }
}

fn noted(descriptor: c_int) -> Option<Note> {
    let mut text = [0; LONGEST];
    // SAFETY: the name is a C string, and there is as much room.
    let length = unsafe {
        let to = text.as_mut_ptr().cast::<c_void>();
        libc::fgetxattr(descriptor, NOTE.as_ptr(), to, text.len())
    };
    let text = text.get(..usize::try_from(length).ok()?)?;
    Note::from_text(std::str::from_utf8(text).ok()?)
}

/// What a descriptor stands for that another program was given, and this one has from it: what it is of, if it
/// is one of an object. That is opened when it is settled what size it has: until then only others keep
/// it from going, if its name was removed.
pub fn take_in(state: &mut State, descriptor: c_int) -> Option<Opened> {
    if !posix::is_of_object(descriptor) {
        return None;
    }
    let known = noted(descriptor).and_then(|note| {
        let place = state::place_of_others(&Target::Posix(note.asked))?;
        Some((ages::found(place, &note.exact), note.writable))
    });
    if known.is_none() && !IS_TOLD.swap(true, Ordering::Relaxed) {
        let text = format!(
            "descriptor {descriptor}, which this program has from another one, is of shared memory that it \
             cannot find: no --dsm of its own names it, or Linux is older than 6.6; let it open the memory by \
             its name"
        );
        // The thread writes it to the log.
        let _ = state.run(move |_| Err::<(), Trouble>(Trouble::new(libc::EBADF, text)));
    }
    let (entry, writable) = known?;
    Some(Opened {
        entry,
        writable,
        is_pending: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read() {
        for (writable, asked) in [(true, "grid"), (false, "two words ")] {
            let note = Note {
                writable,
                exact: "grid~8f3a".parse().expect("a name"),
                asked: asked.to_owned(),
            };
            assert_eq!(Note::from_text(&note.to_text()), Some(note));
        }
        for text in ["", "rw", "rw grid~", "w grid~ grid", "rw \u{7} grid"] {
            assert_eq!(Note::from_text(text), None, "{text}");
        }
    }
}
