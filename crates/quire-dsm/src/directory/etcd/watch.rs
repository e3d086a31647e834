//! The stream of an etcd's changes. It begins again where it broke off, and at another etcd where
//! this one cannot hear of changes any more.
//!
//! An etcd that is cut off from its peer servers keeps a stream open and says nothing. Two things end
//! that. The request asks for a leader, so an etcd that has had none for three of its election timeouts
//! ends the stream with an error. And one whose stream is silent is asked something
//! that takes a majority: an etcd that hangs, or that takes itself for well, does not answer that.
//! (etcd's own signs of progress come every ten minutes, unless it is told otherwise.)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quire_core::dsm::message::ServerId;
use serde_json::{Value, json};

use super::super::http::{BLINK, Client, Failure, Lines, message};
use super::super::{Change, Watcher};
use super::{decode, encode, number, prefix_of};

/// Where a stream was silent for so long, its etcd is asked whether it has a majority.
const SILENCE: Duration = Duration::from_secs(2);

/// A stream of changes, as a thread listens to it.
pub(super) struct Watch {
    client: Client,
    prefix: String,
    dropped: Arc<AtomicBool>,
    watcher: Watcher,
    /// The revision from which on nothing was heard yet.
    next: Option<u64>,
    /// The watcher has to read all anew, as soon as nothing more is missed.
    missed: bool,
}

/// Why listening ends.
enum End {
    /// Nobody listens any more.
    Unheard,
    /// The stream goes on, where it is asked for again.
    Again,
    /// The connection has ended.
    Broken(String),
    /// The etcd, of this number, cannot hear of changes.
    Deaf(usize, String),
}

impl Watch {
    pub(super) fn new(
        client: Client,
        prefix: String,
        dropped: Arc<AtomicBool>,
        watcher: Watcher,
    ) -> Watch {
        Watch {
            client,
            prefix,
            dropped,
            watcher,
            next: None,
            missed: true,
        }
    }

    /// Listens until the directory is dropped or nobody listens any more.
    pub(super) fn run(mut self) {
        while !self.dropped.load(Ordering::Relaxed) {
            match self.listen() {
                End::Unheard => break,
                End::Again => {}
                End::Broken(why) => tracing::warn!("the directory's changes break off: {why}"),
                End::Deaf(endpoint, why) => {
                    tracing::warn!(
                        "{} does not hear of the directory's changes any more: {why}; \
                         another etcd is asked, and all is read anew",
                        self.client.endpoints().at(endpoint).authority
                    );
                    self.client.endpoints().pass_over(endpoint);
                    self.missed = true;
                }
            }
            thread::sleep(BLINK);
        }
    }

    /// Listens until the stream ends.
    fn listen(&mut self) -> End {
        let mut lines = match self.open() {
            Ok(lines) => lines,
            Err(failure) => {
                tracing::warn!("cannot watch the directory: {failure:?}");
                return End::Again;
            }
        };
        let mut heard = Instant::now();
        while !self.dropped.load(Ordering::Relaxed) {
            let end = match lines.next() {
                Ok(Some(line)) => {
                    heard = Instant::now();
                    self.hear(&line, lines.endpoint())
                }
                Ok(None) if heard.elapsed() >= SILENCE => {
                    let asked = self.ask_for_majority(&lines);
                    heard = Instant::now();
                    asked
                }
                Ok(None) => Ok(()),
                Err(error) => Err(End::Broken(error.to_string())),
            };
            if let Err(end) = end {
                return end;
            }
        }
        End::Unheard
    }

    fn open(&self) -> Result<Lines, Failure> {
        let (from, to) = prefix_of(&self.prefix);
        let mut request = json!({ "key": from, "range_end": to });
        if let Some(next) = self.next {
            request["start_revision"] = json!(next.to_string());
        }
        let body = json!({ "create_request": request });
        self.client.stream("/v3/watch", &body)
    }

    /// Reads a key, as little as there is, which takes a majority.
    fn ask_for_majority(&self, lines: &Lines) -> Result<(), End> {
        let body = json!({ "key": encode(&self.prefix), "count_only": true });
        match self.client.ask_same(lines, "/v3/kv/range", &body) {
            Ok(_) | Err(Failure::Refused(..)) => Ok(()),
            Err(Failure::Silent(why)) => Err(End::Deaf(lines.endpoint(), why)),
        }
    }

    /// Takes a line from an etcd.
    fn hear(&mut self, line: &Value, endpoint: usize) -> Result<(), End> {
        let Some(result) = line.get("result") else {
            let why = message(line).unwrap_or("it makes no sense").to_owned();
            return Err(End::Deaf(endpoint, why));
        };
        if result.get("canceled").is_some() {
            // Where etcd does not know the token: it is renewed with the next question, and
            // the lease asks often.
            let compacted = result.get("compact_revision").and_then(number);
            if compacted.is_some_and(|revision| revision > 0) {
                // What came in between is gone.
                self.next = None;
                self.missed = true;
            }
            return Err(End::Again);
        }
        if result.get("created").is_some() {
            self.created(result)?;
        }
        let events = result.get("events").and_then(Value::as_array);
        for event in events.into_iter().flatten() {
            if let Some(change) = self.change(event) {
                self.tell(change)?;
            }
            let revision = event.pointer("/kv/mod_revision").and_then(number);
            self.next = revision.map(|revision| revision + 1).or(self.next);
        }
        Ok(())
    }

    /// The stream has begun. Where it goes on from a revision, what came since then follows; the
    /// revision that it names now is the latest, and says nothing of how much was heard.
    fn created(&mut self, result: &Value) -> Result<(), End> {
        if self.next.is_none() {
            let revision = result.pointer("/header/revision").and_then(number);
            self.next = revision.map(|revision| revision + 1);
        }
        if std::mem::take(&mut self.missed) {
            self.tell(Change::Missed)?;
        }
        Ok(())
    }

    fn tell(&self, change: Change) -> Result<(), End> {
        self.watcher.tell(change).then_some(()).ok_or(End::Unheard)
    }

    /// What an event means; `None` for what is not ours.
    fn change(&self, event: &Value) -> Option<Change> {
        let kv = event.get("kv")?;
        let key = String::from_utf8(decode(kv.get("key")?)?).ok()?;
        let (kind, name) = key.strip_prefix(&self.prefix)?.split_once('/')?;
        if event.get("type").and_then(Value::as_str) == Some("DELETE") {
            return match kind {
                "members" => {
                    let id = u64::from_str_radix(name, 16).ok()?;
                    Some(Change::Left(ServerId(id)))
                }
                "names" => Some(Change::Withdrawn(name.to_owned())),
                _ => None,
            };
        }
        let value = decode(kv.get("value")?)?;
        match kind {
            "members" => serde_json::from_slice(&value).ok().map(Change::Joined),
            "names" => serde_json::from_slice(&value).ok().map(Change::Published),
            "views" => serde_json::from_slice(&value).ok().map(Change::Viewed),
            _ => None,
        }
    }
}
