//! The C interface, `include/quire_dsm.h`.
//!
//! Its links and objects are those of the program's own threads and descriptors: they have
//! nothing to do with what `quire run --dsm` attaches.
//!
//! | module | holds |
//! |---|---|
//! | `arguments` | what is passed, read and checked |
//! | `heap` | the typed heap of an object |
//! | `serving` | a server in the program |
//! | `pager` | pagers of the program's own, for the objects of that server |

mod arguments;
mod heap;
mod pager;
mod serving;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use quire_core::dsm::message::Access;
use quire_core::dsm::sync::{Answer as Met, Name as Point, Request};
use quire_core::units::{Bytes, ObjectOffset, VirtAddr};
use quire_dsm::client::{Client, ClientError, Place, Region, Shared};
use quire_dsm::node::{Part, RangeLock};
use quire_dsm::wire::control::{Answer, Name, Rights};

use self::arguments::{Identity, Shape, bad};
use crate::handed::Handed;
use crate::leaving;
use crate::streams;
use crate::taken::Copies;
use crate::trouble::{Result, Trouble, set_errno};

/// `QUIRE_DSM_API`.
const API: c_int = 4;
/// `QUIRE_DSM_READ`.
const READ: c_int = 1;
/// `QUIRE_DSM_WRITE`.
const WRITE: c_int = 3;
/// `QUIRE_DSM_ABANDONED`.
const ABANDONED: c_int = 1;
/// The longest name of something that synchronises, in bytes.
const LONGEST: usize = 255;

/// `quire_dsm`.
struct Server(Client);

/// `quire_dsm_object`.
struct Object {
    /// Parts that are mapped once more, by their addresses. They go before the object.
    parts: Mutex<BTreeMap<u64, Mapped>>,
    whole: Handed,
    shared: Shared,
    writable: bool,
    heaps: heap::Heaps,
    /// How often the link had broken when the program was last told of it.
    breaks: AtomicU64,
}

/// A part that is mapped once more. Its addresses may be somebody else's when it is gone: what is
/// said of them goes first.
struct Mapped {
    #[expect(dead_code, reason = "it is known as long as this")]
    handed: Handed,
    #[expect(dead_code, reason = "it is mapped as long as this")]
    region: Region,
}

/// Says of a range that the program has it.
fn handed(shared: &Shared, range: Range<u64>, writable: bool, addresses: RangeLock) -> Handed {
    let copies = Copies::of(shared);
    Handed::new(range, writable, copies, Some(addresses))
}

impl Object {
    /// Whether the link broke since this was asked the last time.
    fn broke(&self) -> bool {
        let now = self.shared.breaks();
        self.breaks.swap(now, Ordering::AcqRel) != now
    }
}

/// What the program is told of what was given back. Where the link broke meanwhile, something may
/// not have been there any more.
fn given_back(name: &Name, done: std::result::Result<(), ClientError>, broke: bool) -> Result<()> {
    done?;
    if !broke {
        return Ok(());
    }
    let text = format!(
        "{name}: the link to the server broke, and is there again; what was written before may be \
         lost"
    );
    Err(Trouble::new(libc::EHOSTUNREACH, text))
}

thread_local! {
    static WHY: RefCell<CString> = RefCell::default();
}

/// Takes a trouble to `errno` and the text.
fn answer<T>(result: Result<T>, failed: T) -> T {
    result.unwrap_or_else(|trouble| {
        let text = CString::new(trouble.text.replace('\0', " ")).unwrap_or_default();
        // At the end of a thread the text is gone, which only loses it.
        let _ = WHY.try_with(|why| *why.borrow_mut() = text);
        set_errno(trouble.errno);
        failed
    })
}

fn status(result: Result<()>) -> c_int {
    answer(result.map(|()| 0), -1)
}

/// What a pointer that the library gave stands for.
///
/// # Safety
/// It is null, or the library gave it, and it is not closed.
unsafe fn given<'a, T>(pointer: *const T) -> Result<&'a T> {
    // SAFETY: the caller vouches for it.
    unsafe { pointer.as_ref() }.ok_or_else(|| bad("a null pointer"))
}

#[unsafe(no_mangle)]
extern "C" fn quire_dsm_api() -> c_int {
    API
}

#[unsafe(no_mangle)]
extern "C" fn quire_dsm_why() -> *const c_char {
    let why = WHY.try_with(|why| why.borrow().as_ptr());
    why.unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_connect(server: *const c_char, who: *const Identity) -> *mut c_void {
    // SAFETY: the header asks for the same.
    answer(unsafe { connect(server, who, false) }, ptr::null_mut())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_connect_apart(
    server: *const c_char,
    who: *const Identity,
) -> *mut c_void {
    // SAFETY: the header asks for the same.
    answer(unsafe { connect(server, who, true) }, ptr::null_mut())
}

/// Connects to a server.
///
/// # Safety
/// The server is null or a C string, and who is null or points to the structure.
unsafe fn connect(
    server: *const c_char,
    who: *const Identity,
    own_pages: bool,
) -> Result<*mut c_void> {
    // SAFETY: the caller vouches for both.
    let (server, mut who) = unsafe {
        let server = arguments::read(server, "the server")?;
        (server, arguments::identity(who)?)
    };
    who.own_pages = own_pages;
    let options = who.options(&server);
    let options = options.map_err(|e| Trouble::new(libc::EACCES, e.to_string()))?;
    streams::log_beside();
    let client = leaving::starting(|| Client::connect(options))?;
    Ok(Box::into_raw(Box::new(Server(client))).cast())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_disconnect(server: *mut c_void) {
    if !server.is_null() {
        // SAFETY: `quire_dsm_connect` gave it, and the program gives it up.
        drop(unsafe { Box::from_raw(server.cast::<Server>()) });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_create(
    server: *const c_void,
    name: *const c_char,
    size: u64,
    shape: *const Shape,
) -> c_int {
    let create = || {
        // SAFETY: the header asks for these.
        let (server, object) = unsafe {
            let name = arguments::read(name, "the name")?;
            (
                given::<Server>(server.cast())?,
                arguments::object(name, size, shape)?,
            )
        };
        Ok(server.0.create(object)?)
    };
    status(create())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_remove(server: *const c_void, name: *const c_char) -> c_int {
    // SAFETY: the header asks for these.
    let (server, name) = unsafe {
        (
            given::<Server>(server.cast()),
            arguments::read(name, "the name"),
        )
    };
    let remove = || Ok(server?.0.remove(name?)?);
    status(remove())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_replicate(server: *const c_void, name: *const c_char) -> c_int {
    // SAFETY: the header asks for these.
    let replicate = || unsafe {
        let name = arguments::read(name, "the name")?;
        Ok(given::<Server>(server.cast())?.0.replicate(name)?)
    };
    status(replicate())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_tag(
    server: *const c_void,
    name: *const c_char,
    types: *const c_char,
) -> c_int {
    let tag = || {
        // SAFETY: the header asks for these.
        let (server, name, types) = unsafe {
            let name: Name = arguments::read(name, "the name")?;
            let types = arguments::needed(types, "the types")?;
            (given::<Server>(server.cast())?, name, types)
        };
        let size = size(&server.0, &name)?;
        Ok(server.0.tag(name, arguments::tags(&types, size)?)?)
    };
    status(tag())
}

/// The size of an object.
fn size(client: &Client, name: &Name) -> Result<Bytes> {
    match client.statistics(name.clone(), None)? {
        Answer::Statistics { info, .. } => Ok(info.size),
        _ => Err(ClientError::Confused.into()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_grant(
    server: *const c_void,
    name: *const c_char,
    to: *const c_char,
    rights: *const c_char,
) -> c_int {
    let grant = || {
        // SAFETY: the header asks for these.
        let (server, name, to, rights) = unsafe {
            let name = arguments::read(name, "the name")?;
            let to = arguments::needed(to, "whom")?;
            let rights = arguments::needed(rights, "the rights")?;
            (given::<Server>(server.cast())?, name, to, rights)
        };
        Ok(server.0.grant(name, to, arguments::rights(&rights)?)?)
    };
    status(grant())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_open(
    server: *const c_void,
    name: *const c_char,
    rights: c_int,
) -> *mut c_void {
    let open = || {
        // SAFETY: the header asks for these.
        let (server, name) = unsafe {
            let name: Name = arguments::read(name, "the name")?;
            (given::<Server>(server.cast())?, name)
        };
        let write = for_writing(rights)?;
        let shared = server.0.open(name, Rights { read: true, write })?;
        let page = shared.info().page_size.bytes();
        let length = Bytes(shared.size().0.next_multiple_of(page.0));
        let start = shared.address().0;
        let object = Object {
            parts: Mutex::default(),
            whole: handed(&shared, start..start + length.0, write, shared.addresses()),
            shared,
            writable: write,
            heaps: heap::Heaps::default(),
            breaks: AtomicU64::new(0),
        };
        Ok(Box::into_raw(Box::new(object)).cast())
    };
    answer(open(), ptr::null_mut())
}

/// Whether rights are those to write, too.
fn for_writing(rights: c_int) -> Result<bool> {
    match rights {
        READ => Ok(false),
        WRITE => Ok(true),
        _ => Err(bad("rights: QUIRE_DSM_READ or QUIRE_DSM_WRITE")),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_address(object: *const c_void) -> *mut c_void {
    // SAFETY: the header asks for an open object.
    let object = unsafe { given::<Object>(object.cast()) };
    let address = object.map(|object| object.shared.address().as_ptr().cast());
    answer(address, ptr::null_mut())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_size(object: *const c_void) -> u64 {
    // SAFETY: the header asks for an open object.
    let object = unsafe { given::<Object>(object.cast()) };
    answer(object.map(|object| object.shared.size().0), 0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_map(
    object: *const c_void,
    offset: u64,
    length: u64,
    address: *mut c_void,
) -> *mut c_void {
    // SAFETY: the header asks for an open object.
    let object = unsafe { given::<Object>(object.cast()) };
    let mapped = object.and_then(|object| map(object, offset, length, address as u64));
    answer(mapped.map(|at| at as *mut c_void), ptr::null_mut())
}

fn map(object: &Object, offset: u64, length: u64, address: u64) -> Result<u64> {
    let end = offset.checked_add(length);
    let size = object.shared.size().0.next_multiple_of(4096);
    if length == 0 || end.is_none_or(|end| end > size) {
        return Err(bad("a part that is not in the object"));
    }
    let part = Part {
        start: ObjectOffset(offset),
        len: Bytes(length),
    };
    let place = match address {
        0 => Place::Anywhere,
        address => Place::Free(VirtAddr(address)),
    };
    let region = object.shared.map(part, place, object.writable)?;
    let range = region.range();
    let mapped = Mapped {
        handed: handed(
            &object.shared,
            range.start.0..range.start.0 + range.len().0,
            object.writable,
            region.addresses(),
        ),
        region,
    };
    let parts = object.parts.lock();
    parts
        .unwrap_or_else(PoisonError::into_inner)
        .insert(range.start.0, mapped);
    Ok(range.start.0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_unmap(object: *const c_void, address: *mut c_void) -> c_int {
    // SAFETY: the header asks for an open object.
    let object = unsafe { given::<Object>(object.cast()) };
    status(object.and_then(|object| {
        let parts = object.parts.lock();
        let mut parts = parts.unwrap_or_else(PoisonError::into_inner);
        let part = parts.remove(&(address as u64));
        part.map(drop)
            .ok_or_else(|| bad("nothing of the object is mapped there"))
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_will_need(
    object: *const c_void,
    offset: u64,
    length: u64,
    rights: c_int,
) -> c_int {
    // SAFETY: the header asks for an open object.
    let object = unsafe { given::<Object>(object.cast()) };
    let need = || {
        let access = Access::of(for_writing(rights)?);
        let end = offset.checked_add(length);
        let end = end.ok_or_else(|| bad("a part that is not in the object"))?;
        let range = ObjectOffset(offset)..ObjectOffset(end);
        object?.shared.will_need(range, access);
        Ok(())
    };
    status(need())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_flush(object: *const c_void) -> c_int {
    // SAFETY: the header asks for an open object.
    let flush = || unsafe {
        let object = given::<Object>(object.cast())?;
        let done = object.shared.flush();
        given_back(&object.shared.info().name, done, object.broke())
    };
    status(flush())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_close(object: *mut c_void) -> c_int {
    if object.is_null() {
        return status(Err(bad("a null pointer")));
    }
    // SAFETY: `quire_dsm_open` gave it.
    if !unsafe { &*object.cast::<Object>() }.heaps.is_none() {
        let text = "a heap of the object is open: close it first";
        return status(Err(Trouble::new(libc::EBUSY, text)));
    }
    // SAFETY: as above, and the program gives it up.
    let object = unsafe { Box::from_raw(object.cast::<Object>()) };
    let broke = object.broke();
    let Object {
        parts,
        whole,
        shared,
        ..
    } = *object;
    drop((parts, whole));
    let name = shared.info().name.clone();
    status(given_back(&name, shared.close(), broke))
}

/// Synchronises by one name.
///
/// # Safety
/// The object is open, and the name is null or a C string.
unsafe fn meet(
    object: *const c_void,
    name: *const c_char,
    request: impl FnOnce(Point) -> Request,
) -> Result<Met> {
    // SAFETY: the caller vouches for them.
    let (object, name) = unsafe { (given::<Object>(object.cast())?, point(name)?) };
    Ok(object.shared.synchronise(request(name))?)
}

/// The name of something that synchronises.
///
/// # Safety
/// It is null or a C string.
unsafe fn point(name: *const c_char) -> Result<Point> {
    // SAFETY: the caller vouches for it.
    let name = unsafe { arguments::needed(name, "the name")? };
    match name.len() {
        1..=LONGEST => Ok(Point(name)),
        _ => Err(bad("a name has 1 to 255 bytes")),
    }
}

/// What a program is told that synchronised.
fn met(answer: Met) -> Result<c_int> {
    match answer {
        Met::Done | Met::Value(_) => Ok(0),
        Met::Abandoned => Ok(ABANDONED),
        Met::Busy => Err(Trouble::new(libc::EBUSY, "the mutex is not free")),
        Met::NotYours => Err(Trouble::new(
            libc::EPERM,
            "this program does not hold the mutex, or holds it already",
        )),
        Met::Broken => Err(Trouble::new(
            libc::EOWNERDEAD,
            "the barrier is broken: somebody of it is gone",
        )),
        Met::Parties(parties) => Err(bad(format!("the barrier is for {parties}"))),
        Met::Full => Err(Trouble::new(
            libc::ENOSPC,
            "there are too many mutexes, conditions, barriers and counters of this object",
        )),
    }
}

fn told(answered: Result<Met>) -> c_int {
    answer(answered.and_then(met), -1)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_barrier(
    object: *const c_void,
    name: *const c_char,
    parties: u32,
) -> c_int {
    let arrive = |barrier| Request::Arrive { barrier, parties };
    // SAFETY: the header asks for these, here and below.
    told(unsafe { meet(object, name, arrive) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_mend(object: *const c_void, name: *const c_char) -> c_int {
    // SAFETY: as above.
    told(unsafe { meet(object, name, Request::Mend) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_lock(object: *const c_void, name: *const c_char) -> c_int {
    // SAFETY: as above.
    told(unsafe { meet(object, name, Request::Lock) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_try_lock(object: *const c_void, name: *const c_char) -> c_int {
    // SAFETY: as above.
    told(unsafe { meet(object, name, Request::TryLock) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_unlock(object: *const c_void, name: *const c_char) -> c_int {
    // SAFETY: as above.
    told(unsafe { meet(object, name, Request::Unlock) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_wait(
    object: *const c_void,
    condition: *const c_char,
    mutex: *const c_char,
) -> c_int {
    // SAFETY: as above.
    let waited = unsafe {
        point(mutex).and_then(|mutex| {
            meet(object, condition, |condition| Request::Wait {
                condition,
                mutex,
            })
        })
    };
    told(waited)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_signal(
    object: *const c_void,
    name: *const c_char,
    count: u32,
) -> c_int {
    let count = (count > 0).then_some(count);
    let signal = |condition| Request::Signal { condition, count };
    // SAFETY: as above.
    told(unsafe { meet(object, name, signal) })
}

/// Writes what a counter is.
///
/// # Safety
/// There is room at `value`, or it is null.
unsafe fn counted(answered: Result<Met>, value: *mut i64) -> c_int {
    if let Ok(Met::Value(is)) = answered
        && !value.is_null()
    {
        // SAFETY: the caller vouches for it.
        unsafe { value.write(is) };
    }
    told(answered)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_add(
    object: *const c_void,
    name: *const c_char,
    by: i64,
    value: *mut i64,
) -> c_int {
    let add = |counter| Request::Add { counter, by };
    // SAFETY: as above.
    unsafe { counted(meet(object, name, add), value) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_at_least(
    object: *const c_void,
    name: *const c_char,
    least: i64,
    value: *mut i64,
) -> c_int {
    let wait = |counter| Request::AtLeast {
        counter,
        value: least,
    };
    // SAFETY: as above.
    unsafe { counted(meet(object, name, wait), value) }
}
