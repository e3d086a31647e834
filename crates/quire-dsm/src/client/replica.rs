//! A copy of an object at another server (`memory_object_replicate` of paper 003, Figure 1).
//!
//! Where servers are joined, any of them opens an object with the scheduler `distributed`, and
//! has a part in it from then on. To *replicate* an object gives a server its part ahead of
//! time: the servers agree on the new member then, and not when the first program waits.

use super::{Client, ClientError, done};
use crate::wire::control::{Answer, Failure, FailureKind, Name, Request, Rights, SchedulerKind};

impl Client {
    /// Gives the server of this link a part in an object that other servers have. Pages come
    /// when programs there touch them. The server keeps its part until it ends. Where it has
    /// one, nothing happens.
    ///
    /// # Errors
    /// When the server refuses, as it does where this program may not read the object, or one
    /// server alone keeps it; and when the server cannot be reached.
    pub fn replicate(&self, name: Name) -> Result<(), ClientError> {
        let rights = Rights {
            read: true,
            write: false,
        };
        let wanted = name.clone();
        let opened = self.ask(Request::Open {
            name: wanted,
            rights,
        })?;
        let Answer::Opened { object, info, .. } = opened else {
            return Err(ClientError::Confused);
        };
        // What has a part in an object is the server, not this program.
        done(self.ask(Request::Close { object })?)?;
        if info.scheduler != SchedulerKind::Distributed {
            let text = format!(
                "{name} is kept by one server alone; make it with the scheduler `distributed`"
            );
            let kind = FailureKind::Invalid;
            return Err(Failure { kind, text }.into());
        }
        Ok(())
    }
}
