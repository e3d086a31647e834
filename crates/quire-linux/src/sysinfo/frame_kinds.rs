//! Whether there is memory behind a frame number, and whether a program can ever have it,
//! from `/proc/kpageflags`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use quire_core::units::Frame;

const NO_PAGE: u64 = 1 << 20;
const POISONED: u64 = 1 << 19;
const RESERVED: u64 = 1 << 32;
/// So many entries are read at once, at most.
const BLOCK: u64 = 1024;

/// Why no program can have a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// There is no memory of this number.
    Absent,
    /// It holds the kernel's own code or data, or belongs to a device or the firmware.
    Reserved,
    /// It is broken.
    Broken,
}

/// The kernel's knowledge about frames.
#[derive(Debug)]
pub struct FrameKinds(File);

impl FrameKinds {
    /// Opens it.
    ///
    /// # Errors
    /// As `open`: `EACCES` without `CAP_SYS_ADMIN`.
    pub fn open() -> io::Result<FrameKinds> {
        File::open("/proc/kpageflags").map(FrameKinds)
    }

    /// The first of some neighbouring frames that no program can have.
    ///
    /// # Errors
    /// As `read`.
    pub fn first_unusable(
        &self,
        first: Frame,
        count: u64,
    ) -> io::Result<Option<(Frame, Unusable)>> {
        let mut bytes = [0; 8 * BLOCK as usize];
        let mut at = first.0;
        while at < first.0 + count {
            let wanted = (first.0 + count - at).min(BLOCK) as usize * 8;
            let read = self.0.read_at(&mut bytes[..wanted], at * 8)? / 8;
            for (frame, entry) in (at..).zip(bytes[..read * 8].as_chunks().0) {
                if let Some(why) = unusable(u64::from_le_bytes(*entry)) {
                    return Ok(Some((Frame(frame), why)));
                }
            }
            if read == 0 {
                return Ok(Some((Frame(at), Unusable::Absent)));
            }
            at += read as u64;
        }
        Ok(None)
    }
}

fn unusable(flags: u64) -> Option<Unusable> {
    match flags {
        _ if flags & NO_PAGE != 0 => Some(Unusable::Absent),
        _ if flags & POISONED != 0 => Some(Unusable::Broken),
        _ if flags & RESERVED != 0 => Some(Unusable::Reserved),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use quire_core::units::{AddrRange, BASE_PAGE, Bytes, VirtAddr};

    use super::*;
    use crate::{memory, pagemap};

    #[test]
    fn flags_are_told_apart() {
        assert_eq!(unusable(0), None);
        assert_eq!(unusable(1 << 12 | 1 << 5), None);
        assert_eq!(unusable(RESERVED), Some(Unusable::Reserved));
        assert_eq!(unusable(NO_PAGE), Some(Unusable::Absent));
        assert_eq!(unusable(POISONED), Some(Unusable::Broken));
    }

    #[test]
    fn frames_of_this_machine_are_told_apart() {
        let Ok(kinds) = FrameKinds::open() else {
            println!("SKIP: the kernel tells only root about frames");
            return;
        };
        let first = |first, count| kinds.first_unusable(Frame(first), count).unwrap();
        let (beyond, why) = first(1 << 39, 2000).unwrap();
        assert_eq!((beyond, why), (Frame(1 << 39), Unusable::Absent));
        // Somewhere there is an end, and before it memory.
        assert!(first(0, 1 << 39).is_some());
        // SAFETY: a new mapping at an address that the kernel chooses, written inside.
        let page = unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let page = memory::map_anonymous(VirtAddr(0), Bytes(BASE_PAGE), prot, 0).unwrap();
            page.as_ptr().write(1);
            page
        };
        let pagemap = pagemap::open().unwrap();
        let own = pagemap::frame(std::os::fd::AsFd::as_fd(&pagemap), page).unwrap();
        assert_eq!(kinds.first_unusable(own, 1).unwrap(), None);
        // SAFETY: nobody uses it any more.
        unsafe { memory::unmap(AddrRange::new(page, Bytes(BASE_PAGE))) }.unwrap();
    }
}
