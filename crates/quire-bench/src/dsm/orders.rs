//! What a worker is told: a task of [`super::worker`], with its options.

use std::time::Duration;

use super::site::{Served, Waiting};

/// Leases, where nothing else is measured.
const LEASE: Duration = Duration::from_secs(4);

/// A task and its options, as arguments.
#[derive(Clone, Debug)]
pub struct Orders(Vec<String>);

impl Orders {
    /// A task without any options.
    pub fn new(task: &str) -> Orders {
        Orders(vec![task.to_owned()])
    }

    /// The usual server.
    pub fn serve(waiting: Waiting) -> Orders {
        Orders::serve_leases(waiting, LEASE)
    }

    /// A server whose leases are so long.
    pub fn serve_leases(waiting: Waiting, lease: Duration) -> Orders {
        let serve = Orders::new("serve").waits(waiting);
        serve.with("--lease", lease.as_millis())
    }

    /// A task at a server's object.
    pub fn at(server: &Served, object: &str, task: &str) -> Orders {
        let orders = Orders::new(task).with("--server", &server.address);
        orders.with("--object", object)
    }

    /// Which member of how many it is.
    pub fn member(self, me: usize, members: usize) -> Orders {
        self.with("--me", me).with("--members", members)
    }

    /// How it waits.
    pub fn waits(self, waiting: Waiting) -> Orders {
        self.with("--spin", waiting.spin().as_micros())
    }

    /// One option more.
    pub fn with(mut self, option: &str, value: impl ToString) -> Orders {
        self.0.extend([option.to_owned(), value.to_string()]);
        self
    }

    /// One option more that has no value, if it is wanted.
    pub fn with_flag(mut self, flag: &str, wanted: bool) -> Orders {
        self.0.extend(wanted.then(|| flag.to_owned()));
        self
    }

    /// As arguments of a command.
    pub fn arguments(&self) -> &[String] {
        &self.0
    }
}
