//! Superpages for processes that were not started under Quire: static binaries,
//! programs with a runtime of their own, containers.
//!
//! Such a process is looked at from outside. Its populations come from its page
//! table, and full extents are promoted by the kernel on request. It is never
//! stopped, sent a signal, or changed in what its memory holds. What is known of its
//! memory, and when an extent is copied, is as inside of a program (`quire_advise`).
//! What is decided only from outside stands in `quire_core::attach`; how the kernel is
//! asked, in `quire_linux`.
//!
//! | module | holds |
//! |---|---|
//! | [`plan`] | what was asked for: which processes, how much of a processor |
//! | [`config`] | the same as a file |
//! | [`select`] | which processes that means now |
//! | [`process`] | one process as the kernel shows it |
//! | [`target`] | one process: looks, promotions, demotions |
//! | [`heat`] | which extents are accessed most |
//! | [`attach`] | all processes, in turn, within the budget |
//! | [`pages`] | what `quire stat` shows of the processes |
//! | [`service`] | the loop, signals, reloading |
//! | [`metrics`] | what is counted, for people and for Prometheus |
//! | [`http`] | where Prometheus fetches it |

pub mod attach;
pub mod config;
pub mod heat;
pub mod http;
pub mod metrics;
pub mod pages;
pub mod plan;
pub mod process;
pub mod select;
pub mod service;
pub mod target;

/// Why `quire attach` cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The kernel cannot promote on request, or does not show populations.
    #[error(
        "this kernel cannot {0}: quire attach needs Linux 6.7 or newer, and no filter that forbids the call"
    )]
    NotSupported(&'static str),
    /// A right is missing.
    #[error(
        "{what}: run it with sudo, or with the capabilities CAP_SYS_NICE and, for processes of other users, CAP_SYS_PTRACE"
    )]
    NotPermitted {
        /// What was refused.
        what: String,
    },
    /// There is no such process.
    #[error("there is no process {0}: `ps -e` lists them")]
    NoProcess(u32),
    /// The process cannot be attached to.
    #[error("cannot attach to process {pid}: {why}")]
    Unsuitable {
        /// The process.
        pid: u32,
        /// Why.
        why: &'static str,
    },
    /// There is no such control group.
    #[error(
        "{0} is no control group: name a directory below /sys/fs/cgroup, or a path such as /system.slice/web.service"
    )]
    NoGroup(String),
    /// The configuration file.
    #[error(transparent)]
    Config(#[from] quire_core::located::FileError),
    /// The address for Prometheus cannot be had.
    #[error("cannot listen on {address}: {error}; choose another address with --metrics")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why not.
        error: std::io::Error,
    },
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
}
