//! Where to listen and connect, and which addresses need TLS: all that other machines can
//! reach, unless somebody says that they shall not.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use super::identity::Identity;

/// So many bytes may be in the path of a socket: `sun_path` has room for a zero after them.
const LONGEST_PATH: usize = 107;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// An address that cannot be one, or is not to be used so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It cannot be read.
    #[error("{0:?} is no address: write HOST:PORT, or unix:PATH for a socket on this machine")]
    Unreadable(String),
    /// The path of a socket is too long for the kernel.
    #[error(
        "the path of {0} is too long for a socket: it may have {LONGEST_PATH} bytes, so take a shorter one"
    )]
    TooLong(Address),
    /// One of several cannot be read.
    #[error(
        "{0:?}, in {1:?}, is no address: write HOST:PORT or unix:PATH, with a comma between two of them; a comma in a PATH is written twice"
    )]
    InList(String, String),
    /// Nobody knows the host.
    #[error(
        "the host of {0} cannot be found ({1}): see whether its name is right and this machine can look it up, or write its number"
    )]
    Unknown(String, String),
    /// It needs TLS.
    #[error(
        "{0} can be reached from other machines, and there is no certificate: give one with its key and CA, or allow plain text explicitly"
    )]
    NeedsIdentity(Address),
}

impl Address {
    /// Whether only this machine reaches it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Address::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Address::Unix(_) => true,
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    /// Reads `HOST:PORT` or `unix:PATH`. A name of a host is looked up, which may take
    /// seconds.
    fn from_str(text: &str) -> Result<Address, AddressError> {
        let unreadable = || AddressError::Unreadable(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err(unreadable()),
                path if path.len() > LONGEST_PATH => {
                    Err(AddressError::TooLong(Address::Unix(path.into())))
                }
                path => Ok(Address::Unix(path.into())),
            };
        }
        let found = text.to_socket_addrs();
        let mut found = found.map_err(|error| match names_a_host(text) {
            true => AddressError::Unknown(text.to_owned(), reason(&error)),
            false => unreadable(),
        })?;
        found.next().map(Address::Tcp).ok_or_else(unreadable)
    }
}

/// Whether a text has the form `HOST:PORT`, whatever HOST is.
fn names_a_host(text: &str) -> bool {
    let is_known = |c: char| c.is_alphanumeric() || "-._".contains(c);
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && host.chars().all(is_known) && port.parse::<u16>().is_ok()
    })
}

/// Why a host was not found, without what is said of it anyway.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let known = text.strip_prefix("failed to lookup address information: ");
    known.unwrap_or(&text).to_owned()
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// How the links of an address are secured.
#[derive(Clone, Debug)]
pub enum Security {
    /// TLS where other machines reach the address; there must be an identity then.
    Automatic(Option<Arc<Identity>>),
    /// TLS everywhere but on Unix sockets.
    Tls(Arc<Identity>),
    /// None. Who listens on the way reads and changes everything.
    Plaintext,
}

impl Security {
    /// Whether an address needs TLS, and there is no identity.
    #[must_use]
    pub fn lacks_identity(&self, address: &Address) -> bool {
        matches!(self, Security::Automatic(None)) && !address.is_local()
    }

    /// What an address needs: an identity for TLS, or nothing.
    ///
    /// # Errors
    /// When it needs TLS and there is no identity.
    pub fn for_address(&self, address: &Address) -> Result<Option<Arc<Identity>>, AddressError> {
        match (self, address) {
            (Security::Plaintext, address) => {
                if !address.is_local() {
                    tracing::warn!(%address, "plain text over the network, as it was asked for");
                }
                Ok(None)
            }
            (_, Address::Unix(_)) => Ok(None),
            (Security::Tls(identity), _) => Ok(Some(Arc::clone(identity))),
            (security, address) if security.lacks_identity(address) => {
                Err(AddressError::NeedsIdentity(address.clone()))
            }
            (Security::Automatic(Some(identity)), address) if !address.is_local() => {
                Ok(Some(Arc::clone(identity)))
            }
            (Security::Automatic(_), _) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for text in ["127.0.0.1:7000", "[::1]:80", "unix:/run/quire.sock"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        for text in ["", "unix:", "127.0.0.1", "127.0.0.1:99999"] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.to_string().contains("write HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn the_path_of_a_socket_has_a_length() {
        let path = |length: usize| format!("unix:/{}", "a".repeat(length - 1));
        assert!(path(LONGEST_PATH).parse::<Address>().is_ok());
        let error = path(LONGEST_PATH + 1).parse::<Address>().unwrap_err();
        assert!(error.to_string().contains("107 bytes"), "{error}");
    }

    #[test]
    fn a_host_that_is_not_there_is_no_malformed_address() {
        let error = "nowhere.invalid:7450".parse::<Address>().unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("nowhere.invalid:7450 cannot be found"),
            "{error}"
        );
        for text in ["no where:1", ":7450", "::1", "http://127.0.0.1:1"] {
            let error = text.parse::<Address>().unwrap_err();
            assert_eq!(error, AddressError::Unreadable(text.to_owned()));
        }
    }

    #[test]
    fn what_other_machines_reach_needs_tls_unless_told() {
        let automatic = Security::Automatic(None);
        for text in [
            "127.0.0.1:1",
            "127.9.9.9:1",
            "[::1]:1",
            "[::ffff:127.0.0.1]:1",
            "unix:/x",
        ] {
            let address = text.parse().unwrap();
            assert!(automatic.for_address(&address).unwrap().is_none(), "{text}");
        }
        for text in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1"] {
            let address = text.parse().unwrap();
            let error = automatic.for_address(&address).unwrap_err();
            assert_eq!(error, AddressError::NeedsIdentity(address.clone()));
            assert!(Security::Plaintext.for_address(&address).unwrap().is_none());
        }
    }
}
