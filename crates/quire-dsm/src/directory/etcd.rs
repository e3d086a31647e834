//! A directory in an etcd cluster (3.4 or later).
//!
//! It speaks with etcd's JSON gateway, which every etcd has on its client port, instead of
//! gRPC: a few requests a second need neither a second runtime nor a compiler for
//! protocol buffers to build with.
//!
//! Under a prefix, `members/ID`, `names/SLOT` and `views/OBJECT` are JSON, so `etcdctl get
//! --prefix` shows them; `slots` says at which slots objects lie. Whatever depends on something is
//! one transaction that compares it. Reads are linearizable. An answer may be lost, and the
//! request be sent to another etcd then. Each value says who made it, so that what was done
//! already is recognised.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use quire_core::dsm::message::ServerId;
use rustls::ClientConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::http::{Client, Failure};
use super::login::{EtcdUser, Login};
use super::{
    Directory, DirectoryError, Entry, LeaseId, Member, View, Watcher, look_at_epoch, slots,
};
use crate::store::ObjectId;
use names::removed;
use watch::Watch;

mod names;
mod watch;

/// An etcd cluster, and the prefix of all keys in it.
pub struct Etcd {
    client: Client,
    urls: String,
    prefix: String,
    dropped: Arc<AtomicBool>,
}

/// What an etcd may demand.
#[derive(Clone, Default)]
pub struct Access {
    /// What is shown and demanded where its URLs are `https`.
    pub tls: Option<Arc<ClientConfig>>,
    /// As whom to come, where it has authentication enabled. The user needs to read and write
    /// all under the prefix.
    pub user: Option<EtcdUser>,
}

/// A value, and what etcd knows of it.
struct Found {
    value: Vec<u8>,
    revision: String,
    lease: u64,
}

/// What came of something that was to be done under conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    Done,
    /// The conditions did not hold.
    Not,
    /// Nor did they here, but it was sent before, and may have been done then: the answer was lost.
    Unknown,
}

impl Etcd {
    /// A cluster at URLs with commas between, with what it may demand. Everything lies under
    /// the prefix, such as `/quire/`.
    ///
    /// # Errors
    /// Where a URL is wrong, or no etcd answers.
    pub fn connect(urls: &str, prefix: &str, access: Access) -> Result<Etcd, DirectoryError> {
        let Access { tls, user } = access;
        let client = Client::new(urls, tls, user.map(Login::new));
        let client = client.map_err(DirectoryError::Misnamed)?;
        let etcd = Etcd {
            client,
            urls: urls.to_owned(),
            prefix: format!("{}/", prefix.trim_end_matches('/')),
            dropped: Arc::default(),
        };
        etcd.members()?;
        Ok(etcd)
    }

    fn failed(&self, failure: Failure) -> DirectoryError {
        let urls = self.urls.clone();
        match failure {
            Failure::Silent(why) => DirectoryError::Silent(urls, why),
            Failure::Refused(status, why) => {
                DirectoryError::Refused(urls, format!("{status}: {why}"))
            }
        }
    }

    fn nonsense(&self, what: &str) -> DirectoryError {
        DirectoryError::Refused(self.urls.clone(), format!("{what} makes no sense"))
    }

    fn ask(&self, path: &str, body: &Value) -> Result<Value, DirectoryError> {
        let answer = self.client.ask(path, body);
        answer.map_err(|failure| self.failed(failure))
    }

    fn change(&self, path: &str, body: &Value) -> Result<Value, DirectoryError> {
        let answer = self.client.change(path, body);
        answer.map_err(|failure| self.failed(failure))
    }

    fn member(&self, id: ServerId) -> String {
        format!("{}members/{:016x}", self.prefix, id.0)
    }

    fn view_of(&self, object: ObjectId) -> String {
        format!("{}views/{object}", self.prefix)
    }

    fn get(&self, key: &str) -> Result<Option<Found>, DirectoryError> {
        Ok(self.range(&json!({ "key": encode(key) }))?.pop())
    }

    /// All values whose keys begin so, in the order of the keys.
    fn all<T: DeserializeOwned>(&self, kind: &str) -> Result<Vec<T>, DirectoryError> {
        let (from, to) = prefix_of(&format!("{}{kind}/", self.prefix));
        let found = self.range(&json!({ "key": from, "range_end": to }))?;
        found.iter().map(|found| self.read(found)).collect()
    }

    fn range(&self, body: &Value) -> Result<Vec<Found>, DirectoryError> {
        let answer = self.ask("/v3/kv/range", body)?;
        let Some(kvs) = answer.get("kvs").and_then(Value::as_array) else {
            return Ok(Vec::new());
        };
        let found = kvs.iter().map(|kv| {
            Some(Found {
                value: decode(kv.get("value")?)?,
                revision: kv.get("mod_revision")?.as_str()?.to_owned(),
                lease: kv.get("lease").and_then(number).unwrap_or(0),
            })
        });
        let found: Option<Vec<_>> = found.collect();
        found.ok_or_else(|| self.nonsense("a range"))
    }

    fn read<T: DeserializeOwned>(&self, found: &Found) -> Result<T, DirectoryError> {
        let value = serde_json::from_slice(&found.value);
        value.map_err(|error| self.nonsense(&error.to_string()))
    }

    /// Does something if all of these hold; whether they did.
    fn when(&self, compare: &Value, success: &Value) -> Result<bool, DirectoryError> {
        Ok(self.tried(compare, success)? == Tried::Done)
    }

    /// Does something if all of these hold.
    fn tried(&self, compare: &Value, success: &Value) -> Result<Tried, DirectoryError> {
        let body = json!({ "compare": compare, "success": success });
        let answer = self.client.change_once("/v3/kv/txn", &body);
        let (answer, is_repeated) = answer.map_err(|failure| self.failed(failure))?;
        let succeeded = answer.get("succeeded").and_then(Value::as_bool);
        Ok(match (succeeded, is_repeated) {
            (Some(true), _) => Tried::Done,
            (_, false) => Tried::Not,
            (_, true) => Tried::Unknown,
        })
    }

    fn is_new(key: &str) -> Value {
        json!({ "target": "CREATE", "key": encode(key), "create_revision": "0" })
    }

    fn is_at(key: &str, revision: &str) -> Value {
        json!({ "target": "MOD", "key": encode(key), "mod_revision": revision })
    }

    fn forget(key: &str) -> Value {
        json!({ "request_delete_range": { "key": encode(key) } })
    }

    fn put<T: Serialize>(&self, key: &str, value: &T, lease: u64) -> Result<Value, DirectoryError> {
        let value = serde_json::to_string(value);
        let value = value.map_err(|error| self.nonsense(&error.to_string()))?;
        Ok(json!({ "request_put": {
            "key": encode(key), "value": encode(&value), "lease": lease.to_string()
        }}))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
    }
}

impl Directory for Etcd {
    fn join(
        &self,
        member: &Member,
        lease: Duration,
    ) -> Result<(LeaseId, Duration), DirectoryError> {
        let seconds = lease.as_secs() + u64::from(lease.subsec_nanos() > 0);
        let body = json!({ "TTL": seconds.to_string() });
        let answer = self.change("/v3/lease/grant", &body)?;
        let (id, granted) = (answer.get("ID"), answer.get("TTL"));
        let (Some(id), Some(granted)) = (id.and_then(number), granted.and_then(number)) else {
            return Err(self.nonsense("a lease"));
        };
        let granted = Duration::from_secs(granted);
        self.client.endpoints().hold(granted);
        let key = self.member(member.id);
        let put = self.put(&key, member, id)?;
        if !self.when(&json!([Etcd::is_new(&key)]), &json!([put]))? {
            let holder = self.get(&key)?;
            if holder.is_none_or(|holder| holder.lease != id) {
                self.leave(LeaseId(id))?;
                return Err(DirectoryError::Exists(format!("server {}", member.id.0)));
            }
        }
        Ok((LeaseId(id), granted))
    }

    fn renew(&self, lease: LeaseId) -> Result<Duration, DirectoryError> {
        let body = json!({ "ID": lease.0.to_string() });
        let answer = self.ask("/v3/lease/keepalive", &body)?;
        let Some(result) = answer.get("result") else {
            return Err(self.nonsense("a renewal"));
        };
        let granted = result.get("TTL").and_then(number).unwrap_or(0);
        if granted == 0 {
            return Err(DirectoryError::LeaseOver);
        }
        Ok(Duration::from_secs(granted))
    }

    fn leave(&self, lease: LeaseId) -> Result<(), DirectoryError> {
        let body = json!({ "ID": lease.0.to_string() });
        match self.client.change("/v3/lease/revoke", &body) {
            // It has ended already.
            Ok(_) | Err(Failure::Refused(404, _)) => Ok(()),
            Err(failure) => Err(self.failed(failure)),
        }
    }

    fn members(&self) -> Result<Vec<Member>, DirectoryError> {
        self.all("members")
    }

    fn begin(&self, lease: LeaseId, entry: &Entry) -> Result<(), DirectoryError> {
        self.publish_living(entry, lease.0)
    }

    fn give_size(&self, entry: &Entry) -> Result<(), DirectoryError> {
        self.put_for_begun(entry)
    }

    fn end_begun(&self, key: &str) -> Result<(), DirectoryError> {
        self.change_object(key, |lying, _| match lying.entry.is_begun() {
            true => Ok(Some(json!([Etcd::forget(&lying.at)]))),
            false => Err(DirectoryError::Missing(format!(
                "object {key} that is begun"
            ))),
        })?;
        Ok(())
    }

    fn publish(&self, entry: &Entry) -> Result<(), DirectoryError> {
        match entry.is_removed {
            true => self.publish_removed(entry),
            false => self.publish_living(entry, 0),
        }
    }

    fn find(&self, name: &str) -> Result<Option<Entry>, DirectoryError> {
        Ok(self.lying(name)?.map(|lying| lying.entry))
    }

    fn entries(&self) -> Result<Vec<Entry>, DirectoryError> {
        self.all("names")
    }

    fn discard(&self, key: &str) -> Result<(), DirectoryError> {
        let to = self.slot(&slots::exact(key));
        let missing =
            |what: &str| Err(DirectoryError::Missing(format!("object {key} that {what}")));
        self.change_object(key, |lying, tried| {
            if lying.at == to {
                return match tried {
                    Tried::Unknown => Ok(None),
                    _ => missing("has its name"),
                };
            }
            if lying.entry.is_begun() {
                return missing("has a size");
            }
            let put = self.put(&to, &removed(&lying.entry), 0)?;
            Ok(Some(json!([Etcd::forget(&lying.at), put])))
        })?;
        Ok(())
    }

    fn withdraw(&self, key: &str) -> Result<bool, DirectoryError> {
        let was = self.change_object(key, |lying, _| {
            let view = self.view_of(lying.entry.object.id);
            Ok(Some(json!([Etcd::forget(&lying.at), Etcd::forget(&view)])))
        })?;
        Ok(!was.is_removed)
    }

    fn view(&self, object: ObjectId) -> Result<Option<View>, DirectoryError> {
        let found = self.get(&self.view_of(object))?;
        found.map(|found| self.read(&found)).transpose()
    }

    fn propose(&self, lease: LeaseId, view: &View) -> Result<(), DirectoryError> {
        let key = self.view_of(view.object);
        let found = self.get(&key)?;
        let current: Option<View> = found.as_ref().map(|found| self.read(found)).transpose()?;
        look_at_epoch(current.as_ref(), view)?;
        let unchanged = match &found {
            Some(found) => Etcd::is_at(&key, &found.revision),
            None => Etcd::is_new(&key),
        };
        let member = self.member(view.by);
        let lives = json!({
            "target": "LEASE", "key": encode(&member), "lease": lease.0.to_string()
        });
        let put = self.put(&key, view, 0)?;
        if self.when(&json!([unchanged, lives]), &json!([put]))? {
            return Ok(());
        }
        let current = self.view(view.object)?;
        if current.as_ref() == Some(view) {
            return Ok(());
        }
        let holder = self.get(&member)?;
        if holder.is_none_or(|holder| holder.lease != lease.0) {
            return Err(DirectoryError::LeaseOver);
        }
        look_at_epoch(current.as_ref(), view)?;
        Err(self.nonsense("a transaction"))
    }

    fn watch(&self, watcher: Watcher) -> Result<(), DirectoryError> {
        let (client, prefix) = (self.client.clone(), self.prefix.clone());
        let watch = Watch::new(client, prefix, self.dropped.clone(), watcher);
        let thread = thread::Builder::new().name("quire-watch".to_owned());
        let started = thread.spawn(move || watch.run());
        started
            .map(drop)
            .map_err(|error| DirectoryError::Refused(self.urls.clone(), error.to_string()))
    }
}

fn encode(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

fn decode(text: &Value) -> Option<Vec<u8>> {
    BASE64_STANDARD.decode(text.as_str()?).ok()
}

/// The range of all keys with a prefix that ends in a slash.
fn prefix_of(prefix: &str) -> (String, String) {
    let end = format!("{}0", prefix.trim_end_matches('/'));
    (encode(prefix), encode(&end))
}

/// A number, which the gateway writes as text.
fn number(value: &Value) -> Option<u64> {
    value
        .as_str()
        .and_then(|text| text.parse().ok())
        .or_else(|| value.as_u64())
}
