//! Objects that are opened, and parts of them that are mapped: with a cache of this program, or with
//! the pages of a server on this machine, which is told of each mapping.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use quire_core::units::{Bytes, ObjectOffset};

use super::asking::{Awaited, New};
use super::commands::{Found, Opened, Reply, Wanted};
use super::safety::Safety;
use super::{Carrier, Key, Object};
use crate::client::attached::Attached;
use crate::client::recovery::{Reach, ToRecovery};
use crate::client::{self, ClientError, Known, region};
use crate::link::Addresses;
use crate::link::turn::Links;
use crate::node::{self, Cache, Mapping, Part, Shape, Where, room_for};
use crate::wire::control::{
    self, Failure, Handle, MappingNumber, PageSize, Request, SchedulerKind,
};

/// All pages of an object.
pub(super) fn whole(info: &control::Object) -> Part {
    Part {
        start: ObjectOffset(0),
        len: Bytes(info.size.0.next_multiple_of(info.page_size.bytes().0)),
    }
}

/// What makes an object another one, where it differs after a link broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) struct Form {
    pub(in crate::client) size: Bytes,
    pub(in crate::client) page: PageSize,
    pub(in crate::client) scheduler: SchedulerKind,
}

impl From<&control::Object> for Form {
    fn from(info: &control::Object) -> Form {
        Form {
            size: info.size,
            page: info.page_size,
            scheduler: info.scheduler,
        }
    }
}

impl Carrier {
    /// The server has opened an object, or is going to: it is mapped.
    pub(super) fn opened(
        &mut self,
        links: &mut Links,
        handle: Option<Handle>,
        is: Found,
        wanted: Wanted,
    ) -> Result<Opened, ClientError> {
        let (rights, info) = (wanted.rights, &is.info);
        let shape = Shape {
            page: info.page_size.bytes(),
            own_page: self.options.page_size.bytes(),
            room: self.options.room.unwrap_or_else(|| room_for(info.size)),
            ..Shape::new(info.size)
        };
        let mut settings = shape.settings();
        settings.reconnect = self.reconnect();
        let system = |errno: quire_linux::Errno| ClientError::System(errno.into());
        let cache = Cache::of_this_process(shape.page, settings.clone(), links.pool().clone());
        let mut cache = cache.map_err(system)?;
        if rights.write {
            cache.keep_what_is_written(settings.pages).map_err(system)?;
        }
        if let Some(handle) = handle {
            cache.begin_session(self.number, handle);
        }
        self.give_to_recovery(&cache, &is.exact);
        cache.set_round_trip(self.round_trip);
        cache.send_in_place(self.in_place);
        if !self.options.spin.is_zero() {
            cache.is_polled();
        }
        let part = Part {
            start: ObjectOffset(0),
            len: Bytes(settings.pages * shape.page.0),
        };
        cache.show_until(self.guard.term());
        let mut mapping = Mapping::new(cache.file(), part, wanted.at, rights.write)?;
        self.guard.keep(&mut mapping);
        let space = cache.add_own(&mapping)?;
        let key = self.new_key();
        if let Some(uffd) = cache.uffd(space) {
            links.watch(uffd, key.0)?;
        }
        self.handles.extend(handle.map(|handle| (handle, key)));
        let object = Object {
            cache,
            space,
            name: info.name.clone(),
            exact: is.exact.clone(),
            rights,
            form: Form::from(info),
            handle,
            breaks: Arc::default(),
            safety: Safety::default(),
        };
        let breaks = Arc::clone(&object.breaks);
        self.objects.insert(key, object);
        Ok(Opened {
            mapping,
            is,
            key,
            breaks,
            is_attached: false,
            reconnect: self.reconnect(),
        })
    }

    /// Gives an object to the recovery process, if there is one.
    fn give_to_recovery(&mut self, cache: &Cache, name: &control::Name) {
        let Some(recovery) = &self.options.recovery else {
            return;
        };
        let reach = Reach {
            address: Addresses::from(self.servers.current().clone()),
            node: self.options.name.clone(),
        };
        let given = (|| {
            let Some(written) = cache.kept()? else {
                return Ok(());
            };
            let to = match self.recovery.take() {
                Some(to) => to,
                None => ToRecovery::connect(recovery)?,
            };
            to.give(&reach, name, &written)?;
            self.recovery = Some(to);
            Ok::<(), std::io::Error>(())
        })();
        if let Err(error) = given {
            tracing::warn!(
                "{name}: nobody brings what this program writes when it is killed: its recovery \
                 cannot be reached: {error}"
            );
        }
    }

    /// Maps an object of which it is known what it is. It is asked for as soon as there is a link.
    pub(super) fn expect(
        &mut self,
        links: &mut Links,
        known: Known,
    ) -> Result<Opened, ClientError> {
        let wanted = Wanted {
            name: known.is.exact.clone(),
            rights: known.rights,
            at: Where::Anywhere,
        };
        let opened = match known.is_attached {
            true => self.expect_attached(links, known.is, &wanted)?,
            false => {
                let opened = self.opened(links, None, known.is, wanted)?;
                self.with(links, opened.key, |cache, way| cache.lost(node::now(), way));
                opened
            }
        };
        if self.is_up {
            self.ask_again(links, vec![opened.key]);
        }
        Ok(opened)
    }

    /// The same with a server's pages, instead of which there is a file that nobody fills.
    fn expect_attached(
        &mut self,
        links: &Links,
        is: Found,
        wanted: &Wanted,
    ) -> Result<Opened, ClientError> {
        let part = whole(&is.info);
        let until = links.now() + self.reconnect();
        let mut attached = Attached::expected(&is, wanted.rights, (part.len, until))?;
        let writable = wanted.rights.write;
        let mut mapping = Mapping::new(attached.file(), part, None, writable)?;
        self.guard.keep(&mut mapping);
        let key = self.new_key();
        attached.add(MappingNumber(key.0), &mapping);
        let breaks = attached.breaks();
        self.attached.insert(key, attached);
        Ok(Opened {
            mapping,
            is,
            key,
            breaks,
            is_attached: true,
            reconnect: self.reconnect(),
        })
    }

    /// The server shares its pages: its file is mapped, and it is told where.
    pub(super) fn attached(
        &mut self,
        links: &mut Links,
        (handle, is): (Handle, Found),
        files: Vec<OwnedFd>,
        (wanted, reply): (Wanted, Reply<Opened>),
    ) {
        let part = whole(&is.info);
        let attached = Attached::new(handle, &is, wanted.rights, files);
        let mapped = attached.and_then(|attached| {
            let (at, writable) = (wanted.at, wanted.rights.write);
            let mapping = Mapping::new(attached.file(), part, at, writable)?;
            Ok((attached, mapping))
        });
        match mapped {
            Ok((mut attached, mut mapping)) => {
                self.guard.keep(&mut mapping);
                let key = self.new_key();
                let number = MappingNumber(key.0);
                attached.add(number, &mapping);
                let opened = Opened {
                    mapping,
                    is,
                    key,
                    breaks: attached.breaks(),
                    is_attached: true,
                    reconnect: self.reconnect(),
                };
                self.attached.insert(key, attached);
                self.register(links, key, number, New::Whole(opened, reply));
            }
            Err(error) => {
                self.ask(links, Request::Close { object: handle }, Awaited::nobody());
                // Who waited may have gone.
                let _ = reply.send(Err(error));
            }
        }
    }

    /// Maps a part of an object that is attached, and tells the server where.
    pub(super) fn map_attached(
        &mut self,
        links: &mut Links,
        key: Key,
        wanted: region::Wanted,
        reply: Reply<(Mapping, u64)>,
    ) {
        let Key(number) = self.new_key();
        let number = MappingNumber(number);
        let Some(attached) = self.attached.get_mut(&key) else {
            return drop(reply.send(Err(client::ended())));
        };
        match wanted.make(attached.file()) {
            Ok(mut mapping) => {
                self.guard.keep(&mut mapping);
                attached.add(number, &mapping);
                match attached.is_expected() {
                    // The server is told when it has the object. Who waited may have gone.
                    true => drop(reply.send(Ok((mapping, number.0)))),
                    false => self.register(links, key, number, New::Part(mapping, reply)),
                }
            }
            // Who waited may have gone.
            Err(error) => drop(reply.send(Err(error.into()))),
        }
    }

    /// Tells the server of a mapping of an object.
    pub(super) fn register(
        &mut self,
        links: &mut Links,
        key: Key,
        mapping: MappingNumber,
        new: New,
    ) {
        let awaited = Awaited::Registered { key, mapping, new };
        let attached = self.attached.get(&key);
        match attached.and_then(|attached| attached.registration(mapping)) {
            Some((request, uffd)) => self.ask_with(links, request, vec![uffd], awaited),
            None => self.refuse_of(key, awaited),
        }
    }

    /// The server answers the faults of a mapping, or it refuses to.
    pub(super) fn registered(
        &mut self,
        links: &mut Links,
        (key, mapping): (Key, MappingNumber),
        new: New,
        refused: Option<Failure>,
    ) {
        let Some(attached) = self.attached.get_mut(&key) else {
            return new.refuse(client::ended());
        };
        let Some(failure) = refused else {
            attached.is_answered(mapping);
            // Who waited may have gone.
            return match new {
                New::No => {}
                New::Whole(opened, reply) => drop(reply.send(Ok(opened))),
                New::Part(mapped, reply) => drop(reply.send(Ok((mapped, mapping.0)))),
            };
        };
        match &new {
            New::No if !attached.has(mapping) => {}
            New::No => self.give_up(links, key, &failure.to_string()),
            New::Whole(..) => {
                let object = self.attached.remove(&key).and_then(|it| it.handle());
                if let Some(object) = object {
                    self.ask(links, Request::Close { object }, Awaited::nobody());
                }
            }
            New::Part(..) => drop(attached.forget(mapping)),
        }
        new.refuse(failure.into());
    }

    /// What was written to the memory of a server that is gone is brought: what the next one has takes its
    /// place, and its faults are answered.
    pub(super) fn attached_goes_on(&mut self, links: &mut Links, key: Key) {
        let Some(attached) = self.attached.get_mut(&key) else {
            return;
        };
        match attached.go_on() {
            Ok(()) => {
                for mapping in attached.mapped() {
                    self.register(links, key, mapping, New::No);
                }
            }
            Err(error) => self.give_up(links, key, &error.to_string()),
        }
    }

    /// An object that was attached fails for good.
    pub(super) fn give_up(&mut self, links: &mut Links, key: Key, why: &str) {
        let object = self.attached.get_mut(&key).and_then(|it| it.give_up(why));
        if let Some(object) = object {
            self.ask(links, Request::Close { object }, Awaited::nobody());
        }
    }

    /// An object whose pages the server shares is used no more.
    pub(super) fn close_attached(&mut self, links: &mut Links, key: Key, reply: Reply<()>) {
        let request = |object| Request::Close { object };
        self.ask_of(links, key, request, Awaited::Close(reply));
        if let Some(attached) = self.attached.remove(&key) {
            if let Some(object) = attached.next() {
                self.ask(links, Request::Close { object }, Awaited::nobody());
            }
            // Parts of it may still be mapped.
            attached.fail();
        }
    }

    /// Maps a part of an object that has a cache.
    pub(super) fn map(
        &mut self,
        links: &mut Links,
        key: Key,
        wanted: region::Wanted,
        reply: Reply<(Mapping, u64)>,
    ) {
        let Key(number) = self.new_key();
        let objects = &mut self.objects;
        let mut mapped = self.regions.map(links, objects, number, key, wanted);
        if let Ok((mapping, _)) = &mut mapped {
            self.guard.keep(mapping);
        }
        // Who waited may have gone.
        let _ = reply.send(mapped);
    }

    /// A mapping of a part is gone.
    pub(super) fn unmap(&mut self, links: &mut Links, number: u64, reply: Reply<()>) {
        let mapping = MappingNumber(number);
        let mut attached = self.attached.iter_mut();
        let of = attached.find_map(|(key, it)| it.forget(mapping).then_some(*key));
        match of {
            Some(key) => {
                let request = |object| Request::Unregister { object, mapping };
                self.ask_of(links, key, request, Awaited::Unregistered(reply));
            }
            None => {
                self.regions.unmap(links, &mut self.objects, number);
                // Who waited may have gone.
                let _ = reply.send(Ok(()));
            }
        }
    }
}
