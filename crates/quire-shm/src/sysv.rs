//! Shared memory of System V: `shmget`, `shmat`, `shmdt`, `shmctl`.
//!
//! A segment is one of the objects that an attachment's name has stood for; its number says which
//! (`numbers`). One that was removed goes on until nobody has it attached, while another one has its key.

use std::ffi::{c_int, c_void};

use quire_core::units::BASE_PAGE;
use quire_dsm::attachment::Target;

use crate::host::{At, Meaning};
use crate::mappings::{self, Part};
use crate::numbers::{self, Number};
use crate::posix;
use crate::real::Real;
use crate::state::{self, State, answer};
use crate::trouble::{Result, Trouble};

type Shmget = unsafe extern "C" fn(libc::key_t, usize, c_int) -> c_int;
type Shmat = unsafe extern "C" fn(c_int, *const c_void, c_int) -> *mut c_void;
type Shmdt = unsafe extern "C" fn(*const c_void) -> c_int;
type Shmctl = unsafe extern "C" fn(c_int, c_int, *mut libc::shmid_ds) -> c_int;

// SAFETY: the types of the C library's functions, here and below.
static SHMGET: Real<Shmget> = unsafe { Real::new(c"shmget") };
// SAFETY: as above.
static SHMAT: Real<Shmat> = unsafe { Real::new(c"shmat") };
// SAFETY: as above.
static SHMDT: Real<Shmdt> = unsafe { Real::new(c"shmdt") };
// SAFETY: as above.
static SHMCTL: Real<Shmctl> = unsafe { Real::new(c"shmctl") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _, _, _) = (SHMGET.get(), SHMAT.get(), SHMDT.get(), SHMCTL.get());
}

/// Replace what is mapped at the address.
const REMAP: c_int = 0o40000;
/// In a mode of permissions: it goes with who has it attached, and has no key (`SHM_DEST`).
const GOES: libc::c_ushort = 0o1000;
/// Map to be executed.
const EXEC: c_int = 0o100000;

/// The segment that a number means, if it is one of ours.
fn number_of(id: c_int) -> Option<Number> {
    crate::begin();
    let list = state::attachments()?.list();
    let number = Number::read(id, list.len())?;
    let attachment = list.get(number.place)?;
    matches!(attachment.target, Target::SystemV(_)).then_some(number)
}

fn absent() -> Trouble {
    Trouble::new(libc::ENOENT, "there is no such object")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shmget(key: libc::key_t, size: usize, flags: c_int) -> c_int {
    crate::begin();
    let place = match key {
        libc::IPC_PRIVATE => None,
        key => state::place_of(&Target::SystemV(key)),
    };
    let got = place.and_then(|place| state::locked(|state| get(state, place, size as u64, flags)));
    match (got, SHMGET.known()) {
        (Some(got), _) => answer(got, -1),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(key, size, flags) },
        (None, None) => -1,
    }
}

fn get(state: &mut State, place: usize, size: u64, flags: c_int) -> Result<c_int> {
    let create = flags & libc::IPC_CREAT != 0;
    let only_new = create && flags & libc::IPC_EXCL != 0;
    let entry = match state.run(move |works| works.named(place))? {
        Meaning::Sized(..) | Meaning::Begun(_) if only_new => {
            return Err(Trouble::new(libc::EEXIST, "the object exists"));
        }
        Meaning::Sized(entry, is) if size > is => {
            state.run(move |works| works.check_size(entry, size))?;
            entry
        }
        Meaning::Sized(entry, _) => entry,
        Meaning::Nothing | Meaning::Begun(_) if !create => return Err(absent()),
        Meaning::Nothing | Meaning::Begun(_) => {
            posix::may_create(state, place)?;
            state.run(move |works| works.create_segment(place, size, only_new))?
        }
    };
    state.run(move |works| works.id(entry))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shmat(id: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
    let number = number_of(id);
    if number.is_none()
        && let Err(trouble) = make_way(id, at as u64, flags)
    {
        return answer(Err(trouble), libc::MAP_FAILED);
    }
    let mapped =
        number.and_then(|number| state::locked(|state| attach(state, number, at as u64, flags)));
    match (mapped, SHMAT.known()) {
        (Some(mapped), _) => answer(mapped.map(|at| at as *mut c_void), libc::MAP_FAILED),
        // SAFETY: passed on as it came.
        (None, Some(real)) => match unsafe { real(id, at, flags) } {
            libc::MAP_FAILED => answer(Err(unknown(id)), libc::MAP_FAILED),
            mapped => mapped,
        },
        (None, None) => libc::MAP_FAILED,
    }
}

/// Why the kernel has refused something with a segment. One that has a number of an object's is an object to
/// programs with another `--dsm`.
fn unknown(id: c_int) -> Trouble {
    let refused = Trouble::last("a segment of the kernel's");
    if refused.errno != libc::EINVAL || !numbers::is_ours(id) || !state::is_active() {
        return refused;
    }
    let text = format!(
        "segment {id} is none that a --dsm of this program names: give it the same as the program has which \
         made the segment, in the same order"
    );
    let told = state::locked(|state| {
        state.run(move |_| Err::<(), Trouble>(Trouble::new(libc::EIDRM, text)))
    });
    told.and_then(Result::err).unwrap_or(refused)
}

/// A segment of the kernel's takes the place of what is mapped, which may be an object.
fn make_way(id: c_int, at: u64, flags: c_int) -> Result<()> {
    if flags & REMAP == 0 || !state::is_active() {
        return Ok(());
    }
    let Some(size) = size_of_segment(id) else {
        // The kernel says why.
        return Ok(());
    };
    let range = state::pages(address(at, flags) as usize, size).filter(state::concerns);
    let made = range.and_then(|range| state::locked(|state| mappings::make_way(state, &range)));
    made.unwrap_or(Ok(()))
}

/// The size of a segment of the kernel's.
fn size_of_segment(id: c_int) -> Option<usize> {
    let real = SHMCTL.known()?;
    // SAFETY: zeros are a value of this structure, which the call fills.
    unsafe {
        let mut about: libc::shmid_ds = std::mem::zeroed();
        (real(id, libc::IPC_STAT, &raw mut about) == 0).then_some(about.shm_segsz)
    }
}

/// Where the program wants a segment.
const fn address(at: u64, flags: c_int) -> u64 {
    match flags & libc::SHM_RND {
        0 => at,
        _ => at - at % BASE_PAGE,
    }
}

fn attach(state: &mut State, number: Number, at: u64, flags: c_int) -> Result<u64> {
    let has = |flag| flags & flag != 0;
    if has(EXEC) {
        return Err(Trouble::new(libc::EACCES, "objects are not executed"));
    }
    let at = address(at, flags);
    if !at.is_multiple_of(BASE_PAGE) || (at == 0 && has(REMAP)) {
        return Err(Trouble::new(libc::EINVAL, "no such address"));
    }
    let place = match at {
        0 => At::Anywhere,
        at if has(REMAP) => At::Over(at),
        at => At::Free(at),
    };
    let (entry, found) = state.run(move |works| works.segment(number))?;
    let size = found.size;
    let part = Part {
        entry,
        offset: 0,
        len: size.next_multiple_of(BASE_PAGE),
        size,
        writable: !has(libc::SHM_RDONLY),
        is_attached: true,
    };
    let prot = match has(libc::SHM_RDONLY) {
        true => libc::PROT_READ,
        false => libc::PROT_READ | libc::PROT_WRITE,
    };
    mappings::map(state, part, place, prot)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shmdt(at: *const c_void) -> c_int {
    let start = at as u64;
    let detached = match state::concerns(&(start..start.saturating_add(1))) {
        true => state::locked(|state| detach(state, start)).flatten(),
        false => None,
    };
    match (detached, SHMDT.known()) {
        (Some(detached), _) => answer(detached.map(|()| 0), -1),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(at) },
        (None, None) => -1,
    }
}

fn detach(state: &mut State, start: u64) -> Option<Result<()>> {
    let mapped = state.mapped.get(&start).filter(|m| m.is_attached)?;
    let number = mapped.number;
    state.take(start);
    Some(state.run(move |works| works.unmap(number)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shmctl(id: c_int, command: c_int, about: *mut libc::shmid_ds) -> c_int {
    let number = number_of(id);
    let done = number.and_then(|number| {
        state::locked(|state| match command {
            libc::IPC_RMID => remove(state, number).map(|()| None),
            libc::IPC_STAT if about.is_null() => Err(Trouble::new(libc::EFAULT, "no room")),
            libc::IPC_STAT => tell(state, number).map(Some),
            _ => state.run(|_| {
                let text = "shmctl of an object: only IPC_STAT and IPC_RMID are offered";
                Err(Trouble::new(libc::EINVAL, text))
            }),
        })
    });
    if let Some(Ok(Some(told))) = done {
        // SAFETY: the program gives room for the structure.
        unsafe { about.write(told) };
    }
    match (done, SHMCTL.known()) {
        (Some(done), _) => answer(done.map(|_| 0), -1),
        // SAFETY: passed on as it came.
        (None, Some(real)) => match unsafe { real(id, command, about) } {
            -1 => answer(Err(unknown(id)), -1),
            done => done,
        },
        (None, None) => -1,
    }
}

/// Removes a segment, which goes when nobody has it attached; once more does no harm.
fn remove(state: &mut State, number: Number) -> Result<()> {
    state.run(move |works| match works.segment(number)? {
        (_, found) if found.is_removed => Ok(()),
        (entry, _) => works.remove(entry),
    })
}

/// What is known of a segment. A program counts as one attachment, however often it has it
/// attached, but for this program itself.
fn tell(state: &mut State, number: Number) -> Result<libc::shmid_ds> {
    let (entry, found) = state.run(move |works| works.segment(number))?;
    let (size, open) = (found.size, found.open);
    let here = state.mapped.values().filter(|m| m.entry == entry).count();
    let others = open - usize::from(here > 0).min(open);
    let target = state::attachment(entry.place).map(|found| found.target.clone());
    // SAFETY: zeros are a value of this structure.
    let mut about: libc::shmid_ds = unsafe { std::mem::zeroed() };
    about.shm_segsz = size as usize;
    about.shm_nattch = (here + others) as libc::shmatt_t;
    about.shm_perm.mode = posix::MODE as _;
    match target {
        _ if found.is_removed => about.shm_perm.mode |= GOES,
        Some(Target::SystemV(key)) => about.shm_perm.__key = key,
        _ => {}
    }
    // SAFETY: the calls have no conditions.
    unsafe {
        (about.shm_perm.uid, about.shm_perm.gid) = (libc::geteuid(), libc::getegid());
    }
    (about.shm_perm.cuid, about.shm_perm.cgid) = (about.shm_perm.uid, about.shm_perm.gid);
    Ok(about)
}
