//! Where to listen and connect, and which addresses need TLS: all that other machines can
//! reach, unless somebody says that they shall not.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use super::identity::Identity;

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
    /// One of several cannot be read.
    #[error(
        "{0:?}, in {1:?}, is no address: write HOST:PORT or unix:PATH, with a comma between two of them; a comma in a PATH is written twice"
    )]
    InList(String, String),
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
                path => Ok(Address::Unix(path.into())),
            };
        }
        let mut found = text.to_socket_addrs().map_err(|_| unreadable())?;
        found.next().map(Address::Tcp).ok_or_else(unreadable)
    }
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
            (Security::Automatic(_), address) if address.is_local() => Ok(None),
            (Security::Automatic(Some(identity)), _) => Ok(Some(Arc::clone(identity))),
            (Security::Automatic(None), address) => {
                Err(AddressError::NeedsIdentity(address.clone()))
            }
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
