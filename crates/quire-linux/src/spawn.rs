//! A program that is started with nothing in between: what can be made ready is made ready before,
//! so that a clock that is read at the start measures the program and the kernel.
//!
//! `std::process::Command` opens files and copies the environment when it starts a program.

use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::ptr;

use rustix::process::Pid;

/// A program that can be started.
pub struct Ready {
    words: Vec<CString>,
    environment: Vec<CString>,
    attributes: Attributes,
    /// What becomes of `_streams`.
    actions: Actions,
    _streams: [Option<OwnedFd>; 3],
}

impl Ready {
    /// The program of these words, which is looked for as a shell does, with `env` beyond this
    /// process's environment, and `streams` as standard input, output and error; `None` stays this
    /// process's.
    ///
    /// # Errors
    /// When a word or a variable holds a zero, or there is no word.
    pub fn new(
        words: &[OsString],
        env: &BTreeMap<OsString, OsString>,
        streams: [Option<OwnedFd>; 3],
    ) -> io::Result<Ready> {
        if words.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let text = |text: OsString| CString::new(text.into_vec()).map_err(io::Error::from);
        let mut all: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        all.extend(env.clone());
        let variable = |(mut name, value): (OsString, OsString)| {
            name.push("=");
            name.push(value);
            text(name)
        };
        Ok(Ready {
            words: words.iter().cloned().map(text).collect::<Result<_, _>>()?,
            environment: all.into_iter().map(variable).collect::<Result<_, _>>()?,
            attributes: Attributes::new()?,
            actions: Actions::new(&streams)?,
            _streams: streams,
        })
    }

    /// Starts it, as often as it is called, in a process group of its own, with no signal blocked and `SIGPIPE` as it is by
    /// default.
    ///
    /// # Errors
    /// When it does not exist, cannot be executed, or there is no process for it.
    pub fn start(&self) -> io::Result<Pid> {
        let list = |texts: &[CString]| {
            let pointers = texts.iter().map(|text| text.as_ptr().cast_mut());
            pointers
                .chain([ptr::null_mut()])
                .collect::<Vec<*mut libc::c_char>>()
        };
        let (words, environment) = (list(&self.words), list(&self.environment));
        let mut pid = 0;
        // SAFETY: both lists end with a null pointer, and the texts that they point to, the actions
        // and the attributes live for the call.
        check(unsafe {
            libc::posix_spawnp(
                &mut pid,
                words[0],
                &self.actions.0,
                &self.attributes.0,
                words.as_ptr(),
                environment.as_ptr(),
            )
        })?;
        Pid::from_raw(pid).ok_or_else(|| io::ErrorKind::Other.into())
    }
}

struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    fn new() -> io::Result<Attributes> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the call initialises what it is given.
        check(unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: it was initialised.
        let mut new = Attributes(unsafe { attributes.assume_init() });
        let flags = libc::POSIX_SPAWN_SETPGROUP
            | libc::POSIX_SPAWN_SETSIGMASK
            | libc::POSIX_SPAWN_SETSIGDEF;
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` initialises the set before it is used, and all calls take pointers to
        // what lives here.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            check(libc::posix_spawnattr_setsigmask(&mut new.0, set.as_ptr()))?;
            libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
            check(libc::posix_spawnattr_setsigdefault(
                &mut new.0,
                set.as_ptr(),
            ))?;
            check(libc::posix_spawnattr_setpgroup(&mut new.0, 0))?;
            check(libc::posix_spawnattr_setflags(
                &mut new.0,
                flags as libc::c_short,
            ))?;
        }
        Ok(new)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: it was initialised, and is not used again.
        unsafe { libc::posix_spawnattr_destroy(&mut self.0) };
    }
}

struct Actions(libc::posix_spawn_file_actions_t);

impl Actions {
    /// These descriptors become the first ones of the program.
    fn new(streams: &[Option<OwnedFd>]) -> io::Result<Actions> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: the call initialises what it is given.
        check(unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) })?;
        // SAFETY: it was initialised.
        let mut new = Actions(unsafe { actions.assume_init() });
        for (number, stream) in (0..).zip(streams) {
            if let Some(stream) = stream {
                let fd = stream.as_raw_fd();
                // SAFETY: the call takes numbers, and actions that were initialised.
                check(unsafe { libc::posix_spawn_file_actions_adddup2(&mut new.0, fd, number) })?;
            }
        }
        Ok(new)
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: they were initialised, and are not used again.
        unsafe { libc::posix_spawn_file_actions_destroy(&mut self.0) };
    }
}

/// These functions return the error.
fn check(error: i32) -> io::Result<()> {
    match error {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    #[test]
    fn a_program_has_its_words_environment_and_streams() {
        let (reads, writes) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let words = [
            "sh",
            "-c",
            "echo $0 $MARK; cat; kill -s PIPE $$; exit 3",
            "word",
        ];
        let words = words.map(OsString::from);
        let env = BTreeMap::from([("MARK".into(), "mark".into())]);
        let nothing = File::open("/dev/null").unwrap().into();
        let ready = Ready::new(&words, &env, [Some(nothing), Some(writes), None]).unwrap();
        let pid = ready.start().unwrap();
        drop(ready);
        let group = rustix::process::getpgid(Some(pid)).unwrap();
        assert_eq!(group, pid, "it is in another group");
        let mut said = String::new();
        File::from(reads).read_to_string(&mut said).unwrap();
        assert_eq!(said, "word mark\n");
        let ended = crate::execution::wait(pid.as_raw_nonzero().get() as u32).unwrap();
        assert_eq!(ended.signal, Some(libc::SIGPIPE));
    }

    #[test]
    fn what_cannot_be_started_is_an_error() {
        let start = |word: &str| {
            let ready = Ready::new(&[word.into()], &BTreeMap::new(), [None, None, None]);
            ready.and_then(|ready| ready.start())
        };
        let error = start("/nonexistent").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(start("a\0b").is_err());
        assert!(Ready::new(&[], &BTreeMap::new(), [None, None, None]).is_err());
    }
}
