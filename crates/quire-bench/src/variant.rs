//! The ways to run a program that are compared: an environment, and settings
//! of the kernel for the time of a run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use quire_core::config::{Config, Policy, SESSION_PREFIX, SESSION_ROOT, Way};
use quire_core::frames::config::FrameConfig;
use quire_core::units::{Bytes, SUPERPAGE};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::spec::Workload;
use crate::system::{HUGETLB_POOL, Setting, THP_ENABLED};
use crate::worker::failed;

/// Where Debian keeps shared libraries, and others do.
const LIBRARY_DIRS: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/lib/x86_64-linux-gnu",
];
/// A library of Quire: its file, the package that it is built from, and the variable that names another one.
#[derive(Clone, Copy, Debug)]
struct Library {
    file: &'static str,
    package: &'static str,
    variable: &'static str,
}

/// What advises.
const ADVISE: Library = Library {
    file: "libquire.so",
    package: "quire-preload",
    variable: "QUIRE_LIB",
};
/// What provides memory, also to `malloc`.
const PROVIDE: Library = Library {
    file: "libquire_provide_jemalloc.so",
    package: "quire-preload-provide-jemalloc",
    variable: "QUIRE_JEMALLOC_LIB",
};

/// A way to run a program.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Base pages of the kernel
    #[value(name = "4k")]
    #[serde(rename = "4k")]
    Kernel4k,
    /// The machine as it is set
    Plain,
    /// The kernel's transparent huge pages
    Thp,
    /// jemalloc, which asks for transparent huge pages
    JemallocThp,
    /// mimalloc, which asks for transparent huge pages
    Mimalloc,
    /// The C library's allocator, which asks for transparent huge pages
    #[value(name = "glibc-hugetlb1")]
    #[serde(rename = "glibc-hugetlb1")]
    GlibcHugetlb1,
    /// Quire's advice, base pages
    QuireBase,
    /// Quire's advice, superpages at the first touch
    QuireEager,
    /// Quire, reservation and promotion
    QuireReserve,
    /// Quire's advice, the default
    QuireAdaptive,
    /// Quire, hugetlb pages
    QuireStatic,
    /// Quire, eager, zeroed ahead
    QuireEagerAhead,
    /// Quire, reserve, zeroed ahead
    QuireReserveAhead,
}

/// What a variant sets for the time of a run; kernel settings are put back and
/// the session directory is removed when this is dropped.
#[derive(Debug, Default)]
pub struct Environment {
    /// Transparent huge pages are disabled for the child.
    pub no_thp: bool,
    /// The child asks for huge pages itself.
    pub madvise: bool,
    /// Environment variables of the child.
    pub vars: Vec<(String, String)>,
    /// What differs from what was wanted.
    pub notes: Vec<String>,
    session: Option<TempDir>,
    settings: Vec<Setting>,
}

/// Paths of the libraries that variants preload.
#[derive(Clone, Debug)]
pub struct Libraries {
    advise: Found,
    provide: Found,
}

/// A library, or why it cannot be had.
type Found = Result<PathBuf, String>;

/// Nobody has looked for it.
fn not_wanted() -> Found {
    Err(String::new())
}

impl Variant {
    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Variant::Kernel4k => "4k",
            Variant::Plain => "plain",
            Variant::Thp => "thp",
            Variant::JemallocThp => "jemalloc-thp",
            Variant::Mimalloc => "mimalloc",
            Variant::GlibcHugetlb1 => "glibc-hugetlb1",
            Variant::QuireBase => "quire-base",
            Variant::QuireEager => "quire-eager",
            Variant::QuireReserve => "quire-reserve",
            Variant::QuireAdaptive => "quire-adaptive",
            Variant::QuireStatic => "quire-static",
            Variant::QuireEagerAhead => "quire-eager-ahead",
            Variant::QuireReserveAhead => "quire-reserve-ahead",
        }
    }

    /// What it sets, for people.
    pub const fn description(self) -> &'static str {
        match self {
            Variant::Kernel4k => "PR_SET_THP_DISABLE",
            Variant::Plain => "nothing: the machine's own setting",
            Variant::Thp => "transparent_hugepage/enabled=always",
            Variant::JemallocThp => "LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=thp:always",
            Variant::Mimalloc => {
                "LD_PRELOAD=libmimalloc.so.2 MIMALLOC_LARGE_OS_PAGES=1 MIMALLOC_ALLOW_LARGE_OS_PAGES=1"
            }
            Variant::GlibcHugetlb1 => "GLIBC_TUNABLES=glibc.malloc.hugetlb=1",
            Variant::QuireBase => "QUIRE_POLICY=base",
            Variant::QuireEager => "QUIRE_POLICY=eager",
            Variant::QuireReserve => "QUIRE_POLICY=reserve, malloc by jemalloc",
            Variant::QuireAdaptive => "QUIRE_POLICY=adaptive",
            Variant::QuireStatic => {
                "QUIRE_POLICY=static, malloc by jemalloc, vm.nr_hugepages raised for the run"
            }
            Variant::QuireEagerAhead => "QUIRE_POLICY=eager QUIRE_AHEAD=256M, malloc by jemalloc",
            Variant::QuireReserveAhead => {
                "QUIRE_POLICY=reserve QUIRE_AHEAD=256M, malloc by jemalloc"
            }
        }
    }

    /// The policy of Quire, where it is one of Quire's.
    pub const fn policy(self) -> Option<Policy> {
        match self {
            Variant::QuireBase => Some(Policy::Base),
            Variant::QuireEager | Variant::QuireEagerAhead => Some(Policy::Eager),
            Variant::QuireReserve | Variant::QuireReserveAhead => Some(Policy::Reserve),
            Variant::QuireAdaptive => Some(Policy::Adaptive),
            Variant::QuireStatic => Some(Policy::Static),
            _ => None,
        }
    }

    /// The size of the pool that is zeroed ahead, where there is one.
    pub const fn ahead(self) -> Option<Bytes> {
        match self {
            Variant::QuireEagerAhead | Variant::QuireReserveAhead => Some(Bytes::mib(256)),
            _ => None,
        }
    }

    /// How Quire serves it, where it is one of Quire's.
    fn way(self) -> Option<Way> {
        let config = Config {
            policy: self.policy()?,
            ahead: self.ahead().unwrap_or_default(),
            ..Config::default()
        };
        Some(config.way())
    }

    /// Why it cannot be run here, or nothing.
    pub fn missing(self, libraries: &Libraries) -> Option<String> {
        let library = |name, package| match library(name) {
            Some(_) => None,
            None => Some(format!("{name} is missing (apt-get install {package})")),
        };
        match self {
            Variant::JemallocThp => library("libjemalloc.so.2", "libjemalloc2"),
            Variant::Mimalloc => library("libmimalloc.so.2", "libmimalloc2.0"),
            _ => libraries.of(self.way()?).clone().err(),
        }
    }

    /// Sets the machine up for one run of `workload`.
    pub fn prepare(
        self,
        workload: Workload,
        quick: bool,
        libraries: &Libraries,
    ) -> Result<Environment> {
        let mut environment = Environment::default();
        match self {
            Variant::Kernel4k => environment.no_thp = true,
            Variant::Plain => {}
            Variant::Thp => environment.enable_thp(workload)?,
            Variant::JemallocThp => {
                environment.preload(&library("libjemalloc.so.2").context("library vanished")?);
                environment.set("MALLOC_CONF", "thp:always");
            }
            Variant::Mimalloc => {
                environment.preload(&library("libmimalloc.so.2").context("library vanished")?);
                environment.set("MIMALLOC_LARGE_OS_PAGES", "1");
                environment.set("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1");
            }
            Variant::GlibcHugetlb1 => {
                environment.set("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
            }
            _ => environment.quire(self, workload, libraries)?,
        }
        if self == Variant::QuireStatic {
            environment.fill_pool(workload.footprint(quick));
        }
        Ok(environment)
    }
}

impl Environment {
    fn set(&mut self, name: &str, value: impl Into<String>) {
        self.vars.push((name.to_owned(), value.into()));
    }

    fn preload(&mut self, library: &Path) {
        self.set("LD_PRELOAD", library.display().to_string());
    }

    fn enable_thp(&mut self, workload: Workload) -> Result<()> {
        match Setting::change(THP_ENABLED, "always") {
            Ok(setting) => self.settings.push(setting),
            Err(error) if workload.runs_other_programs() => {
                return Err(error.context("other programs need the setting, which needs root"));
            }
            Err(_) => {
                self.madvise = true;
                self.notes
                    .push("THP by madvise in the workload: the setting needs root".into());
            }
        }
        Ok(())
    }

    fn quire(&mut self, variant: Variant, workload: Workload, libraries: &Libraries) -> Result<()> {
        let Some(policy) = variant.policy() else {
            bail!("{} is not available", variant.name());
        };
        let config = Config {
            policy,
            ahead: variant.ahead().unwrap_or_default(),
            reserve_limit: (workload == Workload::Failed && policy == Policy::Reserve)
                .then_some(failed::RESERVE_LIMIT),
            ..Config::default()
        };
        self.manage(libraries.have(config.way())?, config)
    }

    /// Puts a child under Quire, with a session of its own.
    fn manage(&mut self, library: &Path, mut config: Config) -> Result<()> {
        // `quire stat` sweeps sessions of which it does not know who awaits them.
        let (user, own) = (rustix::process::geteuid().as_raw(), std::process::id());
        let session = tempfile::Builder::new()
            .prefix(&format!("{SESSION_PREFIX}{user}.{own}."))
            .tempdir_in(SESSION_ROOT)
            .with_context(|| format!("making a session directory in {SESSION_ROOT}"))?;
        config.session = Some(session.path().display().to_string());
        self.preload(library);
        for (name, value) in config.to_env() {
            self.set(name, value);
        }
        self.session = Some(session);
        Ok(())
    }

    /// Base pages of the kernel.
    pub fn base_pages() -> Environment {
        Environment {
            no_thp: true,
            ..Environment::default()
        }
    }

    /// What `quire run --frames` sets up.
    pub fn frames(libraries: &Libraries, frames: &FrameConfig) -> Result<Environment> {
        Environment::frames_with(libraries, frames, Config::default())
    }

    /// What `quire run --policy base --frames` sets up: all memory is on base pages,
    /// whoever chooses the frames.
    pub fn frames_of_base_pages(
        libraries: &Libraries,
        frames: &FrameConfig,
    ) -> Result<Environment> {
        let config = Config {
            policy: Policy::Base,
            ..Config::default()
        };
        Environment::frames_with(libraries, frames, config)
    }

    fn frames_with(
        libraries: &Libraries,
        frames: &FrameConfig,
        config: Config,
    ) -> Result<Environment> {
        let mut environment = Environment::default();
        environment.manage(libraries.have(Way::Provide)?, config)?;
        for (name, value) in frames.to_env() {
            environment.set(name, value);
        }
        Ok(environment)
    }

    /// The session directory, where Quire manages the child.
    pub fn session(&self) -> Option<&Path> {
        self.session.as_ref().map(TempDir::path)
    }

    fn fill_pool(&mut self, bytes: u64) {
        // Allocators round up, and Quire keeps some in hand.
        let pages = bytes * 3 / 2 / SUPERPAGE + 64;
        match Setting::change(HUGETLB_POOL, &pages.to_string()) {
            Ok(setting) => self.settings.push(setting),
            Err(error) => self
                .notes
                .push(format!("hugetlb pool as it was: {error:#}")),
        }
        let have = std::fs::read_to_string(HUGETLB_POOL).unwrap_or_default();
        if have.trim().parse::<u64>().is_ok_and(|n| n < pages) {
            self.notes.push(format!(
                "hugetlb pool of {} of {pages} superpages",
                have.trim()
            ));
        }
    }
}

/// Where a shared library is.
fn library(name: &str) -> Option<PathBuf> {
    LIBRARY_DIRS
        .iter()
        .map(|d| Path::new(d).join(name))
        .find(|p| p.exists())
}

impl Libraries {
    /// Why a library of Quire cannot be had, if it was looked for in vain.
    pub fn missing(&self) -> Option<&str> {
        let missing = |found: &'_ Found| found.as_ref().err().is_some_and(|why| !why.is_empty());
        let all = [&self.advise, &self.provide];
        let first = all.into_iter().find(|found| missing(found))?;
        first.as_ref().err().map(String::as_str)
    }

    /// Finds the libraries of Quire, and builds them if `needed` and not there.
    pub fn find(needed: bool) -> Libraries {
        let find = |library| match needed {
            true => find_library(library).map_err(|error| format!("{error:#}")),
            false => not_wanted(),
        };
        Libraries {
            advise: find(ADVISE),
            provide: find(PROVIDE),
        }
    }

    const fn of(&self, way: Way) -> &Found {
        match way {
            Way::Advise => &self.advise,
            Way::Provide => &self.provide,
        }
    }

    fn have(&self, way: Way) -> Result<&Path> {
        let found = self.of(way).as_deref();
        found.map_err(|why| anyhow::anyhow!("{why}"))
    }
}

impl Default for Libraries {
    fn default() -> Libraries {
        Libraries::find(false)
    }
}

fn find_library(library: Library) -> Result<PathBuf> {
    let Library {
        file,
        package,
        variable,
    } = library;
    if let Some(path) = std::env::var_os(variable).map(PathBuf::from) {
        return path
            .canonicalize()
            .with_context(|| format!("{variable}={}", path.display()));
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| workspace.join("target"));
    let path = target.join("preload").join(file);
    if !path.exists() {
        eprintln!("quire-bench: building {file}");
        let output = Command::new("cargo")
            .args(["build", "--profile", "preload", "-p", package])
            .current_dir(&workspace)
            .output();
        if !output.is_ok_and(|o| o.status.success()) || !path.exists() {
            bail!(
                "{file} is missing (cargo build --profile preload -p {package}, or set {variable})"
            );
        }
    }
    Ok(path.canonicalize()?)
}
