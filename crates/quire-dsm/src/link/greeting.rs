//! Who may stay. The side that connects says who it is, once; the other welcomes or refuses
//! it. Where there is TLS, a name counts only if the peer's certificate is for it.

use std::fmt;

use super::connection::{Link, LinkError};
use super::transport::Peer;
use crate::wire::control::{Hello, Name, Reason, Refusal};

/// How a peer has shown who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proof {
    /// By a certificate for its name.
    Certificate,
    /// It is a process of this user of this machine, the kernel says.
    User(u32),
    /// Not at all. Its name is only what it says.
    Nothing,
}

/// A peer that has said who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// What it said.
    pub hello: Hello,
    /// Where it is.
    pub peer: Peer,
    /// How it has shown it.
    pub proof: Proof,
}

impl fmt::Display for Established {
    /// As whom it counts where rights are given: `NAME`, `uid:NUMBER`, or `anyone`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.proof {
            Proof::Certificate => self.hello.name.fmt(f),
            Proof::User(uid) => write!(f, "uid:{uid}"),
            Proof::Nothing => f.write_str("anyone"),
        }
    }
}

/// How a peer has shown that it has the name that it says.
///
/// # Errors
/// When its certificate is for another.
pub fn prove(link: &Link, claimed: &Name) -> Result<Proof, LinkError> {
    match (link.certificate_is_for(claimed), link.peer()) {
        (Some(Ok(())), _) => Ok(Proof::Certificate),
        (Some(Err(problem)), _) => Err(LinkError::Identity {
            claimed: claimed.clone(),
            problem,
        }),
        (None, Peer::Local { uid, .. }) => Ok(Proof::User(*uid)),
        (None, _) => Ok(Proof::Nothing),
    }
}

/// What a peer is told, where it is told why it may not stay.
#[must_use]
pub fn refusal(why: &LinkError) -> Option<Refusal> {
    let reason = match why {
        LinkError::Refused(refusal) => return Some(refusal.clone()),
        LinkError::Identity { .. } => Reason::Identity,
        LinkError::Wire(crate::wire::WireError::Version { .. }) => Reason::Version,
        LinkError::Wire(_)
        | LinkError::Unexpected(_)
        | LinkError::Descriptors(_)
        | LinkError::EarlyDescriptors(_) => Reason::Nonsense,
        _ => return None,
    };
    Some(Refusal {
        reason,
        text: why.to_string(),
    })
}
