//! What a user may choose, and how the choice travels: `quire run` writes it
//! into environment variables, the preloaded library reads it from there, and
//! so it is inherited across fork and exec.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::attach::{CpuShare, CpuShareError};
use crate::level::{Level, LevelError};
use crate::pool::{PoolPage, PoolPageError};
use crate::units::{Bytes, SizeError};

/// With a lower limit of descriptors (`RLIMIT_NOFILE`) no memory is provided. Quire's lie in a table of their own, for
/// which the limit holds, too.
pub const LEAST_DESCRIPTORS: u64 = 24;
/// Name of the variable that holds the policy.
pub const ENV_POLICY: &str = "QUIRE_POLICY";
/// Name of the variable that holds the size of the pool zeroed ahead.
pub const ENV_AHEAD: &str = "QUIRE_AHEAD";
/// Name of the variable that holds the limit of reserved memory.
pub const ENV_RESERVE_LIMIT: &str = "QUIRE_RESERVE_LIMIT";
/// Name of the variable that holds the size of the largest superpage.
pub const ENV_LARGEST: &str = "QUIRE_LARGEST";
/// Name of the variable that holds the largest page taken from a hugetlb pool.
pub const ENV_POOL_PAGE: &str = "QUIRE_POOL_PAGE";
/// Name of the variable that switches alignment on.
pub const ENV_ALIGN: &str = "QUIRE_ALIGN";
/// Name of the variable that switches superpages for program text on.
pub const ENV_TEXT: &str = "QUIRE_TEXT";
/// Name of the variable that holds the share of a processor that copies may take.
pub const ENV_CPU: &str = "QUIRE_CPU";
/// Name of the variable that holds the policy by which memory is advised that
/// `libquire_provide.so` does not manage: `libquire.so` beside it.
pub const ENV_ADVICE: &str = "QUIRE_ADVICE";
/// Name of the variable that says whose `malloc` a program has for which memory is
/// provided. `quire run` reads it.
pub const ENV_MALLOC: &str = "QUIRE_MALLOC";
/// Name of the variable that holds the directory of the statistics pages.
pub const ENV_SESSION: &str = "QUIRE_SESSION";
/// The value of a variable that switches something on.
const ON: &str = "1";
/// Every variable that carries a setting.
pub const ENV_ALL: [&str; 10] = [
    ENV_POLICY,
    ENV_ADVICE,
    ENV_AHEAD,
    ENV_RESERVE_LIMIT,
    ENV_LARGEST,
    ENV_POOL_PAGE,
    ENV_ALIGN,
    ENV_TEXT,
    ENV_CPU,
    ENV_SESSION,
];
/// Where session directories are made.
pub const SESSION_ROOT: &str = "/dev/shm";
/// How the name of a session directory begins.
pub const SESSION_PREFIX: &str = "quire.";

/// How big a program's pages are (papers 000, 001 and 004).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Base pages only: transparent huge pages are switched off for the program.
    Base,
    /// A whole superpage at the first touch (LISP of paper 004; the kernel's
    /// transparent huge pages).
    Eager,
    /// Reserve at the first touch, populate page by page, promote when full
    /// (GISP, paper 000).
    Reserve,
    /// Superpages from the kernel's hugetlb pool (paper 001).
    Static,
    /// The page size follows what each region does (paper 001, dynamic variable
    /// pages).
    #[default]
    Adaptive,
}

impl Policy {
    /// Every policy, in the order in which help and reports list them.
    pub const ALL: [Policy; 5] = [
        Policy::Base,
        Policy::Eager,
        Policy::Reserve,
        Policy::Adaptive,
        Policy::Static,
    ];

    /// Whether memory is reserved at the first touch, populated page by page and
    /// promoted when full, where Quire provides the memory.
    #[must_use]
    pub const fn reserves(self) -> bool {
        matches!(self, Policy::Reserve | Policy::Adaptive)
    }

    /// The name that the command line and reports use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Base => "base",
            Policy::Eager => "eager",
            Policy::Reserve => "reserve",
            Policy::Static => "static",
            Policy::Adaptive => "adaptive",
        }
    }

    /// The number that stands for the policy in a statistics page.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Policy::Base => 0,
            Policy::Eager => 1,
            Policy::Reserve => 2,
            Policy::Static => 3,
            Policy::Adaptive => 4,
        }
    }

    /// The policy that `code` stands for.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Policy> {
        Policy::ALL.into_iter().find(|p| p.code() == code)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How a process gets its superpages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Memory stays the kernel's, private and anonymous; a thread looks at what is
    /// populated, and advises (`libquire.so`).
    Advise,
    /// Memory is Quire's own: an object on a private tmpfs, or hugetlb pages
    /// (`libquire_provide.so`, or the library that [`Malloc`] names).
    Provide,
}

/// Whose `malloc` a program has for which memory is provided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Malloc {
    /// The C library's, or the one that the program brings (`libquire_provide.so`).
    #[default]
    Libc,
    /// jemalloc on managed memory (`libquire_provide_jemalloc.so`).
    Jemalloc,
}

impl Malloc {
    /// Both.
    pub const ALL: [Malloc; 2] = [Malloc::Libc, Malloc::Jemalloc];

    /// The name that the command line uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Malloc::Libc => "libc",
            Malloc::Jemalloc => "jemalloc",
        }
    }
}

/// An allocator that `quire` does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown allocator `{0}`: choose libc or jemalloc")]
pub struct MallocError(pub String);

impl FromStr for Malloc {
    type Err = MallocError;

    fn from_str(text: &str) -> Result<Malloc, MallocError> {
        Malloc::ALL
            .into_iter()
            .find(|malloc| malloc.name() == text)
            .ok_or_else(|| MallocError(text.to_owned()))
    }
}

/// The policy by which what is not managed is advised where memory is provided: that of a
/// program with its own `malloc`, whose memory is the kernel's. Frames by strategy are of
/// private anonymous memory, of which nothing may be copied to other frames.
#[must_use]
pub fn advice(policy: Policy, malloc: Malloc, has_frames: bool) -> Option<Policy> {
    match policy {
        _ if malloc == Malloc::Jemalloc || has_frames => None,
        Policy::Base => None,
        Policy::Eager => Some(Policy::Eager),
        Policy::Reserve | Policy::Static | Policy::Adaptive => Some(Policy::Adaptive),
    }
}

/// A policy name that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy `{0}`: choose one of base, eager, reserve, adaptive, static")]
pub struct PolicyError(pub String);

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Policy, PolicyError> {
        Policy::ALL
            .into_iter()
            .find(|p| p.name() == text)
            .ok_or_else(|| PolicyError(text.to_owned()))
    }
}

/// A configuration that could not be read from the environment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The policy does not exist.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A size could not be read.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// A share of a processor could not be read.
    #[error(transparent)]
    Cpu(#[from] CpuShareError),
    /// A size of superpages does not exist.
    #[error(transparent)]
    Level(#[from] LevelError),
    /// A page size that no hugetlb pool has.
    #[error(transparent)]
    PoolPage(#[from] PoolPageError),
}

/// What a user chose for a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The page-size policy.
    pub policy: Policy,
    /// Bound of the pool of superpages that is zeroed ahead of need; zero
    /// switches the pool off.
    pub ahead: Bytes,
    /// Bound of the memory that is reserved but not populated.
    pub reserve_limit: Option<Bytes>,
    /// The largest superpage that reservations make.
    pub largest: Level,
    /// The largest page that `static` takes from the hugetlb pools.
    pub pool_page: PoolPage,
    /// Whether the program's own mappings of at least a superpage begin on a
    /// superpage boundary.
    pub align: bool,
    /// Whether program text and read-only data go onto superpages.
    pub text: bool,
    /// The share of one processor that copies may take, where it is not
    /// [`CpuShare::FOR_COPIES`].
    pub cpu: Option<CpuShare>,
    /// Directory in which each managed process keeps its statistics page.
    pub session: Option<String>,
}

impl Config {
    /// Reads the configuration from environment variables, of which `get`
    /// returns the value by name. What is not set takes its default.
    ///
    /// # Errors
    /// When a variable is set to something that cannot be read.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
        Ok(Config {
            policy: get(ENV_POLICY).map_or(Ok(Policy::default()), |t| t.parse())?,
            ahead: get(ENV_AHEAD).map_or(Ok(Bytes::ZERO), |t| t.parse())?,
            reserve_limit: get(ENV_RESERVE_LIMIT).map(|t| t.parse()).transpose()?,
            largest: get(ENV_LARGEST).map_or(Ok(Level::default()), |t| t.parse())?,
            pool_page: get(ENV_POOL_PAGE).map_or(Ok(PoolPage::default()), |t| t.parse())?,
            align: get(ENV_ALIGN).is_some_and(|t| t == ON),
            text: get(ENV_TEXT).is_some_and(|t| t == ON),
            cpu: get(ENV_CPU).map(|t| t.parse()).transpose()?,
            session: get(ENV_SESSION),
        })
    }

    /// How the process gets its superpages: by advice, unless something is asked for
    /// that advice cannot do.
    #[must_use]
    pub fn way(&self) -> Way {
        let asks = matches!(self.policy, Policy::Reserve | Policy::Static)
            || self.ahead > Bytes::ZERO
            || self.reserve_limit.is_some()
            || self.largest != Level::default()
            || self.pool_page != PoolPage::default()
            || self.align
            || self.text;
        if asks { Way::Provide } else { Way::Advise }
    }

    /// The environment variables that carry this configuration.
    #[must_use]
    pub fn to_env(&self) -> Vec<(&'static str, String)> {
        let mut vars = vec![
            (ENV_POLICY, self.policy.to_string()),
            (ENV_AHEAD, self.ahead.0.to_string()),
        ];
        if let Some(limit) = self.reserve_limit {
            vars.push((ENV_RESERVE_LIMIT, limit.0.to_string()));
        }
        if self.largest != Level::default() {
            vars.push((ENV_LARGEST, self.largest.bytes().0.to_string()));
        }
        if self.pool_page != PoolPage::default() {
            vars.push((ENV_POOL_PAGE, self.pool_page.to_string()));
        }
        for (name, on) in [(ENV_ALIGN, self.align), (ENV_TEXT, self.text)] {
            if on {
                vars.push((name, ON.to_owned()));
            }
        }
        if let Some(cpu) = self.cpu {
            vars.push((ENV_CPU, cpu.percent().to_string()));
        }
        if let Some(session) = &self.session {
            vars.push((ENV_SESSION, session.clone()));
        }
        vars
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_round_trip() {
        let config = Config {
            policy: Policy::Eager,
            ahead: Bytes::mib(64),
            reserve_limit: Some(Bytes::mib(1)),
            largest: Level::SMALLEST,
            pool_page: PoolPage::Superpage,
            align: true,
            text: true,
            cpu: CpuShare::from_percent(2.5),
            session: Some("/dev/shm/quire.7".into()),
        };
        let vars = config.to_env();
        let get = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| v.1.clone());
        assert_eq!(Config::from_env(get), Ok(config));
        assert_eq!(Config::from_env(|_| None), Ok(Config::default()));
    }

    #[test]
    fn memory_is_provided_only_where_that_is_asked_for() {
        let with = |policy| Config {
            policy,
            cpu: CpuShare::from_percent(5.0),
            ..Config::default()
        };
        let provided = |config: Config| config.way() == Way::Provide;
        for policy in Policy::ALL {
            let asked = matches!(policy, Policy::Reserve | Policy::Static);
            assert_eq!(provided(with(policy)), asked, "{policy}");
        }
        let adaptive = with(Policy::Adaptive);
        for asked in [
            Config {
                ahead: Bytes::mib(64),
                ..adaptive.clone()
            },
            Config {
                reserve_limit: Some(Bytes::mib(1)),
                ..adaptive.clone()
            },
            Config {
                largest: Level::SMALLEST,
                ..adaptive.clone()
            },
            Config {
                align: true,
                ..adaptive.clone()
            },
            Config {
                text: true,
                ..adaptive
            },
        ] {
            assert!(provided(asked));
        }
    }

    #[test]
    fn what_is_not_managed_is_advised() {
        let of = |policy| advice(policy, Malloc::Libc, false);
        assert_eq!(of(Policy::Reserve), Some(Policy::Adaptive));
        assert_eq!(of(Policy::Eager), Some(Policy::Eager));
        assert_eq!(of(Policy::Base), None);
        assert_eq!(advice(Policy::Reserve, Malloc::Jemalloc, false), None);
        assert_eq!(advice(Policy::Reserve, Malloc::Libc, true), None);
    }

    #[test]
    fn bad_values_are_refused() {
        let get = |name: &str| (name == ENV_POLICY).then(|| "huge".to_owned());
        let error = Config::from_env(get).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("base, eager, reserve, adaptive, static")
        );
    }
}
