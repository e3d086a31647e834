//! What a loop is told at its beginning.

use std::time::{Duration, Instant};

use super::asleep;
use crate::link::connection::Patience;
use crate::wire::control::Hello;

/// What a loop is told at its beginning.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who this side is, for servers to which it connects.
    pub hello: Hello,
    /// How much peers may leave unread.
    pub patience: Patience,
    /// A peer must have said who it is within this time.
    pub greeting: Duration,
    /// There may be so many links; more are closed as they come.
    pub most_links: usize,
    /// A machine that acknowledges nothing for so long is gone (TCP).
    pub tcp_timeout: Duration,
    /// After something happened, the loop looks for more for so long before it sleeps.
    pub spin: Duration,
    /// Where the system allows it, and nothing spins, the thread goes before all programs
    /// ([`super::Turn::go_first`]).
    pub realtime: bool,
    /// What tells the time. Simulations have a clock of their own.
    pub clock: fn() -> Instant,
    /// For how long the machine has been there, with the time in which it was asleep.
    pub since_boot: fn() -> Duration,
}

impl Config {
    /// The usual: 5 s for a hello, 4096 kernels and 512 links more, no spinning, the
    /// system's clock.
    #[must_use]
    pub fn new(hello: Hello) -> Config {
        Config {
            hello,
            patience: Patience::default(),
            greeting: Duration::from_secs(5),
            most_links: 4096 + 512,
            tcp_timeout: Duration::from_secs(10),
            spin: Duration::ZERO,
            realtime: true,
            clock: Instant::now,
            since_boot: asleep::since_boot,
        }
    }
}
