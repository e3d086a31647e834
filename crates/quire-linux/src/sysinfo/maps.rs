//! The mappings of a process, as the kernel lists them in `/proc/PID/maps`: the
//! only list that also knows what the loader and the C library map by system
//! calls of their own.

use std::fs;
use std::io;

use quire_core::units::{AddrRange, ObjectOffset, SUPERPAGE, VirtAddr};

/// What names a file: its device and its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Major and minor number of the device.
    pub device: (u32, u32),
    /// Number of the inode.
    pub inode: u64,
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub range: AddrRange,
    /// Its protection, as `mmap` takes it.
    pub prot: i32,
    /// Whether it is shared.
    pub shared: bool,
    /// Where it begins in its file.
    pub offset: ObjectOffset,
    /// Its file, or shared memory; nothing for private anonymous memory.
    pub file: Option<FileId>,
    /// A path, a name in brackets, or nothing.
    pub name: String,
}

impl Mapping {
    /// Whether its addresses and its offsets agree modulo the superpage size,
    /// without which the kernel maps no superpage of a file.
    #[must_use]
    pub const fn is_congruent(&self) -> bool {
        self.range.start.0 % SUPERPAGE == self.offset.0 % SUPERPAGE
    }

    /// Whether it may be read but not written.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.prot & (libc::PROT_READ | libc::PROT_WRITE) == libc::PROT_READ
    }

    /// Whether it may be executed.
    #[must_use]
    pub const fn is_executable(&self) -> bool {
        self.prot & libc::PROT_EXEC != 0
    }

    /// Whether it lives on no disk: shared memory does, and so do a few kinds
    /// of files that are of no use here.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.file.is_some_and(|file| file.device.0 == 0)
    }
}

/// The mappings of this process, in order of address.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn own_mappings() -> io::Result<Vec<Mapping>> {
    read("/proc/self/maps")
}

/// The mappings of a process, in order of address.
///
/// # Errors
/// When there is no such process, or it may not be looked at.
pub fn mappings_of(pid: u32) -> io::Result<Vec<Mapping>> {
    read(&format!("/proc/{pid}/maps"))
}

fn read(path: &str) -> io::Result<Vec<Mapping>> {
    let text = fs::read(path)?;
    let lines = text.split(|byte| *byte == b'\n');
    Ok(lines
        .filter_map(|line| parse(&String::from_utf8_lossy(line)))
        .collect())
}

/// Reads a line such as
/// `7f00-7f10 r-xp 00001000 fe:00 4242   /usr/lib/libx.so`.
fn parse(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let (head, tail) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = tail;
        head
    };
    let (start, end) = field().split_once('-')?;
    let modes = field().as_bytes();
    let offset = u64::from_str_radix(field(), 16).ok()?;
    let (major, minor) = field().split_once(':')?;
    let inode: u64 = field().parse().ok()?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let device = (hex(major)? as u32, hex(minor)? as u32);
    let bits = [
        (b'r', libc::PROT_READ),
        (b'w', libc::PROT_WRITE),
        (b'x', libc::PROT_EXEC),
    ];
    let set = bits.iter().zip(modes).filter(|(bit, mode)| bit.0 == **mode);
    Some(Mapping {
        range: AddrRange {
            start: VirtAddr(hex(start)?),
            end: VirtAddr(hex(end)?),
        },
        prot: set.map(|(bit, _)| bit.1).sum(),
        shared: modes.get(3) == Some(&b's'),
        offset: ObjectOffset(offset),
        file: (inode != 0).then_some(FileId { device, inode }),
        name: rest.trim_start().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let text = "7f0000200000-7f0000601000 r-xp 00400000 fe:0a 4242       /opt/a b (deleted)";
        let mapping = parse(text).unwrap();
        assert_eq!(mapping.range.start, VirtAddr(0x7f00_0020_0000));
        assert_eq!(mapping.prot, libc::PROT_READ | libc::PROT_EXEC);
        assert!(!mapping.shared && mapping.is_congruent() && mapping.is_read_only());
        let file = mapping.file.unwrap();
        assert_eq!((file.device, file.inode), ((0xfe, 10), 4242));
        assert_eq!(mapping.name, "/opt/a b (deleted)");
        assert!(!mapping.is_in_memory());

        let stack = parse("7ffc0000-7ffd0000 rw-p 00000000 00:00 0    [stack]").unwrap();
        assert_eq!((stack.file, stack.name.as_str()), (None, "[stack]"));
        let shared = parse("1000-2000 rw-s 00000000 00:01 7  /dev/zero (deleted)").unwrap();
        assert!(shared.shared && shared.is_in_memory() && !shared.is_congruent());
        assert_eq!(parse(""), None);
    }

    #[test]
    fn this_process_is_listed() {
        let here = VirtAddr(parse as *const () as u64);
        let all = own_mappings().unwrap();
        let text = all
            .iter()
            .find(|m| m.range.start <= here && here < m.range.end);
        assert!(text.is_some_and(|m| m.prot & libc::PROT_EXEC != 0 && m.file.is_some()));
    }
}
