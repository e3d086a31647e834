//! Watching what the scheduler of an object is told and tells.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use quire_core::dsm::message::Pages;

use super::carrier::Command;
use super::{Client, ClientError, ended};
use crate::wire::control::{Answer, Name, Request, Watched};

/// Somebody who watches an object.
pub struct Watch<'a> {
    client: &'a Client,
    name: Name,
    pages: Option<Pages>,
    answer: Receiver<Result<Answer, ClientError>>,
}

impl Client {
    /// Watches an object: messages about these pages and those that name none, or all. When
    /// this returns, the server has begun to look. It goes on until this client ends.
    ///
    /// # Errors
    /// When the server refuses or cannot be reached.
    pub fn watch(&self, name: Name, pages: Option<Pages>) -> Result<Watch<'_>, ClientError> {
        let answer = ask(self, &name, pages)?;
        let mut watch = Watch {
            client: self,
            name,
            pages,
            answer,
        };
        // The first answer says that it has begun.
        let first = watch.answer.recv().map_err(|_| ended())?;
        watched(first?)?;
        watch.answer = ask(self, &watch.name, pages)?;
        Ok(watch)
    }
}

impl Watch<'_> {
    /// What was seen since this was last asked; nothing, where there was nothing for so long.
    ///
    /// # Errors
    /// When the server refuses or cannot be reached, and when the object was removed.
    pub fn next(&mut self, patience: Duration) -> Result<Option<Watched>, ClientError> {
        match self.answer.recv_timeout(patience) {
            Ok(answer) => {
                let watched = watched(answer?)?;
                self.answer = ask(self.client, &self.name, self.pages)?;
                Ok(Some(watched))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(ended()),
        }
    }
}

fn ask(
    client: &Client,
    name: &Name,
    pages: Option<Pages>,
) -> Result<Receiver<Result<Answer, ClientError>>, ClientError> {
    let (reply, answer) = mpsc::channel();
    let name = name.clone();
    let request = Request::Watch { name, pages };
    client.command(Command::Ask { request, reply })?;
    Ok(answer)
}

fn watched(answer: Answer) -> Result<Watched, ClientError> {
    match answer {
        Answer::Watched(watched) => Ok(watched),
        _ => Err(ClientError::Confused),
    }
}
