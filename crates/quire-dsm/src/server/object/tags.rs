//! The types of an object's segments: when it is made, and while it is open.
//!
//! Contents lie here in the form of the machine that wrote them, and are translated by the
//! tags when they are sent. So a new tag changes the meaning of what is here, and of copies
//! that were sent by the old one. Somebody who has the object open may all the same give
//! pages another type whose contents nobody needs: an allocator does so. It is safe where at
//! that moment nobody else has a copy of them, or waits for one: pages that were never
//! touched, and those that only the one who asks may write to. From then on everybody gets
//! them by the new tag. Where several servers share the object, all of them are told
//! (`server::peer_servers::types`). Who asks is refused as busy where others have copies; it takes the
//! pages by writing to them, which makes the others drop theirs, and asks again.

use quire_core::dsm::message::{Client, KernelId, PageNumber};
use quire_core::dsm::types::{Segment, TagMap, TypeTag};
use quire_core::units::Bytes;

use super::{Object, Refused};
use crate::wire::control::{self, FailureKind, SchedulerKind};

/// Segments with a type that an object has at most: all are told in one message.
pub(in crate::server) const MOST_SEGMENTS: usize = 1024;
/// Up to so many pages are looked at one by one, and not found among those that were touched.
const FEW: u64 = 4096;

impl Object {
    /// Gives the object other types. What is cached somewhere was translated by the old
    /// ones, so nobody may have it open.
    pub(in crate::server) fn tag(&mut self, tags: Vec<control::Segment>) -> Result<(), Refused> {
        if !self.kernels.is_empty() {
            let text = "its types can only be changed while nobody has it open";
            return Err((FailureKind::Busy, text.into()));
        }
        self.take_types(tags)
    }

    /// Gives whole pages another type, for somebody who has the object open.
    pub(in crate::server) fn tag_part(
        &mut self,
        kernel: KernelId,
        part: control::Segment,
    ) -> Result<(), Refused> {
        let part = Segment::try_from(part).map_err(|error| invalid(error.to_string()))?;
        let page = self.info.page_size.bytes().0;
        let is_whole = part.start.0.is_multiple_of(page) && part.end.0.is_multiple_of(page);
        if part.is_empty() || !is_whole {
            return Err(invalid(format!("types are given to whole pages of {page}")));
        }
        let pages = [part.start, part.end].map(|at| PageNumber(at.0 / page));
        let changed = self.with_part(part)?;
        if let Some(used) = self.used_by_others(pages, kernel) {
            let text = format!(
                "others may use page {} of what shall get another type",
                used.0
            );
            return Err((FailureKind::Busy, text));
        }
        (self.tags, self.info.tags) = changed;
        Ok(())
    }

    /// The types that it has when a part of it gets another one.
    fn with_part(&self, part: Segment) -> Result<(TagMap, Vec<control::Segment>), Refused> {
        let mut tags = self.tags.clone();
        for tag in [TypeTag::Untyped, part.tag] {
            let tagged = tags.tag(part.start..part.end, tag);
            tagged.map_err(|error| invalid(error.to_string()))?;
        }
        let segments: Vec<_> = tags.segments().map(control::Segment::from).collect();
        match segments.len() > MOST_SEGMENTS {
            true => Err(too_many()),
            false => Ok((tags, segments)),
        }
    }

    /// A peer server has given a part of it another type, for one of its programs.
    pub(in crate::server) fn tag_pages(&mut self, part: control::Segment) -> Result<(), Refused> {
        let part = Segment::try_from(part).map_err(|error| invalid(error.to_string()))?;
        (self.tags, self.info.tags) = self.with_part(part)?;
        Ok(())
    }

    /// A peer server says what types it has.
    pub(in crate::server) fn take_types(
        &mut self,
        tags: Vec<control::Segment>,
    ) -> Result<(), Refused> {
        let info = control::Object {
            tags,
            ..self.info.clone()
        };
        self.tags = tag_map(&info)?;
        self.info = info;
        Ok(())
    }

    /// A page among some, the first of them and the first behind them, that not only this
    /// kernel has or wants. With several servers, where nobody knows of all copies, it has to
    /// be the one that may write.
    fn used_by_others(
        &self,
        [first, end]: [PageNumber; 2],
        kernel: KernelId,
    ) -> Option<PageNumber> {
        let is_alone = self.info.scheduler != SchedulerKind::Distributed;
        let is_used = |page: &PageNumber| {
            let Some(status) = self.scheduler.page(*page) else {
                return !is_alone;
            };
            let is_its_own = status.owner == Some(Client::Kernel(kernel));
            let is_wanted = status.waiting_readers > 0 || status.waiting_writers > 0;
            let is_nobodys = is_alone && status.owner.is_none();
            is_wanted || status.readers > 0 || !(is_its_own || is_nobodys)
        };
        if !is_alone || end.0 - first.0 <= FEW {
            return (first.0..end.0).map(PageNumber).find(is_used);
        }
        let mut touched = self.scheduler.touched();
        touched.find(|page| (first..end).contains(page) && is_used(page))
    }
}

fn invalid(text: String) -> Refused {
    (FailureKind::Invalid, text)
}

fn too_many() -> Refused {
    let text =
        format!("an object has at most {MOST_SEGMENTS} segments with a type; use larger pages");
    (FailureKind::Full, text)
}

/// The types of an object.
pub(super) fn tag_map(info: &control::Object) -> Result<TagMap, Refused> {
    if info.tags.len() > MOST_SEGMENTS {
        return Err(too_many());
    }
    let mut map = TagMap::new(Bytes(
        info.size.0.next_multiple_of(info.page_size.bytes().0),
    ));
    for segment in &info.tags {
        let segment = Segment::try_from(*segment).map_err(|error| invalid(error.to_string()))?;
        map.tag(segment.start..segment.end, segment.tag)
            .map_err(|error| invalid(error.to_string()))?;
    }
    Ok(map)
}
