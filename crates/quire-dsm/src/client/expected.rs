//! Objects that are expected: a child of `fork` maps what its parent has open, though no server can
//! be reached just then. Its touches wait for a link, as its parent's do, and no longer; the objects
//! are asked for over that as those are that were open when a link broke.

use std::sync::mpsc;
use std::time::Duration;

use super::carrier::{Command, Found};
use super::{Client, ClientError, Options, Shared, received};
use crate::wire::control::Rights;

/// What is known of an object that is open, for a child that cannot ask.
#[derive(Clone, Debug)]
pub struct Known {
    pub(super) is: Found,
    pub(super) rights: Rights,
    pub(super) is_attached: bool,
    /// How long touches wait for a new link.
    pub(super) reconnect: Duration,
}

impl Known {
    /// Whether it is open to be written to.
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        self.rights.write
    }
}

impl Shared {
    /// What a child needs to expect it.
    #[must_use]
    pub fn known(&self) -> Known {
        Known {
            is: self.is.clone(),
            rights: self.rights,
            is_attached: self.is_attached,
            reconnect: self.reconnect,
        }
    }
}

impl Client {
    /// Goes on to connect to a server that cannot be reached, until it can. Meanwhile questions
    /// fail.
    ///
    /// # Errors
    /// When the system refuses a thread, or what that needs.
    pub fn connect_later(options: Options, known: &Known) -> Result<Client, ClientError> {
        let reconnect = Some(known.reconnect);
        Client::start(
            Options {
                reconnect,
                ..options
            },
            None,
        )
    }

    /// Maps an object as it is known, also without a link.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn expect(&self, known: Known) -> Result<Shared, ClientError> {
        let (reply, answer) = mpsc::channel();
        let rights = known.rights;
        self.command(Command::Expect { known, reply })?;
        Ok(self.shared(received(&answer)??, rights))
    }
}
