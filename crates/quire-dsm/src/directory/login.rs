//! A user of an etcd that has authentication enabled. It is asked once for a token, which goes
//! with each request from then on; when etcd does not know the token any more, for a new one.

use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::http::Failure;
use crate::link::identity::{self, IdentityError};

/// A user's name and password.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdUser {
    /// What etcd calls the user.
    pub name: String,
    password: String,
}

impl EtcdUser {
    /// A user whose password is the first line of a file.
    ///
    /// # Errors
    /// When it cannot be read, or others may read it.
    pub fn load(name: &str, password: &Path) -> Result<EtcdUser, IdentityError> {
        let text = identity::read_secret(password)?;
        Ok(EtcdUser {
            name: name.to_owned(),
            password: text.lines().next().unwrap_or_default().to_owned(),
        })
    }
}

impl fmt::Debug for EtcdUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdUser")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A user, and the token that was got last.
pub(super) struct Login {
    user: EtcdUser,
    token: Mutex<Option<String>>,
}

impl Login {
    pub(super) const fn new(user: EtcdUser) -> Login {
        Login {
            user,
            token: Mutex::new(None),
        }
    }

    /// Makes a request with a token, which `authenticate` gets from etcd where there is none, or
    /// where etcd does not know it any more.
    pub(super) fn with_token<T>(
        &self,
        authenticate: impl Fn(&Value) -> Result<Value, Failure>,
        request: impl Fn(&str) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let last = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = last.clone() {
            drop(last);
            match request(&token) {
                Err(failure) if is_of_a_token(&failure) => {}
                other => return other,
            }
        } else {
            drop(last);
        }
        let EtcdUser { name, password } = &self.user;
        let answer = authenticate(&json!({ "name": name, "password": password }))?;
        let token = answer.get("token").and_then(Value::as_str);
        let token =
            token.ok_or_else(|| Failure::Refused(200, "there is no token for us".to_owned()))?;
        let mut last = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some(token.to_owned());
        drop(last);
        request(token)
    }
}

/// Whether a new token may help: it is unknown, or older than a change of users or roles.
fn is_of_a_token(failure: &Failure) -> bool {
    match failure {
        Failure::Refused(401, _) => true,
        Failure::Refused(_, why) => {
            why.contains("invalid auth token") || why.contains("auth store is old")
        }
        Failure::Silent(_) => false,
    }
}
