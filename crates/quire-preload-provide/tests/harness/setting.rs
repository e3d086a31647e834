//! The settings under which programs run: policies, options and users.

use std::ffi::OsString;
use std::path::PathBuf;

use super::cgroup::MemoryCgroup;
use super::{build, pool, process};

/// One way of running a program.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// For messages.
    pub name: &'static str,
    /// Value of `QUIRE_POLICY`; none: the library is not loaded.
    pub policy: Option<&'static str>,
    /// Further variables.
    pub env: &'static [(&'static str, &'static str)],
    /// Whether `malloc` is jemalloc on managed memory.
    pub jemalloc: bool,
    /// Whether to run as a user without privileges.
    pub unprivileged: bool,
    /// Size of the hugetlb pool of 2 MiB pages during the run.
    pub pool_pages: Option<u64>,
    /// How many pages of 1 GiB must be free.
    pub gigapages: u64,
}

const fn with(name: &'static str, policy: &'static str) -> Setting {
    Setting {
        name,
        policy: Some(policy),
        env: &[],
        jemalloc: false,
        unprivileged: false,
        pool_pages: None,
        gigapages: 0,
    }
}

/// Without the library.
pub const PLAIN: Setting = Setting {
    policy: None,
    ..with("no library", "")
};
/// Base pages.
pub const BASE: Setting = with("base", "base");
/// A superpage at the first touch.
pub const EAGER: Setting = with("eager", "eager");
/// Reservations.
pub const RESERVE: Setting = with("reserve", "reserve");
/// Page sizes that follow what regions do.
pub const ADAPTIVE: Setting = with("adaptive", "adaptive");
/// Reservations with a pool of zeroed superpages.
pub const RESERVE_AHEAD: Setting = Setting {
    env: &[("QUIRE_AHEAD", "64M")],
    ..with("reserve with a pool", "reserve")
};
/// Reservations that are taken back all the time.
pub const RESERVE_LIMIT: Setting = Setting {
    env: &[("QUIRE_RESERVE_LIMIT", "8M")],
    ..with("reserve with a limit", "reserve")
};
/// Reservations that fail, all of them.
pub const RESERVE_NONE: Setting = Setting {
    env: &[("QUIRE_RESERVE_LIMIT", "1M")],
    ..with("reserve without room", "reserve")
};
/// The same with page sizes that follow what regions do.
pub const ADAPTIVE_NONE: Setting = Setting {
    env: RESERVE_NONE.env,
    ..with("adaptive without room", "adaptive")
};
/// Reservations of small folios, as where no block of 2 MiB is free.
pub const RESERVE_SMALL: Setting = Setting {
    env: &[("QUIRE_LARGEST", "64K")],
    ..with("reserve with small folios", "reserve")
};
/// Page colouring, with the colours of most second-level caches.
pub const COLOUR: Setting = Setting {
    env: &[("QUIRE_STRATEGY", "colour"), SIXTEEN_COLOURS],
    jemalloc: true,
    ..with("page colouring", "base")
};
/// The kernel's choice of frames, of pages that can be moved.
pub const KERNEL_FRAMES: Setting = Setting {
    env: &[SIXTEEN_COLOURS],
    jemalloc: true,
    ..with("frames of the kernel's choice", "base")
};
/// Page colouring that is not handed down.
pub const COLOUR_ALONE: Setting = Setting {
    env: &[
        ("QUIRE_STRATEGY", "colour"),
        SIXTEEN_COLOURS,
        ("QUIRE_NO_INHERIT", "1"),
    ],
    jemalloc: true,
    ..with("page colouring alone", "base")
};
/// Page colouring with other colours in each process.
pub const COLOUR_HASHED: Setting = Setting {
    env: &[("QUIRE_STRATEGY", "colour:hashed"), SIXTEEN_COLOURS],
    jemalloc: true,
    ..with("hashed page colouring", "base")
};
/// Bin hopping.
pub const BINHOP: Setting = Setting {
    env: &[("QUIRE_STRATEGY", "binhop"), SIXTEEN_COLOURS],
    jemalloc: true,
    ..with("bin hopping", "base")
};
/// A quarter of the colours.
pub const MODULO: Setting = Setting {
    env: &[("QUIRE_STRATEGY", "modulo:4-7"), SIXTEEN_COLOURS],
    jemalloc: true,
    ..with("modulo", "base")
};
/// The same, with no more of the others in stock than one folio has.
pub const MODULO_SMALL_STOCK: Setting = Setting {
    env: &[
        ("QUIRE_STRATEGY", "modulo:4-7"),
        SIXTEEN_COLOURS,
        ("QUIRE_STOCK", "65536"),
    ],
    jemalloc: true,
    ..with("modulo with a small stock", "base")
};
/// A strategy for the heap, and superpages for what else there is.
pub const HEAP_HINT: Setting = Setting {
    env: &[("QUIRE_HINTS", "heap=colour"), SIXTEEN_COLOURS],
    jemalloc: true,
    ..with("a hint for the heap", "eager")
};
/// Superpages, and what colours there are if a hint asks for some.
pub const NO_STRATEGY: Setting = Setting {
    env: &[SIXTEEN_COLOURS],
    jemalloc: true,
    ..with("no strategy without a hint", "eager")
};
/// A strategy for stacks, and superpages for what else there is.
pub const STACK_HINT: Setting = Setting {
    env: &[("QUIRE_HINTS", "stack=colour"), SIXTEEN_COLOURS],
    jemalloc: true,
    ..with("a hint for stacks", "reserve")
};
const SIXTEEN_COLOURS: (&str, &str) = ("QUIRE_COLOURS", "12,13,14,15");
/// The kernel's pool, with room for most programs.
pub const STATIC: Setting = Setting {
    pool_pages: Some(384),
    ..with("static", "static")
};
/// The kernel's pools, with a page of 1 GiB at least.
pub const STATIC_GIGA: Setting = Setting {
    gigapages: 1,
    ..with("static with pages of 1 GiB", "static")
};
/// The kernel's pool, which runs dry in the middle.
pub const STATIC_SMALL: Setting = Setting {
    pool_pages: Some(24),
    ..with("static with a small pool", "static")
};
/// Superpages at the first touch, also for `malloc`.
pub const EAGER_JEMALLOC: Setting = EAGER.with_jemalloc("eager with jemalloc");
/// Reservations, also for `malloc`.
pub const RESERVE_JEMALLOC: Setting = RESERVE.with_jemalloc("reserve with jemalloc");
/// Page sizes that follow what regions do, also for `malloc`.
pub const ADAPTIVE_JEMALLOC: Setting = ADAPTIVE.with_jemalloc("adaptive with jemalloc");
/// The kernel's pool, also for `malloc`.
pub const STATIC_JEMALLOC: Setting = STATIC.with_jemalloc("static with jemalloc");
/// Reservations without privileges, also for `malloc`.
pub const UNPRIVILEGED_JEMALLOC: Setting =
    UNPRIVILEGED.with_jemalloc("reserve without privileges with jemalloc");
/// Page colouring of what the program itself maps.
pub const COLOUR_LIBC: Setting = Setting {
    jemalloc: false,
    name: "page colouring of mappings",
    ..COLOUR
};
/// Reservations as a user without privileges.
pub const UNPRIVILEGED: Setting = Setting {
    unprivileged: true,
    ..with("reserve without privileges", "reserve")
};

impl Setting {
    /// Whether the heap of a program surely comes to lie on superpages, given
    /// root.
    pub fn promises_superpages(&self) -> bool {
        self.jemalloc
            && !self.unprivileged
            && matches!(self.policy, Some("eager" | "reserve" | "adaptive"))
    }

    /// The libraries that are preloaded, as `quire run` does it.
    pub fn libraries(&self) -> Vec<PathBuf> {
        let provider = match self.jemalloc {
            true => build::jemalloc(),
            false => build::library(),
        };
        let adviser = self.advice().map(|_| build::adviser().to_owned());
        adviser.into_iter().chain([provider.to_owned()]).collect()
    }

    /// By which policy what is not managed is advised.
    fn advice(&self) -> Option<&'static str> {
        let has_frames = self.env.iter().any(|(name, _)| *name == "QUIRE_COLOURS");
        match self.policy {
            _ if self.jemalloc || has_frames => None,
            None | Some("base") => None,
            Some("eager") => Some("eager"),
            Some(_) => Some("adaptive"),
        }
    }

    /// The same with jemalloc.
    const fn with_jemalloc(self, name: &'static str) -> Setting {
        Setting {
            name,
            jemalloc: true,
            ..self
        }
    }

    /// The same with the program's own mappings on superpage boundaries.
    pub const fn aligned(self) -> Setting {
        Setting {
            env: &[("QUIRE_ALIGN", "1")],
            ..self
        }
    }

    /// The same user without the library.
    pub const fn without_library(&self) -> Setting {
        Setting {
            unprivileged: self.unprivileged,
            ..PLAIN
        }
    }

    /// Why this setting cannot be had here.
    pub fn missing(&self) -> Option<String> {
        if let Some(reason) = pool::missing_gigapages(self.gigapages) {
            return Some(reason);
        }
        if let Some(pages) = self.pool_pages {
            return pool::missing(pages);
        }
        // Without root, every run is one without privileges.
        if self.unprivileged && process::is_root() && process::find("setpriv").is_none() {
            return Some("setpriv is missing".to_owned());
        }
        None
    }

    /// The command line that runs `argv` in this setting. Variables are set by
    /// `env` at the very end, so that only the program itself is preloaded.
    pub fn command(
        &self,
        argv: &[OsString],
        libraries: &[PathBuf],
        cgroup: Option<&MemoryCgroup>,
    ) -> Vec<OsString> {
        let mut command: Vec<OsString> = Vec::new();
        if let Some(cgroup) = cgroup {
            let enter = r#"echo 0 > "$0" && exec "$@""#;
            command.extend(["sh", "-c", enter].map(OsString::from));
            command.push(cgroup.procs_file().into());
        }
        if self.unprivileged && process::is_root() {
            let drop = [
                "setpriv",
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
            ];
            command.extend(drop.map(OsString::from));
        }
        command.push("env".into());
        if let Some(policy) = self.policy.filter(|_| !libraries.is_empty()) {
            let paths: Vec<_> = libraries.iter().map(|l| l.display().to_string()).collect();
            command.push(format!("LD_PRELOAD={}", paths.join(":")).into());
            command.push(format!("QUIRE_POLICY={policy}").into());
            command.extend(
                self.advice()
                    .map(|policy| format!("QUIRE_ADVICE={policy}").into()),
            );
            command.extend(self.env.iter().map(|(k, v)| format!("{k}={v}").into()));
        }
        command.extend_from_slice(argv);
        command
    }
}
