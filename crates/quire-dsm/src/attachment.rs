//! What `quire run --dsm` tells the library that it preloads: which names of shared memory
//! stand for which objects of which servers, and as whom these are reached. It is passed on
//! in the environment, so programs that the program starts get the same.

use std::fmt;
use std::fs::{self, File};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use quire_core::units::Bytes;
use quire_linux::sysinfo::process;

use crate::client::Options;
use crate::link::address::AddressError;
use crate::link::identity::{Files, IdentityError};
use crate::link::{Addresses, Identity, Security};
use crate::wire::control::{Name, NameError, SchedulerKind};

mod pattern;

pub use pattern::{Pattern, Wanted};

/// The attachments, one a line.
pub const ENV_LIST: &str = "QUIRE_DSM";
/// `0`: objects that do not exist are not made.
pub const ENV_CREATE: &str = "QUIRE_DSM_CREATE";
/// `0`: objects that the program did not make go, too, when it removes their names.
pub const ENV_KEEP: &str = "QUIRE_DSM_KEEP";
/// The scheduler of objects that the program makes.
pub const ENV_SCHEDULER: &str = "QUIRE_DSM_SCHEDULER";
/// `1`: pages are not shared with a server on this machine.
pub const ENV_OWN_PAGES: &str = "QUIRE_DSM_OWN_PAGES";
/// The most that is held of an object, in bytes.
pub const ENV_ROOM: &str = "QUIRE_DSM_ROOM";
/// `0`: faults are answered with the priority of the program.
pub const ENV_REALTIME: &str = "QUIRE_DSM_REALTIME";
/// `0`: there is no process beside the program that takes pages from it while it is stopped.
pub const ENV_REVOKER: &str = "QUIRE_DSM_REVOKER";
/// The name of this side.
pub const ENV_IDENTITY: &str = "QUIRE_DSM_IDENTITY";
/// `automatic`, `everywhere` or `plaintext`.
pub const ENV_TLS: &str = "QUIRE_DSM_TLS";
/// The file with this side's certificate.
pub const ENV_CERTIFICATE: &str = "QUIRE_DSM_CERTIFICATE";
/// The file with its key.
pub const ENV_KEY: &str = "QUIRE_DSM_KEY";
/// The file with the CA's certificate.
pub const ENV_CA: &str = "QUIRE_DSM_CA";

/// A directory in which files say which attachments programs asked for, and which objects they made.
pub const ENV_ASKED: &str = "QUIRE_DSM_ASKED";

/// `kill`, `errno` or `continue`: what becomes of a program that has lost what it wrote.
pub const ENV_ON_LOSS: &str = "QUIRE_DSM_ON_LOSS";
/// The name of the process that brings what a program had written that is killed.
pub const ENV_RECOVERY: &str = "QUIRE_DSM_RECOVERY";

/// All of these variables.
pub const ENV_ALL: [&str; 16] = [
    ENV_LIST,
    ENV_CREATE,
    ENV_KEEP,
    ENV_SCHEDULER,
    ENV_OWN_PAGES,
    ENV_ROOM,
    ENV_REALTIME,
    ENV_REVOKER,
    ENV_IDENTITY,
    ENV_TLS,
    ENV_CERTIFICATE,
    ENV_KEY,
    ENV_CA,
    ENV_ASKED,
    ENV_ON_LOSS,
    ENV_RECOVERY,
];

/// What names of files in [`Attachments::asked`] begin with.
pub const ASKED_PREFIX: &str = "object-";

/// What stands behind that in names of files for objects that a program made.
const MADE: &str = "made-";

/// The longest name of shared memory that the system takes, in bytes.
const LONGEST: usize = 255;

/// What a program calls shared memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The name that it gives to `shm_open`, without the slash before it.
    Posix(String),
    /// The key that it gives to `shmget`.
    SystemV(i32),
}

/// Shared memory of a program that is an object of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The object.
    pub object: Name,
    /// What the program calls it.
    pub target: Target,
    /// Where its server is, or servers that are joined.
    pub servers: Addresses,
}

/// An attachment that cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachmentError {
    /// There is no server.
    #[error(
        "{0:?} names no server: write NAME@ADDRESS, NAME=SHM_NAME@ADDRESS, NAME=0xKEY@ADDRESS or \
         'PATTERN*@ADDRESS'"
    )]
    NoServer(String),
    /// The object's name cannot be one.
    #[error(transparent)]
    Object(#[from] NameError),
    /// The address cannot be one.
    #[error(transparent)]
    Server(#[from] AddressError),
    /// The name of shared memory cannot be one.
    #[error(
        "{0:?} is no name of shared memory: it has 1 to {LONGEST} bytes, and no slash but the first"
    )]
    Shm(String),
    /// The key cannot be one.
    #[error("{0:?} is no key: write 0x1 to 0xffffffff")]
    Key(String),
    /// Two objects have one name.
    #[error("{0} stands for two objects: choose one of them")]
    Twice(Target),
    /// A variable of the environment says what it cannot.
    #[error("{0}={1:?} means nothing; `quire run --dsm` sets it")]
    Variable(&'static str, String),
}

impl FromStr for Target {
    type Err = AttachmentError;

    fn from_str(text: &str) -> Result<Target, AttachmentError> {
        if let Some(digits) = text.strip_prefix("0x") {
            return match u32::from_str_radix(digits, 16) {
                // Zero makes memory that nobody else finds.
                Ok(key) if key != 0 => Ok(Target::SystemV(key.cast_signed())),
                _ => Err(AttachmentError::Key(text.to_owned())),
            };
        }
        let name = text.strip_prefix('/').unwrap_or(text);
        if !is_shm_name(name) {
            return Err(AttachmentError::Shm(text.to_owned()));
        }
        Ok(Target::Posix(name.to_owned()))
    }
}

/// Whether shared memory can have this name, without a slash before it.
fn is_shm_name(name: &str) -> bool {
    let fits = !name.is_empty() && name.len() <= LONGEST;
    fits && !name.contains(['/', '\n', '\0']) && name != "." && name != ".."
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Posix(name) => write!(f, "/{name}"),
            Target::SystemV(key) => write!(f, "{key:#x}"),
        }
    }
}

impl FromStr for Attachment {
    type Err = AttachmentError;

    /// Reads `NAME@ADDRESS`, `NAME=SHM_NAME@ADDRESS` or `NAME=0xKEY@ADDRESS`, where ADDRESS
    /// may be several with commas between.
    fn from_str(text: &str) -> Result<Attachment, AttachmentError> {
        let (what, servers) = text
            .split_once('@')
            .ok_or_else(|| AttachmentError::NoServer(text.to_owned()))?;
        let (object, target) = what.split_once('=').unwrap_or((what, what));
        if servers.contains('\n') {
            return Err(AddressError::Unreadable(servers.to_owned()).into());
        }
        let object: Name = object.parse()?;
        let target = match what == object.as_str() {
            true => Target::Posix(object.to_string()),
            false => target.parse()?,
        };
        Ok(Attachment {
            object,
            target,
            servers: servers.parse()?,
        })
    }
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}@{}", self.object, self.target, self.servers)
    }
}

/// How links to servers are secured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// TLS where other machines reach the address.
    #[default]
    Automatic,
    /// TLS everywhere but on Unix sockets.
    Everywhere,
    /// None.
    Plaintext,
}

impl Tls {
    const NAMES: [(&'static str, Tls); 3] = [
        ("automatic", Tls::Automatic),
        ("everywhere", Tls::Everywhere),
        ("plaintext", Tls::Plaintext),
    ];

    fn name(&self) -> &'static str {
        let mut names = Tls::NAMES.iter().filter(|(_, tls)| tls == self);
        names.next().map_or("automatic", |(name, _)| name)
    }
}

/// What becomes of a program that has lost what it wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// It is killed, as where memory of the machine fails (`SIGBUS`).
    #[default]
    Kill,
    /// Locks and calls about the object fail.
    Errno,
    /// It goes on.
    Continue,
}

impl OnLoss {
    /// What there is to choose from, by name.
    pub const NAMES: [(&'static str, OnLoss); 3] = [
        ("kill", OnLoss::Kill),
        ("errno", OnLoss::Errno),
        ("continue", OnLoss::Continue),
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let mut names = OnLoss::NAMES.iter().filter(|(_, it)| *it == self);
        names.next().map_or("kill", |(name, _)| name)
    }
}

/// All that a program is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachments {
    /// What stands for what; no target twice.
    list: Vec<Attachment>,
    /// Names that stand for objects which are called like them. What stands in the list goes before.
    pub patterns: Vec<Pattern>,
    /// Whether objects are made that do not exist, when the program makes shared memory.
    pub create: bool,
    /// Whether an object that another program made stays where it is when this one removes its name
    /// (`shm_unlink`).
    pub keep: bool,
    /// The scheduler of objects that the program makes.
    pub scheduler: SchedulerKind,
    /// Whether the program keeps pages of its own, also where the server is on its machine.
    pub own_pages: bool,
    /// The most that is held of an object whose pages are the program's own, if that was said.
    pub room: Option<Bytes>,
    /// Whether faults are answered with a real-time priority, where the system allows it.
    pub realtime: bool,
    /// Whether a process beside the program takes pages from it while it is stopped.
    pub revoker: bool,
    /// The name of this side, if it was given one: see [`Attachments::identity`].
    pub identity: Option<Name>,
    /// How links are secured.
    pub tls: Tls,
    /// The certificate of this side.
    pub files: Option<Files>,
    /// Where programs note what they asked for, if anybody wants to know.
    pub asked: Option<PathBuf>,
    /// What becomes of a program that has lost what it wrote.
    pub on_loss: OnLoss,
    /// The name of the process that brings what a program had written that is killed, if there is one.
    pub recovery: Option<String>,
}

impl Attachments {
    /// Attachments that are reached without certificates.
    ///
    /// # Errors
    /// When one target stands for two objects.
    pub fn new(
        list: Vec<Attachment>,
        identity: Option<Name>,
    ) -> Result<Attachments, AttachmentError> {
        for (n, attachment) in list.iter().enumerate() {
            let mut before = list[..n].iter();
            if before.any(|other| other.target == attachment.target) {
                return Err(AttachmentError::Twice(attachment.target.clone()));
            }
        }
        Ok(Attachments {
            list,
            patterns: Vec::new(),
            create: true,
            keep: true,
            scheduler: SchedulerKind::Usual,
            own_pages: false,
            room: None,
            realtime: true,
            revoker: true,
            identity,
            tls: Tls::Automatic,
            files: None,
            asked: None,
            on_loss: OnLoss::default(),
            recovery: None,
        })
    }

    /// What stands for what.
    #[must_use]
    pub fn list(&self) -> &[Attachment] {
        &self.list
    }

    /// As variables of the environment.
    #[must_use]
    pub fn to_env(&self) -> Vec<(&'static str, String)> {
        let patterns = self.patterns.iter().map(ToString::to_string);
        let list = self.list.iter().map(ToString::to_string);
        let lines: Vec<String> = list.chain(patterns).collect();
        let mut all = vec![
            (ENV_LIST, lines.join("\n")),
            (ENV_CREATE, u8::from(self.create).to_string()),
            (ENV_KEEP, u8::from(self.keep).to_string()),
            (ENV_SCHEDULER, self.scheduler.to_string()),
            (ENV_OWN_PAGES, u8::from(self.own_pages).to_string()),
            (ENV_REALTIME, u8::from(self.realtime).to_string()),
            (ENV_REVOKER, u8::from(self.revoker).to_string()),
            (ENV_TLS, self.tls.name().to_owned()),
            (ENV_ON_LOSS, self.on_loss.name().to_owned()),
        ];
        if let Some(Bytes(room)) = self.room {
            all.push((ENV_ROOM, room.to_string()));
        }
        if let Some(identity) = &self.identity {
            all.push((ENV_IDENTITY, identity.to_string()));
        }
        if let Some(files) = &self.files {
            let file = |path: &PathBuf| path.display().to_string();
            all.push((ENV_CERTIFICATE, file(&files.certificate)));
            all.push((ENV_KEY, file(&files.key)));
            all.push((ENV_CA, file(&files.authority)));
        }
        if let Some(directory) = &self.asked {
            all.push((ENV_ASKED, directory.display().to_string()));
        }
        if let Some(recovery) = &self.recovery {
            all.push((ENV_RECOVERY, recovery.clone()));
        }
        all
    }

    /// Reads the variables; nothing where there are none.
    ///
    /// # Errors
    /// When one of them says what it cannot.
    pub fn from_env(
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Attachments>, AttachmentError> {
        let Some(lines) = get(ENV_LIST).filter(|lines| !lines.is_empty()) else {
            return Ok(None);
        };
        let (mut list, mut patterns) = (Vec::new(), Vec::new());
        for line in lines.lines() {
            match line.parse()? {
                Wanted::One(attachment) => list.push(attachment),
                Wanted::Many(pattern) => patterns.push(pattern),
            }
        }
        let identity = get(ENV_IDENTITY).map(|name| name.parse()).transpose()?;
        let mut all = Attachments::new(list, identity)?;
        let switch = |name, usual| match get(name).as_deref() {
            None => Ok(usual),
            Some("1") => Ok(true),
            Some("0") => Ok(false),
            Some(other) => Err(AttachmentError::Variable(name, other.to_owned())),
        };
        all.patterns = patterns;
        all.create = switch(ENV_CREATE, true)?;
        all.keep = switch(ENV_KEEP, true)?;
        all.own_pages = switch(ENV_OWN_PAGES, false)?;
        all.realtime = switch(ENV_REALTIME, true)?;
        all.revoker = switch(ENV_REVOKER, true)?;
        if let Some(text) = get(ENV_ROOM) {
            let room = text.parse::<Bytes>();
            all.room = Some(room.map_err(|_| AttachmentError::Variable(ENV_ROOM, text))?);
        }
        if let Some(text) = get(ENV_SCHEDULER) {
            let scheduler = text.parse();
            all.scheduler =
                scheduler.map_err(|_| AttachmentError::Variable(ENV_SCHEDULER, text))?;
        }
        if let Some(text) = get(ENV_ON_LOSS) {
            let mut named = OnLoss::NAMES.into_iter().filter(|(name, _)| *name == text);
            let named = named.next();
            all.on_loss = named.ok_or(AttachmentError::Variable(ENV_ON_LOSS, text))?.1;
        }
        all.recovery = get(ENV_RECOVERY).filter(|name| !name.is_empty());
        if let Some(text) = get(ENV_TLS) {
            let mut named = Tls::NAMES.into_iter().filter(|(name, _)| *name == text);
            let named = named.next();
            all.tls = named.ok_or(AttachmentError::Variable(ENV_TLS, text))?.1;
        }
        let file = |name| get(name).map(PathBuf::from);
        if let (Some(certificate), Some(key), Some(authority)) =
            (file(ENV_CERTIFICATE), file(ENV_KEY), file(ENV_CA))
        {
            all.files = Some(Files {
                certificate,
                key,
                authority,
            });
        }
        all.asked = file(ENV_ASKED);
        Ok(Some(all))
    }

    /// The pattern that stands for a name of shared memory, and its place: behind all of the list.
    #[must_use]
    pub fn pattern_of(&self, name: &str) -> Option<(usize, &Pattern)> {
        let place = self
            .patterns
            .iter()
            .position(|pattern| pattern.is_of(name))?;
        Some((self.list.len() + place, &self.patterns[place]))
    }

    /// The program has asked for what stands at this place, in the list or behind it.
    pub fn note(&self, place: usize) {
        self.make_note(&place.to_string());
    }

    /// What no program has asked for, as it was given. Their notes are removed, and there are none any more.
    #[must_use]
    pub fn never_asked(&self) -> Vec<Wanted> {
        let one = self.list.iter().cloned().map(Wanted::One);
        let all = one.chain(self.patterns.iter().cloned().map(Wanted::Many));
        let note = |place: usize| self.note_of(&place.to_string());
        let is_left = |path: PathBuf| fs::remove_file(path).is_err();
        let never = all.enumerate();
        let never = never.filter(|(place, _)| note(*place).is_some_and(is_left));
        never.map(|(_, wanted)| wanted).collect()
    }

    /// One of the programs has made an object, which has this key.
    pub fn note_made(&self, exact: &Name) {
        self.make_note(&format!("{MADE}{exact}"));
    }

    /// Whether one of them has.
    #[must_use]
    pub fn was_made(&self, exact: &Name) -> bool {
        let note = self.note_of(&format!("{MADE}{exact}"));
        note.is_some_and(|note| note.exists())
    }

    /// What they have made, by exact spellings, as far as that was noted.
    #[must_use]
    pub fn made(&self) -> Vec<Name> {
        let prefix = format!("{ASKED_PREFIX}{MADE}");
        let files = self
            .asked
            .as_ref()
            .and_then(|directory| fs::read_dir(directory).ok());
        let names = files.into_iter().flatten().flatten().filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            name.strip_prefix(&prefix)?.parse().ok()
        });
        names.collect()
    }

    fn make_note(&self, what: &str) {
        if let Some(path) = self.note_of(what) {
            // Where it cannot be noted, somebody is told in vain.
            let _ = File::create(path);
        }
    }

    fn note_of(&self, what: &str) -> Option<PathBuf> {
        let directory = self.asked.as_ref()?;
        Some(directory.join(format!("{ASKED_PREFIX}{what}")))
    }

    /// What this side is called: as it was told, or without that, like the program that runs in this
    /// process. A certificate is for a name that is known before: `quire`, if it was not told.
    #[must_use]
    pub fn identity(&self) -> Name {
        let usual = || match self.files {
            Some(_) => Name::like("quire"),
            None => Name::like(&process::command(std::process::id()).unwrap_or_default()),
        };
        self.identity.clone().unwrap_or_else(usual)
    }

    /// How links are secured, with the certificate read.
    ///
    /// # Errors
    /// When there is something wrong with the certificate.
    pub fn security(&self) -> Result<Security, IdentityError> {
        let load = |files| Identity::load(&self.identity(), files).map(Arc::new);
        let identity = self.files.as_ref().map(load).transpose()?;
        Ok(match (&self.tls, identity) {
            (Tls::Plaintext, _) => Security::Plaintext,
            (Tls::Everywhere, Some(identity)) => Security::Tls(identity),
            (_, identity) => Security::Automatic(identity),
        })
    }

    /// How servers are reached.
    ///
    /// # Errors
    /// When there is something wrong with the certificate.
    pub fn options(&self, servers: &Addresses) -> Result<Options, IdentityError> {
        let mut options = Options::new(servers.clone(), self.identity());
        options.security = self.security()?;
        options.own_pages = self.own_pages;
        options.room = self.room;
        options.realtime = self.realtime;
        options.revoker = self.revoker;
        options.recovery = self.recovery.clone();
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::link::Address;

    fn attachment(text: &str) -> Attachment {
        text.parse().expect("it can be one")
    }

    #[test]
    fn attachments_are_read() {
        let plain = attachment("grid@127.0.0.1:7450");
        assert_eq!(plain.target, Target::Posix("grid".into()));
        let named = attachment("grid=/psm_1@unix:/run/a@b");
        assert_eq!(named.target, Target::Posix("psm_1".into()));
        assert_eq!(named.servers, Address::Unix("/run/a@b".into()).into());
        let several = attachment("grid@127.0.0.1:7450,unix:/run/a,,b").servers;
        assert_eq!(several.get(1), &Address::Unix("/run/a,b".into()));
        let key = attachment("grid=0x80001234@unix:/run/s");
        assert_eq!(key.target, Target::SystemV(0x8000_1234_u32.cast_signed()));
        // An object's own name is a name, whatever it looks like.
        assert_eq!(
            attachment("0x12@unix:/s").target,
            Target::Posix("0x12".into())
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_remedy() {
        let bad = [
            ("grid", "NAME@ADDRESS"),
            ("gr id@unix:/s", "letters"),
            ("grid=@unix:/s", "name of shared memory"),
            ("grid=a/b@unix:/s", "slash"),
            ("grid=0x@unix:/s", "0x1"),
            ("grid=0x0@unix:/s", "0x1"),
            ("grid=0x100000000@unix:/s", "0xffffffff"),
            ("grid@nowhere", "HOST:PORT"),
            ("grid@unix:/s\nother@unix:/s", "HOST:PORT"),
            ("grid@unix:/s,", "comma in a PATH"),
        ];
        for (text, words) in bad {
            let error = text.parse::<Attachment>().expect_err(text).to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        let twice = vec![attachment("a=x@unix:/s"), attachment("b=/x@unix:/t")];
        let error = Attachments::new(twice, None).expect_err("twice");
        assert!(error.to_string().contains("/x"), "{error}");
    }

    #[test]
    fn without_variables_nothing_is_attached() {
        assert_eq!(Attachments::from_env(|_| None), Ok(None));
        let bad = |name: &str| match name {
            ENV_LIST => Some("a@unix:/s".to_owned()),
            ENV_CREATE => Some("yes".to_owned()),
            _ => None,
        };
        assert!(Attachments::from_env(bad).is_err());
    }

    #[test]
    fn who_has_no_name_is_called_like_its_program() {
        let mut all = Attachments::new(Vec::new(), None).expect("nothing twice");
        let program = fs::read_to_string("/proc/self/comm").expect("a name");
        assert_eq!(all.identity().as_str(), program.trim_end());
        all.files = Some(Files {
            certificate: "/a".into(),
            key: "/k".into(),
            authority: "/c".into(),
        });
        assert_eq!(all.identity().as_str(), "quire");
        all.identity = Some(Name::like("node-1"));
        assert_eq!(all.identity().as_str(), "node-1");
    }

    proptest! {
        #[test]
        fn the_environment_passes_all_of_it_on(
            names in prop::collection::btree_set("[a-z][a-z0-9.]{0,8}", 1..5),
            keys in prop::collection::btree_set(1u32.., 0..3),
            path in "/[a-z@=, ]{1,20}",
            create: bool,
            keep: bool,
            patterns in prop::collection::vec("[a-z_.]{0,8}[*][a-z*?]{0,8}", 0..3),
            scheduler in 0usize..4,
            own_pages: bool,
            room: Option<u64>,
            realtime: bool,
            revoker: bool,
            named: bool,
            tls in 0usize..3,
            with_files: bool,
        ) {
            let servers = Addresses::from(Address::Unix(path.into()));
            let keys = keys.iter().map(|key| ("object".to_owned(), Target::SystemV(key.cast_signed())));
            let names = names.iter().map(|name| (name.clone(), Target::Posix(format!("_{name}"))));
            let list = names.chain(keys).map(|(object, target)| Attachment {
                object: object.parse().expect("a name"),
                target,
                servers: servers.clone(),
            });
            let identity = named.then(|| Name::like("node-1"));
            let mut all = Attachments::new(list.collect(), identity).expect("no target twice");
            all.create = create;
            all.keep = keep;
            all.patterns = patterns.iter().map(|pattern| {
                match format!("{pattern}@{servers}").parse() {
                    Ok(Wanted::Many(pattern)) => pattern,
                    other => panic!("{pattern}: {other:?}"),
                }
            }).collect();
            all.scheduler = SchedulerKind::ALL[scheduler];
            all.own_pages = own_pages;
            all.room = room.map(Bytes);
            all.realtime = realtime;
            all.revoker = revoker;
            all.tls = Tls::NAMES[tls].1.clone();
            all.files = with_files.then(|| Files {
                certificate: "/a b".into(),
                key: "/k".into(),
                authority: "/c".into(),
            });
            let env: BTreeMap<_, _> = all.to_env().into_iter().collect();
            prop_assert!(env.keys().all(|name| ENV_ALL.contains(name)));
            let read = Attachments::from_env(|name| env.get(name).cloned());
            prop_assert_eq!(read, Ok(Some(all)));
        }
    }
}
