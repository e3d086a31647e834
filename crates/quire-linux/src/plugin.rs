//! Plug-ins: shared libraries that bring a strategy for frames.
//!
//! What they and Quire owe each other is written in `quire_strategy.h`
//! (`quire-preload-provide/include`); the structures here that are `repr(C)` are those of the
//! header. The code of a plug-in is trusted as that of the program is: whoever names
//! the file answers for it. What it says about frames is not trusted. A library that
//! was loaded stays.

use std::ffi::{CStr, CString, c_char, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use quire_core::frames::buddy::MAX_ORDER;
use quire_core::frames::colour::{Colour, Colours};
use quire_core::frames::strategy::{Block, Request, Strategy, Wanted};
use quire_core::units::Frame;

/// The version of the interface.
pub const ABI: u32 = 1;
/// The symbol by which a plug-in is found.
const SYMBOL: &CStr = c"quire_strategy";
const NO_FRAME: u64 = u64::MAX;
const DEPENDS_ON_ORDER: u32 = 1;

/// `struct quire_request`.
#[repr(C)]
struct RawRequest {
    page: u64,
    thread: u32,
    unused: u32,
}

/// `struct quire_host`.
#[repr(C)]
struct RawHost {
    colours: u32,
    process: u32,
    argument: *const c_char,
    colour_of: unsafe extern "C" fn(*const RawHost, u64) -> u32,
    first_of_colour: unsafe extern "C" fn(*const RawHost, u64, u32, u32) -> u64,
    allocate: unsafe extern "C" fn(*const RawHost, usize) -> *mut c_void,
}

// Plug-ins let no exception out. Where one does, its end is defined at least.
type Create = unsafe extern "C-unwind" fn(*const RawHost, *mut *mut c_void) -> *const c_char;
type WantedColour = unsafe extern "C-unwind" fn(*const c_void, *const RawRequest) -> u32;
type Choose = unsafe extern "C-unwind" fn(*const c_void, u64, u32, *const RawRequest) -> u64;
type NoteFrame = unsafe extern "C-unwind" fn(*mut c_void, u64, *const RawRequest);
type Destroy = unsafe extern "C-unwind" fn(*mut c_void);

/// `struct quire_strategy`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawStrategy {
    abi_version: u32,
    flags: u32,
    name: *const c_char,
    create: Option<Create>,
    wanted: Option<WantedColour>,
    choose: Option<Choose>,
    note: Option<NoteFrame>,
    destroy: Option<Destroy>,
}

/// Why a plug-in cannot be used, in one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// No such file, or it is closed to us.
    #[error("cannot use the plug-in {0}: {1}; give the path of a shared library")]
    NoFile(PathBuf, #[source] io::Error),
    /// The loader refuses it.
    #[error(
        "cannot load the plug-in {0}: {1}; it must be readable, and built for this machine with `cc -shared -fPIC`"
    )]
    NotLoaded(PathBuf, String),
    /// Some other library.
    #[error("the plug-in {0} has no symbol `quire_strategy`: define it as quire_strategy.h shows")]
    NoSymbol(PathBuf),
    /// Built for another Quire.
    #[error(
        "the plug-in {0} has version {1} of the interface, and this Quire has {ABI}: build it with the quire_strategy.h of this Quire"
    )]
    OtherVersion(PathBuf, u32),
    /// What must be there is not, or what is there is not known.
    #[error("the plug-in {0} {1}: see quire_strategy.h")]
    Malformed(PathBuf, &'static str),
    /// It says itself that it cannot do what is asked.
    #[error("the plug-in {0} refuses: {1}")]
    Refused(PathBuf, String),
}

/// A plug-in that is loaded, and can make strategies.
pub struct Plugin {
    path: PathBuf,
    callbacks: RawStrategy,
    choose: Choose,
}

/// The strategy of a plug-in, with a state of its own.
pub struct PluginStrategy {
    callbacks: RawStrategy,
    choose: Choose,
    state: *mut c_void,
    host: NonNull<Host>,
    colours: u32,
}

/// What a strategy is lent: `raw` comes first, so that its address is that of the whole.
#[repr(C)]
struct Host {
    raw: RawHost,
    argument: CString,
    colours: Colours,
    /// What was allocated for it.
    memory: Mutex<Vec<Vec<u128>>>,
}

// SAFETY: the name is a constant of the library, which stays; the functions may be
// called on any thread, as the header says.
unsafe impl Send for Plugin {}
// SAFETY: as above; to make a strategy changes nothing here.
unsafe impl Sync for Plugin {}
// SAFETY: the header says that the state goes from thread to thread, and is used by one
// at a time. The host belongs to the state.
unsafe impl Send for PluginStrategy {}

impl Plugin {
    /// Loads a plug-in. Its constructors run.
    ///
    /// # Errors
    /// When it is no plug-in of this version.
    pub fn load(path: &Path) -> Result<Plugin, PluginError> {
        std::fs::metadata(path).map_err(|error| PluginError::NoFile(path.to_owned(), error))?;
        let library = open(path)?;
        // SAFETY: the library is loaded, and the name is a C string.
        let found = unsafe { libc::dlsym(library, SYMBOL.as_ptr()) };
        if found.is_null() {
            return Err(PluginError::NoSymbol(path.to_owned()));
        }
        // SAFETY: what has this name in a library that the user calls a plug-in begins
        // with the version, in every version.
        let version = unsafe { found.cast::<u32>().read_unaligned() };
        if version != ABI {
            return Err(PluginError::OtherVersion(path.to_owned(), version));
        }
        // SAFETY: in this version it is this structure.
        Plugin::new(path, unsafe {
            found.cast::<RawStrategy>().read_unaligned()
        })
    }

    fn new(path: &Path, callbacks: RawStrategy) -> Result<Plugin, PluginError> {
        let malformed = |what| PluginError::Malformed(path.to_owned(), what);
        if callbacks.flags & !DEPENDS_ON_ORDER != 0 {
            return Err(malformed("sets flags that do not exist"));
        }
        if callbacks.name.is_null() {
            return Err(malformed("has no name"));
        }
        Ok(Plugin {
            path: path.to_owned(),
            choose: callbacks
                .choose
                .ok_or_else(|| malformed("has no function `choose`"))?,
            callbacks,
        })
    }

    /// Makes a strategy for a process. The plug-in gets `argument` to read.
    ///
    /// # Errors
    /// When the plug-in refuses.
    pub fn strategy(
        &self,
        colours: &Colours,
        argument: &str,
        process: u32,
    ) -> Result<PluginStrategy, PluginError> {
        let argument = CString::new(argument)
            .map_err(|_| self.refused(c"the argument has a zero byte in it"))?;
        let mut strategy = PluginStrategy {
            callbacks: RawStrategy {
                destroy: None,
                ..self.callbacks
            },
            choose: self.choose,
            state: ptr::null_mut(),
            host: Host::lend(colours, argument, process),
            colours: colours.count(),
        };
        if let Some(create) = self.callbacks.create {
            let host = strategy.host.as_ptr().cast();
            // SAFETY: both pointers are valid; the host stays until the state is gone.
            let why = unsafe { create(host, &raw mut strategy.state) };
            if !why.is_null() {
                // SAFETY: the header asks for a C string that stays.
                return Err(self.refused(unsafe { CStr::from_ptr(why) }));
            }
        }
        // There is a state from here on.
        strategy.callbacks.destroy = self.callbacks.destroy;
        Ok(strategy)
    }

    /// The error, in one line.
    fn refused(&self, why: &CStr) -> PluginError {
        // SAFETY: the header asks for a C string that stays; it was checked to be there.
        let name = unsafe { CStr::from_ptr(self.callbacks.name) }.to_string_lossy();
        let why = why.to_string_lossy();
        let why = why.lines().next().unwrap_or_default();
        PluginError::Refused(self.path.clone(), format!("{name}: {why}"))
    }
}

/// Has the loader map a library, with all that it needs: nothing is looked up later.
fn open(path: &Path) -> Result<*mut c_void, PluginError> {
    let refused = |why: String| PluginError::NotLoaded(path.to_owned(), why);
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| refused("its name has a zero byte".to_owned()))?;
    // SAFETY: the name is a C string. That the library's code runs is what is asked for.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !library.is_null() {
        return Ok(library);
    }
    // SAFETY: the call has no requirements.
    let error = unsafe { libc::dlerror() };
    if error.is_null() {
        return Err(refused("the loader does not say why".to_owned()));
    }
    // SAFETY: the loader gives a C string, which stays until its next call.
    let error = unsafe { CStr::from_ptr(error) }.to_string_lossy();
    let own = format!("{}: ", path.display());
    Err(refused(error.trim_start_matches(&own).to_owned()))
}

impl RawRequest {
    fn new(request: &Request) -> RawRequest {
        RawRequest {
            page: request.page.0,
            thread: request.thread,
            unused: 0,
        }
    }
}

impl Strategy for PluginStrategy {
    fn choose(&self, block: Block, request: &Request) -> Option<Frame> {
        let request = RawRequest::new(request);
        // SAFETY: the state is the plug-in's own, and the request outlives the call.
        let frame =
            unsafe { (self.choose)(self.state, block.first.0, block.order, &raw const request) };
        Some(Frame(frame)).filter(|frame| block.contains(*frame))
    }

    fn wanted(&self, request: &Request) -> Wanted {
        let Some(wanted) = self.callbacks.wanted else {
            return Wanted::Unknown;
        };
        let request = RawRequest::new(request);
        // SAFETY: as for `choose`.
        let colour = unsafe { wanted(self.state, &raw const request) };
        match colour < self.colours {
            true => Wanted::Colour(Colour(colour)),
            false => Wanted::Unknown,
        }
    }

    fn note(&mut self, frame: Frame, request: &Request) {
        if let Some(note) = self.callbacks.note {
            let request = RawRequest::new(request);
            // SAFETY: as for `choose`.
            unsafe { note(self.state, frame.0, &raw const request) };
        }
    }

    fn sequence(&self, _: &Request) -> Option<u32> {
        (self.callbacks.flags & DEPENDS_ON_ORDER != 0).then_some(0)
    }
}

impl Drop for PluginStrategy {
    fn drop(&mut self) {
        if let Some(destroy) = self.callbacks.destroy {
            // SAFETY: the state is the plug-in's own, and nobody uses it any more.
            unsafe { destroy(self.state) };
        }
        // SAFETY: it came from a box, and the plug-in uses it no more.
        drop(unsafe { Box::from_raw(self.host.as_ptr()) });
    }
}

impl Host {
    fn lend(colours: &Colours, argument: CString, process: u32) -> NonNull<Host> {
        let host = Box::new(Host {
            raw: RawHost {
                colours: colours.count(),
                process,
                // The text does not move with its owner.
                argument: argument.as_ptr(),
                colour_of,
                first_of_colour,
                allocate,
            },
            argument,
            colours: colours.clone(),
            memory: Mutex::new(Vec::new()),
        });
        NonNull::from(Box::leak(host))
    }

    /// # Safety
    /// `raw` must be what a plug-in was lent, and still is.
    unsafe fn of<'a>(raw: *const RawHost) -> &'a Host {
        // SAFETY: what is lent is the first part of a host.
        unsafe { &*raw.cast() }
    }
}

// What plug-ins call. None of these panics, whatever they are given but for the host.

unsafe extern "C" fn colour_of(host: *const RawHost, frame: u64) -> u32 {
    // SAFETY: the plug-in passes on what it was lent.
    let host = unsafe { Host::of(host) };
    host.colours.of(Frame(frame)).0
}

unsafe extern "C" fn first_of_colour(
    host: *const RawHost,
    first: u64,
    order: u32,
    colour: u32,
) -> u64 {
    // SAFETY: the plug-in passes on what it was lent.
    let host = unsafe { Host::of(host) };
    let is_block = order <= MAX_ORDER && first.is_multiple_of(1 << order);
    let block = is_block.then_some(Block {
        first: Frame(first),
        order,
    });
    let found = block.and_then(|block| host.colours.first_in(block, Colour(colour)));
    found.map_or(NO_FRAME, |frame| frame.0)
}

unsafe extern "C" fn allocate(host: *const RawHost, bytes: usize) -> *mut c_void {
    // SAFETY: the plug-in passes on what it was lent.
    let host = unsafe { Host::of(host) };
    let words = bytes.div_ceil(size_of::<u128>());
    let mut block = Vec::new();
    if block.try_reserve_exact(words).is_err() {
        return ptr::null_mut();
    }
    block.resize(words, 0u128);
    let at = block.as_mut_ptr().cast();
    let mut memory = host.memory.lock().unwrap_or_else(PoisonError::into_inner);
    memory.push(block);
    at
}

#[cfg(test)]
mod tests;
