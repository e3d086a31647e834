//! The settings under which programs run: policies and users.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::cgroup::MemoryCgroup;
use super::process;

/// One way of running a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Setting {
    /// Value of `QUIRE_POLICY`; none: the library is not loaded.
    pub policy: Option<&'static str>,
    /// Whether to run as a user without privileges, where the tests run as root.
    pub ordinary: bool,
}

const fn with(policy: &'static str, ordinary: bool) -> Setting {
    Setting {
        policy: Some(policy),
        ordinary,
    }
}

/// Superpages where memory is dense.
pub const ADAPTIVE: Setting = with("adaptive", false);
/// Superpages at the first touch.
pub const EAGER: Setting = with("eager", false);
/// No superpages.
pub const BASE: Setting = with("base", false);
/// The same as an ordinary user.
pub const ADAPTIVE_ORDINARY: Setting = with("adaptive", true);
/// The same as an ordinary user.
pub const EAGER_ORDINARY: Setting = with("eager", true);
/// The same as an ordinary user.
pub const BASE_ORDINARY: Setting = with("base", true);

/// Superpages where memory is dense, as each user.
pub const DENSE: [Setting; 2] = [ADAPTIVE, ADAPTIVE_ORDINARY];
/// The policies that have a helper, and an ordinary user.
pub const SOME: [Setting; 3] = [ADAPTIVE, EAGER, ADAPTIVE_ORDINARY];
/// All of them.
pub const EVERY: [Setting; 6] = [
    ADAPTIVE,
    EAGER,
    BASE,
    ADAPTIVE_ORDINARY,
    EAGER_ORDINARY,
    BASE_ORDINARY,
];

impl Setting {
    /// For messages.
    pub fn name(&self) -> String {
        let policy = self.policy.unwrap_or("without the library");
        let user = if self.ordinary {
            " as an ordinary user"
        } else {
            ""
        };
        format!("under {policy}{user}")
    }

    /// The same user without the library.
    pub const fn without_library(&self) -> Setting {
        Setting {
            policy: None,
            ordinary: self.ordinary,
        }
    }

    /// Why this setting cannot be had here.
    pub fn missing(&self) -> Option<String> {
        let needs = self.ordinary && process::is_root();
        (needs && process::find("setpriv").is_none()).then(|| "setpriv is missing".to_owned())
    }

    /// The command line that runs `argv` in this setting. Variables are set by `env` at the very end, so that only
    /// the program itself is preloaded.
    pub fn command(
        &self,
        argv: &[OsString],
        libraries: &[PathBuf],
        session: &Path,
        cgroup: Option<&MemoryCgroup>,
    ) -> Vec<OsString> {
        let mut command: Vec<OsString> = Vec::new();
        if let Some(cgroup) = cgroup {
            let enter = r#"echo 0 > "$0" && exec "$@""#;
            command.extend(["sh", "-c", enter].map(OsString::from));
            command.push(cgroup.procs_file().into());
        }
        if self.ordinary && process::is_root() {
            let user = "setpriv --reuid=65534 --regid=65534 --clear-groups";
            command.extend(user.split(' ').map(OsString::from));
        }
        command.push("env".into());
        let paths: Vec<_> = libraries.iter().map(|l| l.display().to_string()).collect();
        if !paths.is_empty() {
            command.push(format!("LD_PRELOAD={}", paths.join(":")).into());
        }
        if let Some(policy) = self.policy {
            command.push(format!("QUIRE_POLICY={policy}").into());
            command.push(format!("QUIRE_SESSION={}", session.display()).into());
        }
        command.extend_from_slice(argv);
        command
    }
}
