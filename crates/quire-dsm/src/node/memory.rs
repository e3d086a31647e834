//! The memory file of an object's cache, and what is done to it and to its mappings.
//!
//! A process that is gone, or that has unmapped what it had, is no error: it cannot touch
//! anything any more. All else that fails where pages are taken away is one, because a
//! mapping might keep what it must not have.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use quire_core::dsm::message::{Access, PageNumber, Pages};
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, ObjectOffset, VirtAddr};
use quire_linux::revoker::Term;
use quire_linux::uffd::shared::{self, Allow, Waiters};
use quire_linux::uffd::{self};
use quire_linux::{Errno, huge_file};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno as Code;

use super::folios::Folios;
use super::ledger::{Book, Ledger};
use super::mapping::Mapped;
use super::reservations::{Extent, Found};
use super::stale::Stale;
use super::{Broken, Part, bytes_of};
use crate::whole;
use crate::wire::{Contents, Lent, Loans, Pool};

/// A mapping of a part of the file in some process.
pub(super) struct AddressSpace {
    pub(super) uffd: OwnedFd,
    range: AddrRange,
    part: Part,
    /// Where it is a mapping of this process.
    own: Option<Arc<Mapped>>,
    /// All pages before this address were found to be unmapped.
    left: VirtAddr,
}

/// So many pages at most are looked at to see whether a mapping is gone.
const LOOKED_AT: usize = 1024;

/// So much is put into a mapping at first, in bytes, if a page is not larger: more would let
/// who waits for the first of it wait for the rest, too. What comes with it and is left is put there
/// in longer runs, as each takes a call.
const FIRST_RUN: usize = 32 << 10;
const RUN: usize = 128 << 10;

/// What a message must bring at least to extents that are to be reserved, in several pages or in
/// one: as much comes to who goes through memory in order, or has pages nearly as large.
const RESERVED_FOR: Bytes = Bytes(128 << 10);
const RESERVED_FOR_ONE: Bytes = Bytes(1 << 20);

/// As much at least is sent from where it is: a call of its own takes as long as copying less.
const LENT: Bytes = Bytes(16 << 10);

/// So much is read back at a time, in bytes, if a page is not larger.
const READ: usize = 128 << 10;

impl AddressSpace {
    pub(super) const fn new(
        uffd: OwnedFd,
        base: VirtAddr,
        part: Part,
        own: Option<Arc<Mapped>>,
    ) -> AddressSpace {
        let range = AddrRange::new(base, part.len);
        AddressSpace {
            uffd,
            range,
            part,
            own,
            left: base,
        }
    }

    /// Where in the object an address is, if it is mapped here.
    pub(super) fn offset_of(&self, address: VirtAddr) -> Option<ObjectOffset> {
        let inside = self.range.start <= address && address < self.range.end;
        inside.then(|| self.part.start + (address - self.range.start))
    }

    /// Whether its process is dead, or has unmapped all of it. A long mapping of which much is
    /// unmapped is looked through in several calls.
    pub(super) fn is_gone(&mut self) -> bool {
        for _ in 0..LOOKED_AT {
            if self.left >= self.range.end {
                return true;
            }
            let page = AddrRange::new(self.left, Bytes(BASE_PAGE));
            let protected = uffd::write_protect(self.uffd.as_fd(), page, true);
            match code(protected.err()) {
                Some(Code::SRCH) => return true,
                Some(Code::NOENT) => self.left = page.end,
                _ => return false,
            }
        }
        false
    }

    /// Whether it is a mapping of this process.
    pub(super) const fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// The addresses of what is mapped here of a part; maybe empty.
    fn addresses(&self, part: Part) -> AddrRange {
        let from = part.start.0.max(self.part.start.0);
        let to = (part.start + part.len)
            .0
            .min((self.part.start + self.part.len).0);
        let lead = Bytes(from - self.part.start.0);
        AddrRange::new(self.range.start + lead, Bytes(to.saturating_sub(from)))
    }
}

/// The memory file.
pub(super) struct Memory {
    file: Arc<OwnedFd>,
    /// Where folios are to be had.
    folios: Option<Folios>,
    page: Bytes,
    /// How long the file is.
    size: Bytes,
    /// What pages hold that nobody has ever written, as many as are filled together.
    zeros: Box<[u8]>,
    stale: Stale,
    /// Where what is given back is read to, if it is not sent from where it is.
    pool: Pool,
    /// What is sent from there, if that can be.
    loans: Loans,
    lends: bool,
    /// To where contents come right now.
    coming: Option<Pages>,
    /// How many pages have come in the message that is handled.
    together: u32,
    /// When it is over, nothing is shown any more.
    term: Option<Arc<Term>>,
    /// Something was to be shown when it was over.
    is_late: Cell<bool>,
}

impl Memory {
    /// With mappings in whatever processes.
    pub(super) fn new(page: Bytes, pages: u64, pool: Pool) -> Result<Memory, Errno> {
        let size = Bytes(pages * page.0);
        Ok(Memory::of(memory_file(size)?, None, (page, size), pool))
    }

    /// With mappings in this process only: what comes together comes in folios, where they are to
    /// be had.
    pub(super) fn of_this_process(page: Bytes, pages: u64, pool: Pool) -> Result<Memory, Errno> {
        let size = Bytes(pages * page.0);
        match Folios::new(size) {
            Some((file, folios)) => Ok(Memory::of(file, Some(folios), (page, size), pool)),
            None => Memory::new(page, pages, pool),
        }
    }

    fn of(
        file: OwnedFd,
        folios: Option<Folios>,
        (page, size): (Bytes, Bytes),
        pool: Pool,
    ) -> Memory {
        let loans = Loans::default();
        Memory {
            file: Arc::new(file),
            folios,
            page,
            size,
            zeros: vec![0; RUN.max(page.0 as usize)].into_boxed_slice(),
            stale: Stale::new(page, loans.clone()),
            pool,
            loans,
            lends: false,
            coming: None,
            together: 0,
            term: None,
            is_late: Cell::new(false),
        }
    }

    /// Nothing is shown any more when a term is over.
    pub(super) fn show_until(&mut self, term: &Arc<Term>) {
        self.term = Some(Arc::clone(term));
    }

    /// Whether what is given back is sent from the file, where that is of use. What was sent must
    /// have been read by the other side before it may give the pages back.
    pub(super) const fn set_lends(&mut self, lends: bool) {
        self.lends = lends;
    }

    fn is_over(&self) -> bool {
        self.term.as_ref().is_some_and(|term| term.is_over())
    }

    /// Whether nothing may be shown now. To be asked right before something is: whoever was stopped
    /// since may be late. Who waits for it is remembered.
    fn is_too_late(&self) -> bool {
        let is_over = self.is_over();
        self.is_late.set(is_over || self.is_late.get());
        is_over
    }

    /// Whether something was not shown that may be shown now.
    pub(super) fn may_catch_up(&self) -> bool {
        self.is_late.get() && !self.is_over()
    }

    /// Has those who wait for what was not shown touch it once more, if it may be shown now.
    pub(super) fn catch_up<'a>(
        &self,
        spaces: impl Iterator<Item = &'a AddressSpace>,
    ) -> Result<(), Broken> {
        if !self.may_catch_up() {
            return Ok(());
        }
        self.is_late.set(false);
        for space in spaces {
            let woken = uffd::wake(space.uffd.as_fd(), space.range);
            gone_or(woken.err(), "to wake a program")?;
        }
        Ok(())
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) const fn page(&self) -> Bytes {
        self.page
    }

    /// Contents are about to come for pages that are not in use: the part of the file to which they
    /// may come, where it has all of their memory already. They are filled next, or
    /// [`Memory::placed`] is called.
    pub(super) fn place(&mut self, pages: Pages) -> Option<Arc<Lent>> {
        let part = bytes_of(pages, self.page);
        let is_inside = (part.start + part.len).0 <= self.size.0;
        if !is_inside || !self.stale.is_possible(&self.file) {
            return None;
        }
        self.reserve(pages, false);
        if !self.stale.reuse_all(pages) {
            return None;
        }
        self.coming = Some(pages);
        if self.settle(part).is_err() {
            self.placed(|_| false);
            return None;
        }
        let length = part.len.0 as usize;
        let lent = self.loans.lend(&self.file, part.start, length, &self.pool);
        Some(lent)
    }

    /// A message has brought these pages; they are filled next, one part of them after the other.
    pub(super) const fn comes(&mut self, pages: Pages) {
        self.together = pages.count;
    }

    /// What was about to come is there, and filled where the pages are in use now.
    pub(super) fn placed(&mut self, is_used: impl Fn(PageNumber) -> bool) {
        let Some(pages) = self.coming.take() else {
            return;
        };
        for page in pages.iter().filter(|page| !is_used(*page)) {
            self.stale.add(Pages::one(page));
        }
    }

    /// Puts contents where there are none, and shows them in a mapping. What lies together is
    /// put there together, at most [`FIRST_RUN`], and then [`RUN`] of it: who waits goes on after that.
    /// A book is told of what may be written to before that is shown.
    pub(super) fn fill(
        &mut self,
        pages: Pages,
        data: &[Option<Contents>],
        (access, mut book): (Access, Option<&mut Book>),
        space: Option<&AddressSpace>,
    ) -> Result<(), Broken> {
        if self.lies_there(pages, data) {
            if let Some(book) = book {
                book.is_written(pages);
            }
            return self.show_in_runs(pages, access, space);
        }
        self.settle(bytes_of(pages, self.page))?;
        if space.is_none_or(AddressSpace::is_own) {
            self.reserve(pages, space.is_none());
        }
        let mut next = pages.first;
        let (mut rest, mut most) = (data, FIRST_RUN);
        while !rest.is_empty() {
            let (count, contents) = self.lying_together(rest, most);
            most = RUN;
            // Asked in any case: the pages are not stale any more.
            let (run, found) = self.stale.reuse(Pages { first: next, count });
            let length = bytes_of(run, self.page).len.0 as usize;
            let contents = contents.map(|bytes| &bytes[..length]);
            let book = book.as_deref_mut();
            self.fill_run(run, contents, (access, found, book), space)?;
            next.0 += u64::from(run.count);
            rest = &rest[run.count as usize..];
        }
        Ok(())
    }

    /// Whether contents have come to where they belong.
    fn lies_there(&self, pages: Pages, data: &[Option<Contents>]) -> bool {
        let start = |page: PageNumber| ObjectOffset(page.0 * self.page.0);
        let mut all = pages.iter().zip(data);
        all.all(|(page, contents)| {
            let contents = contents.as_ref();
            contents.is_some_and(|it| it.lie_at(&self.file, start(page)))
        })
    }

    /// Shows pages that have come to the file, as [`Memory::fill`] does.
    fn show_in_runs(
        &self,
        mut pages: Pages,
        access: Access,
        space: Option<&AddressSpace>,
    ) -> Result<(), Broken> {
        let Some(space) = space else {
            return Ok(());
        };
        let mut most = FIRST_RUN;
        while pages.count > 0 {
            let count = u32::try_from(most as u64 / self.page.0).unwrap_or(u32::MAX);
            let count = count.clamp(1, pages.count);
            let first = pages.first;
            self.show(Pages { first, count }, access, space)?;
            pages.first.0 += u64::from(count);
            pages.count -= count;
            most = RUN;
        }
        Ok(())
    }

    /// Blocks that much comes to at once get all of their memory, in folios; so do those to which
    /// something comes that is not shown, in a message with what is: more will follow. Without,
    /// it gets base pages: as it is written to the file, it would get folios in any case.
    fn reserve(&mut self, pages: Pages, written: bool) {
        let Some(folios) = &mut self.folios else {
            return;
        };
        let part = bytes_of(pages, self.page);
        let many = part.len >= RESERVED_FOR && (pages.count > 1 || part.len >= RESERVED_FOR_ONE);
        if !many && !written {
            return;
        }
        if !many && self.together <= pages.count {
            return folios.sow(self.file.as_fd(), part);
        }
        for extent in Extent::of(part) {
            for (block, first) in Folios::blocks(extent, part) {
                let Part { start, len } = extent.part(&block);
                if (start + len).0 <= self.size.0
                    && self.stale.may_reserve(extent, first)
                    && let Some(zeros) = folios.reserve(self.file.as_fd(), extent, block)
                {
                    self.stale.reserve(extent, &zeros);
                }
            }
        }
    }

    /// How many of the first pages, up to so many bytes, lie together in memory, and what they
    /// hold; or how many of them nobody has ever written.
    fn lying_together<'a>(
        &self,
        data: &'a [Option<Contents>],
        most: usize,
    ) -> (u32, Option<&'a [u8]>) {
        let page = self.page.0 as usize;
        let most = data.len().min((most / page).max(1));
        let is_there = data.first().is_some_and(Option::is_some);
        let alike = data[..most]
            .iter()
            .take_while(|it| it.is_some() == is_there);
        let (count, contents) = match is_there {
            true => {
                let bytes = Contents::together(alike.flatten());
                (bytes.len() / page, Some(bytes))
            }
            false => (alike.count(), None),
        };
        (u32::try_from(count).unwrap_or(u32::MAX), contents)
    }

    /// Puts the contents of pages that lie together, or zeros, where there are none, or where
    /// nobody uses what there is.
    fn fill_run(
        &self,
        pages: Pages,
        contents: Option<&[u8]>,
        (access, found, mut book): (Access, Found, Option<&mut Book>),
        space: Option<&AddressSpace>,
    ) -> Result<(), Broken> {
        let part = bytes_of(pages, self.page);
        let bytes = contents.unwrap_or(&self.zeros[..part.len.0 as usize]);
        let mut done = Bytes::ZERO;
        if let Some(space) = space
            && found == Found::Nothing
            && !self.is_too_late()
            && (book.is_none() || self.is_shown_whole(part))
        {
            let addresses = space.addresses(part);
            if addresses.len() == part.len {
                let (uffd, allow) = (space.uffd.as_fd(), allow(access));
                if let Some(book) = &mut book {
                    book.is_written(pages);
                }
                let put = match (contents, access) {
                    (None, Access::Write) => shared::zero(uffd, addresses, Waiters::Wake),
                    _ => shared::copy(uffd, addresses.start, bytes, allow, Waiters::Wake),
                };
                if put.error.is_none() {
                    return Ok(());
                }
                done = put.done;
            }
        }
        // The file has a page, or the mapping has only a part of them, or is gone, or what is shown in
        // pieces is to be there as a whole before: the file gets the contents first.
        if contents.is_some() || found != Found::Zeros {
            if let Some(book) = &mut book {
                book.fills(rest_of(pages, done.0 / self.page.0));
            }
            self.write(part.start + done, &bytes[done.0 as usize..])?;
        }
        if let Some(book) = book {
            book.is_written(pages);
        }
        match space {
            Some(space) => self.show(pages, access, space),
            None => Ok(()),
        }
    }

    /// Whether each page of a part is there as a whole when the kernel, which puts one base page after
    /// the other there, has shown anything of it; and nothing old is there that could be taken for it. A
    /// program can write to what is shown, and be killed before the next base page comes.
    fn is_shown_whole(&self, part: Part) -> bool {
        self.page.0 == BASE_PAGE && self.is_hole(part)
    }

    /// Whether the file has nothing in a part.
    fn is_hole(&self, part: Part) -> bool {
        huge_file::next_data(self.file.as_fd(), part.start)
            .is_ok_and(|data| data.is_none_or(|data| data >= part.start + part.len))
    }

    /// Shows pages that the file has in a mapping, and wakes who waits there.
    pub(super) fn show(
        &self,
        pages: Pages,
        access: Access,
        space: &AddressSpace,
    ) -> Result<(), Broken> {
        let range = space.addresses(bytes_of(pages, self.page));
        if range.is_empty() || self.is_too_late() {
            return Ok(());
        }
        let uffd = space.uffd.as_fd();
        let shown = shared::show(uffd, range, allow(access), Waiters::Wake);
        let rest = AddrRange {
            start: range.start + shown.done,
            end: range.end,
        };
        match rest.is_empty() && shown.error.is_none() {
            // Nothing of it was shown before.
            true => Ok(()),
            false => self.show_bit_by_bit(range, rest, access, space),
        }
    }

    /// Shows what cannot be shown at once: the rest of a range.
    fn show_bit_by_bit(
        &self,
        range: AddrRange,
        mut rest: AddrRange,
        access: Access,
        space: &AddressSpace,
    ) -> Result<(), Broken> {
        let uffd = space.uffd.as_fd();
        let mut most = rest.len();
        while !rest.is_empty() {
            let next = AddrRange::new(rest.start, rest.len().min(most));
            let shown = shared::show(uffd, next, allow(access), Waiters::Leave);
            rest.start = rest.start + shown.done;
            match code(shown.error) {
                None => {}
                // It is shown already.
                Some(Code::EXIST) => rest.start = rest.start + Bytes(BASE_PAGE),
                // The program has unmapped or protected some of it: one page after the other.
                Some(Code::NOENT) if most.0 > BASE_PAGE => most = Bytes(BASE_PAGE),
                Some(Code::NOENT) => rest.start = rest.start + Bytes(BASE_PAGE),
                // The program has punched a hole of its own.
                Some(Code::FAULT) => {
                    let zeros = &self.zeros[..BASE_PAGE as usize];
                    let to = rest.start;
                    let put = shared::copy(uffd, to, zeros, allow(access), Waiters::Leave);
                    if !matches!(code(put.error), None | Some(Code::EXIST)) {
                        return gone_or(put.error, "to fill a hole");
                    }
                    rest.start = rest.start + Bytes(BASE_PAGE);
                }
                Some(_) => return gone_or(shown.error, "to show a page"),
            }
        }
        if access == Access::Write {
            // What was shown before may be protected.
            let lift = |range| uffd::lift_protection(uffd, range);
            protection(range, lift, "to let a program write")?;
        }
        gone_or(uffd::wake(uffd, range).err(), "to wake a program")
    }

    /// Lets a mapping write to pages, and wakes who waits there.
    pub(super) fn allow(&self, pages: Pages, space: &AddressSpace) -> Result<(), Broken> {
        if self.is_too_late() {
            return Ok(());
        }
        let range = space.addresses(bytes_of(pages, self.page));
        let lift = |range| uffd::write_protect(space.uffd.as_fd(), range, false);
        protection(range, lift, "to let a program write")
    }

    /// Takes pages from all mappings, and returns what they held.
    pub(super) fn take<'a>(
        &self,
        pages: Pages,
        spaces: impl Iterator<Item = &'a AddressSpace> + Clone,
    ) -> Result<Vec<Contents>, Broken> {
        let part = bytes_of(pages, self.page);
        if self.zap(part, spaces.clone()) {
            let contents = match self.lends && part.len >= LENT {
                true => self.lend(pages),
                false => self.read(pages)?,
            };
            self.stale.add(pages);
            return Ok(contents);
        }
        for space in spaces {
            protect(space, space.addresses(part))?;
        }
        let contents = self.read(pages)?;
        self.free(pages)?;
        Ok(contents)
    }

    /// Takes pages from all mappings.
    pub(super) fn remove<'a>(
        &self,
        pages: Pages,
        spaces: impl Iterator<Item = &'a AddressSpace> + Clone,
    ) -> Result<(), Broken> {
        let part = bytes_of(pages, self.page);
        if self.zap(part, spaces) {
            self.stale.add(pages);
            return Ok(());
        }
        self.free(pages)
    }

    /// Takes pages from all mappings of all processes and frees them.
    fn free(&self, pages: Pages) -> Result<(), Broken> {
        punch(&self.file, bytes_of(pages, self.page))
    }

    /// Takes pages from all mappings and leaves them in the file, if all mappings are this
    /// process's own; whether it could. A hole would do the same for all processes, but
    /// takes longer.
    fn zap<'a>(
        &self,
        part: Part,
        mut spaces: impl Iterator<Item = &'a AddressSpace> + Clone,
    ) -> bool {
        // Without any mapping that is known, some process may have one all the same.
        let mut own = spaces.clone().map(AddressSpace::is_own);
        own.next() == Some(true)
            && own.all(|own| own)
            && self.stale.is_possible(&self.file)
            && spaces.all(|space| {
                let mapped = space.own.as_ref();
                mapped.is_some_and(|mapped| mapped.zap(space.addresses(part)))
            })
    }

    /// Nothing is freed any more that can still be brought to the server, unless the ledger says so.
    pub(super) fn set_ledger(&mut self, ledger: Arc<Ledger>) {
        self.stale.set_ledger(ledger);
    }

    /// Takes all pages from all mappings and leaves them in the file, if all mappings are this
    /// process's own; whether it could. Nothing is filled then until all is removed.
    pub(super) fn hide_all<'a>(
        &mut self,
        spaces: impl Iterator<Item = &'a AddressSpace> + Clone,
    ) -> bool {
        if !self.zap(self.all(), spaces) {
            return false;
        }
        self.coming = None;
        self.stale.clear();
        true
    }

    /// Takes all pages from all mappings and frees them.
    pub(super) fn remove_all(&mut self) -> Result<(), Broken> {
        self.coming = None;
        self.stale.clear();
        let all = self.all();
        self.settle(all)?;
        punch(&self.file, all)
    }

    const fn all(&self) -> Part {
        Part {
            start: ObjectOffset(0),
            len: self.size,
        }
    }

    /// A part of the file is about to change.
    fn settle(&self, part: Part) -> Result<(), Broken> {
        settle(&self.loans, part)
    }

    /// Makes touches of pages that are not there fail in a mapping.
    pub(super) fn fail(&self, pages: Pages, space: &AddressSpace) -> Result<(), Broken> {
        let range = space.addresses(bytes_of(pages, self.page));
        if range.is_empty() {
            return Ok(());
        }
        let uffd = space.uffd.as_fd();
        // Protection that was left behind would stand in the way.
        let lift = |range| uffd::lift_protection(uffd, range);
        protection(range, lift, "to clear a page")?;
        let mut rest = range;
        let mut most = rest.len();
        while !rest.is_empty() {
            let next = AddrRange::new(rest.start, rest.len().min(most));
            let poisoned = shared::poison(uffd, next);
            rest.start = rest.start + poisoned.done;
            match code(poisoned.error) {
                None => {}
                // It is poisoned already.
                Some(Code::EXIST) => rest.start = rest.start + Bytes(BASE_PAGE),
                // As above.
                Some(Code::NOENT) if most.0 > BASE_PAGE => most = Bytes(BASE_PAGE),
                Some(Code::NOENT) => rest.start = rest.start + Bytes(BASE_PAGE),
                Some(_) => return gone_or(poisoned.error, "to make a page fail"),
            }
        }
        gone_or(uffd::wake(uffd, range).err(), "to wake a program")
    }

    /// Makes all touches fail in all mappings, also those that wait.
    pub(super) fn fail_all<'a>(
        &mut self,
        spaces: impl Iterator<Item = &'a AddressSpace>,
    ) -> Result<(), Broken> {
        self.coming = None;
        self.stale.clear();
        // What cannot be read any more is not sent.
        let _ = self.settle(self.all());
        let cut = rustix::fs::ftruncate(&self.file, 0);
        cut.map_err(|errno| broken("to make all pages fail", errno.into()))?;
        for space in spaces {
            let woken = uffd::wake(space.uffd.as_fd(), space.range);
            gone_or(woken.err(), "to wake a program")?;
        }
        Ok(())
    }

    /// What pages hold, to be sent from where it is.
    fn lend(&self, pages: Pages) -> Vec<Contents> {
        let part = bytes_of(pages, self.page);
        let length = part.len.0 as usize;
        let lent = self.loans.lend(&self.file, part.start, length, &self.pool);
        Contents::from(lent).pieces(self.page.0 as usize).collect()
    }

    /// What pages hold, [`READ`] of it together.
    fn read(&self, pages: Pages) -> Result<Vec<Contents>, Broken> {
        let page = self.page.0 as usize;
        let together = (READ / page).max(1);
        let mut contents = Vec::with_capacity(pages.count as usize);
        while contents.len() < pages.count as usize {
            let count = together.min(pages.count as usize - contents.len());
            let first = pages.first.0 + contents.len() as u64;
            let mut buffer = self.pool.take(count * page);
            let read = whole::read(&self.file, &mut buffer[..count * page], first * self.page.0);
            read.map_err(|error| not_passed("to read a page back", &error))?;
            let all = Contents::part(&Arc::new(buffer), 0, count * page);
            contents.extend(all.pieces(page));
        }
        Ok(contents)
    }

    fn write(&self, start: ObjectOffset, bytes: &[u8]) -> Result<(), Broken> {
        let written = whole::write(&self.file, bytes, start.0);
        written.map_err(|error| not_passed("to fill a page", &error))
    }
}

/// Contents cannot be read or written. Where the file is too short, a program has cut it.
fn not_passed(what: &'static str, error: &io::Error) -> Broken {
    let errno = error.raw_os_error().map_or(Code::NODATA.into(), Errno);
    broken(what, errno)
}

/// A file for mappings in whatever processes.
fn memory_file(size: Bytes) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL;
    let file = rustix::fs::memfd_create(c"quire-dsm", flags)?;
    rustix::fs::ftruncate(&file, size.0)?;
    // Programs get the file, too. A seal of theirs could forbid holes.
    rustix::fs::fcntl_add_seals(&file, SealFlags::SEAL)?;
    Ok(file)
}

/// A part of a file is about to change, of which some may be lent.
pub(super) fn settle(loans: &Loans, part: Part) -> Result<(), Broken> {
    let settled = loans.settle(part.start, part.len);
    settled.map_err(|_| broken("to read a page back", Code::IO.into()))
}

/// Takes a part from all mappings of all processes and frees it.
pub(super) fn punch(file: &OwnedFd, part: Part) -> Result<(), Broken> {
    if part.len == Bytes::ZERO {
        return Ok(());
    }
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punched = rustix::fs::fallocate(file, how, part.start.0, part.len.0);
    punched.map_err(|errno| broken("to free pages", errno.into()))
}

/// Some pages without the first so many.
fn rest_of(pages: Pages, done: u64) -> Pages {
    Pages {
        first: PageNumber(pages.first.0 + done),
        count: pages
            .count
            .saturating_sub(u32::try_from(done).unwrap_or(u32::MAX)),
    }
}

/// Holds writers back in a mapping.
fn protect(space: &AddressSpace, range: AddrRange) -> Result<(), Broken> {
    let hold_back = |range| uffd::write_protect(space.uffd.as_fd(), range, true);
    protection(range, hold_back, "to hold writers back")
}

/// Changes the protection of a range. Where a program has unmapped a part of it, that of the
/// rest is changed all the same.
fn protection(
    range: AddrRange,
    change: impl Fn(AddrRange) -> Result<(), Errno>,
    what: &'static str,
) -> Result<(), Broken> {
    if range.is_empty() {
        return Ok(());
    }
    let changed = change(range).err();
    if !matches!(code(changed), Some(Code::NOENT)) {
        return gone_or(changed, what);
    }
    let mut at = range.start;
    while at < range.end {
        let page = AddrRange::new(at, Bytes(BASE_PAGE));
        gone_or(change(page).err(), what)?;
        at = page.end;
    }
    Ok(())
}

const fn allow(access: Access) -> Allow {
    match access {
        Access::Read => Allow::Read,
        Access::Write => Allow::Write,
    }
}

fn code(error: Option<Errno>) -> Option<Code> {
    error.map(|errno| Code::from_raw_os_error(errno.0))
}

/// No error, or that of a process or mapping that is gone, is fine.
fn gone_or(error: Option<Errno>, what: &'static str) -> Result<(), Broken> {
    match (error, code(error)) {
        (None, _) | (_, Some(Code::SRCH | Code::NOENT)) => Ok(()),
        (Some(errno), _) => Err(broken(what, errno)),
    }
}

const fn broken(what: &'static str, errno: Errno) -> Broken {
    Broken::Memory { what, errno }
}

/// How many base pages a file has.
#[cfg(test)]
pub(super) fn held(file: &OwnedFd) -> u64 {
    rustix::fs::fstat(file).unwrap().st_blocks.unsigned_abs() * 512 / BASE_PAGE
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::node::{Holds, Mapping, Written};

    /// A way in which pages lose what they hold.
    type Change = fn(&mut Memory, Pages, &[Option<Contents>]);

    const PAGES: Pages = Pages {
        first: PageNumber(2),
        count: 8,
    };

    /// Pages whose bytes are all the same.
    fn all_of(byte: u8) -> Vec<Option<Contents>> {
        let page = Pool::new().copy(&[byte; BASE_PAGE as usize]);
        vec![Some(page); PAGES.count as usize]
    }

    /// A memory in which some pages are in use.
    fn with_pages() -> Memory {
        let mut memory = Memory::of_this_process(Bytes(BASE_PAGE), 16, Pool::new()).unwrap();
        memory
            .fill(PAGES, &all_of(1), (Access::Write, None), None)
            .unwrap();
        memory
    }

    /// A memory in which they are stale.
    fn with_stale_pages() -> Memory {
        let mut memory = with_pages();
        assert!(memory.place(PAGES).is_none(), "they are in use");
        memory.stale.add(PAGES);
        memory
    }

    /// Something comes to where it belongs, as far as it goes.
    fn come(lent: &Arc<Lent>, byte: u8) -> Vec<Option<Contents>> {
        let bytes = vec![byte; lent.len()];
        let put = lent.pass(0..lent.len(), |file, at, _| {
            rustix::io::pwrite(file, &bytes, at)
        });
        assert_eq!(put, Some(Ok(bytes.len())));
        let all = Contents::from(Arc::clone(lent));
        all.pieces(BASE_PAGE as usize).map(Some).collect()
    }

    #[test]
    fn contents_come_to_pages_that_are_not_in_use() {
        let mut memory = with_stale_pages();
        let beyond = |first, count| Pages { first, count };
        assert!(memory.place(beyond(PageNumber(1), 8)).is_none(), "a hole");
        assert!(memory.place(beyond(PageNumber(9), 8)).is_none());
        let lent = memory.place(PAGES).unwrap();
        assert!(memory.place(PAGES).is_none(), "somebody has the place");
        let data = come(&lent, 3);
        memory
            .fill(PAGES, &data, (Access::Write, None), None)
            .unwrap();
        memory.placed(|page| PAGES.contains(page));
        assert!(!lent.is_settled(), "it was copied");
        assert!(
            memory
                .read(PAGES)
                .unwrap()
                .into_iter()
                .map(Some)
                .eq(all_of(3))
        );
        assert!(memory.place(PAGES).is_none(), "they are in use");
    }

    #[test]
    fn a_place_that_is_not_used_is_another_s() {
        let mut memory = with_stale_pages();
        let lent = memory.place(PAGES).unwrap();
        let data = come(&lent, 3);
        // Only some of them are wanted; the others go back as they came.
        let (wanted, rest) = data.split_at(2);
        let first = Pages { count: 2, ..PAGES };
        memory
            .fill(first, wanted, (Access::Read, None), None)
            .unwrap();
        memory.placed(|page| first.contains(page));
        let others = Pages {
            first: PageNumber(4),
            count: 6,
        };
        let again = memory.place(others).unwrap();
        assert!(lent.is_settled(), "what goes back is copied before");
        come(&again, 5);
        assert_eq!(rest, &all_of(3)[2..]);
        assert!(memory.place(first).is_none(), "they are in use");
    }

    #[test]
    fn what_is_coming_when_all_is_dropped_finds_no_place_any_more() {
        let drops: [fn(&mut Memory); 2] = [
            |memory| memory.remove_all().unwrap(),
            |memory| memory.fail_all([].into_iter()).unwrap(),
        ];
        for drops in drops {
            let mut memory = with_stale_pages();
            let lent = memory.place(PAGES).unwrap();
            let came = come(&lent, 3);
            drops(&mut memory);
            assert_eq!(lent.pass(0..1, |_, _, _| ()), None);
            assert_eq!(came, all_of(3));
            memory.placed(|_| false);
            assert_eq!(held(&memory.file), 0);
            assert!(memory.place(PAGES).is_none());
        }
    }

    /// A program that is killed in the midst of that may have written to what is shown of a page, and
    /// all of that page is brought then.
    #[test]
    fn a_page_that_is_written_to_is_whole_before_any_of_it_is_shown() {
        const PAGE: Bytes = Bytes(1 << 20);
        const ALL: u64 = 24;
        let mut memory = Memory::new(PAGE, ALL, Pool::new()).unwrap();
        let mapping = match Mapping::new(memory.file(), memory.all(), None, true) {
            Ok(mapping) => mapping,
            Err(error) => return eprintln!("SKIP: memory cannot be watched: {error}"),
        };
        let (base, own) = (mapping.range().start, Some(mapping.mapped()));
        let uffd = mapping.uffd().try_clone_to_owned().unwrap();
        let space = AddressSpace::new(uffd, base, mapping.part(), own);
        let file = memory.file().try_clone_to_owned().unwrap();
        let ledger = Arc::new(Ledger::new(ALL).unwrap());
        let written = Written {
            memory: file,
            ledger: Arc::clone(&ledger),
            page: PAGE,
        };
        let mut book = Book::new(ledger);
        let contents = Pool::new().copy(&vec![1; PAGE.0 as usize]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let table = File::open("/proc/self/pagemap").unwrap();
                for page in 0..ALL {
                    let at = (base.0 + page * PAGE.0) / BASE_PAGE * 8;
                    let mut entry = [0; 8];
                    // Its highest bit says that the page is mapped.
                    while entry[7] & 0x80 == 0 {
                        table.read_exact_at(&mut entry, at).unwrap();
                    }
                    let holds = written.holds(PageNumber(page));
                    assert_eq!(holds, Holds::All, "page {page}");
                }
            });
            for page in 0..ALL {
                let data = match page % 2 {
                    0 => Some(contents.clone()),
                    _ => None,
                };
                let how = (Access::Write, Some(&mut book));
                let one = Pages::one(PageNumber(page));
                memory.fill(one, &[data], how, Some(&space)).unwrap();
            }
        });
    }

    #[test]
    fn what_is_lent_is_copied_before_the_file_changes() {
        let changes: [Change; 3] = [
            |memory, pages, other| {
                memory
                    .fill(pages, other, (Access::Write, None), None)
                    .unwrap()
            },
            |memory, _, _| memory.remove_all().unwrap(),
            |memory, _, _| memory.fail_all([].into_iter()).unwrap(),
        ];
        for change in changes {
            let mut memory = with_pages();
            let lent = memory.lend(PAGES);
            change(&mut memory, PAGES, &all_of(2));
            let lent: Vec<_> = lent.into_iter().map(Some).collect();
            assert!(lent == all_of(1), "it is another's now");
        }
    }
}
