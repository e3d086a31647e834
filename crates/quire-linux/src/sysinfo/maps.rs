//! The mappings of a process, as the kernel lists them in `/proc/PID/maps`: the
//! only list that also knows what the loader and the C library map by system
//! calls of their own.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::fd::{BorrowedFd, OwnedFd};

use quire_core::units::{AddrRange, Bytes, ObjectOffset, SUPERPAGE, VirtAddr};

use rustix::fs::{Mode, OFlags};

use crate::raw::Errno;

/// What names a file: its device and its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Major and minor number of the device.
    pub device: (u32, u32),
    /// Number of the inode.
    pub inode: u64,
}

impl FileId {
    /// What names a file that is open.
    ///
    /// # Errors
    /// As `fstat`.
    pub fn of(file: BorrowedFd<'_>) -> Result<FileId, Errno> {
        let status = rustix::fs::fstat(file)?;
        Ok(FileId {
            device: (
                rustix::fs::major(status.st_dev),
                rustix::fs::minor(status.st_dev),
            ),
            inode: status.st_ino,
        })
    }
}

/// What a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Private memory of the program: anonymous mappings, heap and stacks.
    Anonymous,
    /// Shared memory without a file: `memfd`, System V, POSIX, shared anonymous
    /// mappings.
    Shared,
    /// Files, devices, hugetlb pages, and what the kernel provides.
    Other,
}

/// One mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// What it is, by the name that the kernel gives it.
    #[must_use]
    pub fn kind(&self, name: &str) -> Kind {
        const SHARED: [&str; 5] = [
            "/memfd:",
            "/dev/zero (deleted)",
            "/SYSV",
            "/dev/shm/",
            "[anon_shmem:",
        ];
        let named = |prefixes: &[&str]| prefixes.iter().any(|p| name.starts_with(p));
        match self.shared {
            false if name.is_empty() || named(&["[heap]", "[stack", "[anon:"]) => Kind::Anonymous,
            true if named(&SHARED) => Kind::Shared,
            _ => Kind::Other,
        }
    }

    /// Whether it lives on no disk: shared memory does, and so do a few kinds
    /// of files that are of no use here.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.file.is_some_and(|file| file.device.0 == 0)
    }
}

/// The list of this process, read without the C library.
struct Own(OwnedFd);

impl Own {
    fn open(path: &CStr) -> io::Result<Own> {
        let how = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Own(rustix::fs::open(path, how, Mode::empty())?))
    }
}

impl Read for Own {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, to)?)
    }
}

/// Room for reading the list, made once: where a process has all the mappings
/// that the kernel allows, none can be made for it any more.
#[derive(Debug)]
pub struct Reader(Vec<u8>);

/// The longest line, with room for a path.
const BUFFER: usize = 32 << 10;

impl Default for Reader {
    fn default() -> Reader {
        Reader(vec![0; BUFFER])
    }
}

impl Reader {
    /// Calls `found` with each mapping of this process and its name, in order of
    /// address, until it breaks off. The name is a path, a word in brackets, or
    /// empty.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn own(&mut self, found: impl FnMut(Mapping, &str) -> ControlFlow<()>) -> io::Result<()> {
        self.read(Own::open(c"/proc/self/maps")?, found)
    }

    /// Calls `found` with each mapping of this process of which some is on superpages, and how much of it.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn own_superpages(&mut self, mut found: impl FnMut(AddrRange, Bytes)) -> io::Result<()> {
        let mut mapping = AddrRange::default();
        self.read_lines(Own::open(c"/proc/self/smaps")?, |line| {
            if let Some(kib) = line.strip_prefix("AnonHugePages:") {
                let kib = kib
                    .trim()
                    .strip_suffix(" kB")
                    .and_then(|kib| kib.parse::<u64>().ok());
                if let Some(kib) = kib.filter(|kib| *kib > 0) {
                    found(mapping, Bytes(kib << 10));
                }
            } else if let Some((range, _)) = parse(line) {
                mapping = range.range;
            }
            ControlFlow::Continue(())
        })
    }

    /// The same for another process.
    ///
    /// # Errors
    /// When there is no such process, or it may not be looked at.
    pub fn of(
        &mut self,
        pid: u32,
        found: impl FnMut(Mapping, &str) -> ControlFlow<()>,
    ) -> io::Result<()> {
        self.read(File::open(format!("/proc/{pid}/maps"))?, found)
    }

    fn read(
        &mut self,
        list: impl Read,
        mut found: impl FnMut(Mapping, &str) -> ControlFlow<()>,
    ) -> io::Result<()> {
        self.read_lines(list, |line| match parse(line) {
            Some((mapping, name)) => found(mapping, name),
            None => ControlFlow::Continue(()),
        })
    }

    fn read_lines(
        &mut self,
        mut list: impl Read,
        mut found: impl FnMut(&str) -> ControlFlow<()>,
    ) -> io::Result<()> {
        let mut held = 0;
        loop {
            let read = list.read(&mut self.0[held..])?;
            held += read;
            let mut done = 0;
            while let Some(len) = self.0[done..held].iter().position(|b| *b == b'\n') {
                let line = &self.0[done..done + len];
                done += len + 1;
                let line = std::str::from_utf8(line).unwrap_or_else(|error| {
                    // A path may be in any encoding; what comes before it is not.
                    std::str::from_utf8(&line[..error.valid_up_to()]).unwrap_or_default()
                });
                if found(line).is_break() {
                    return Ok(());
                }
            }
            if read == 0 {
                return Ok(());
            }
            self.0.copy_within(done..held, 0);
            held -= done;
            if held == self.0.len() {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }
}

/// Reads a line such as
/// `7f00-7f10 r-xp 00001000 fe:00 4242   /usr/lib/libx.so`.
fn parse(line: &str) -> Option<(Mapping, &str)> {
    let mut rest = line;
    let mut field = || {
        let (head, tail) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = tail;
        head
    };
    let range = parse_range(field())?;
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
    let mapping = Mapping {
        range,
        prot: set.map(|(bit, _)| bit.1).sum(),
        shared: modes.get(3) == Some(&b's'),
        offset: ObjectOffset(offset),
        file: (inode != 0).then_some(FileId { device, inode }),
    };
    Some((mapping, rest.trim_start()))
}

/// Reads `START-END`.
pub(super) fn parse_range(text: &str) -> Option<AddrRange> {
    let (start, end) = text.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok().map(VirtAddr);
    Some(AddrRange {
        start: address(start)?,
        end: address(end)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_told_apart() {
        let kind = |line| parse(line).map(|(mapping, name)| mapping.kind(name));
        let anonymous = [
            "7f00-8000 rw-p 00000000 00:00 0 ",
            "7f00-8000 rw-p 00000000 00:00 0",
            "7f00-8000 rw-p 00000000 00:00 0                          [heap]",
            "7f00-8000 rw-p 00000000 00:00 0                          [stack]",
            "7f00-8000 rw-p 00000000 00:00 0          [anon:Go: heap]",
        ];
        for line in anonymous {
            assert_eq!(kind(line), Some(Kind::Anonymous), "{line}");
        }
        let shared = [
            "7f00-8000 rw-s 00000000 00:01 1026   /memfd:x (deleted)",
            "7f00-8000 rw-s 00000000 00:01 4  /dev/zero (deleted)",
            "7f00-8000 rw-s 00000000 00:01 5 /SYSV00000000 (deleted)",
        ];
        for line in shared {
            assert_eq!(kind(line), Some(Kind::Shared), "{line}");
        }
        let other = [
            "7f00-8000 rw-p 00000000 fe:00 77   /usr/bin/x y",
            "7f00-8000 rw-s 00000000 00:0f 5 /anon_hugepage (deleted)",
            "7f00-8000 rw-p 00000000 00:0f 5 /anon_hugepage (deleted)",
            "7f00-8000 rw-s 00000000 00:05 99 /dev/nvidia0",
            "7f00-8000 rw-p 00000000 00:01 9 /memfd:private (deleted)",
            "7f00-8000 r--p 00000000 00:00 0 [vvar]",
            "7f00-8000 r-xp 00000000 00:00 0 [vdso]",
        ];
        for line in other {
            assert_eq!(kind(line), Some(Kind::Other), "{line}");
        }
        assert_eq!(kind("nonsense"), None);
    }

    #[test]
    fn lines_are_read() {
        let text = "7f0000200000-7f0000601000 r-xp 00400000 fe:0a 4242       /opt/a b (deleted)";
        let (mapping, name) = parse(text).unwrap();
        assert_eq!(mapping.range.start, VirtAddr(0x7f00_0020_0000));
        assert_eq!(mapping.prot, libc::PROT_READ | libc::PROT_EXEC);
        assert!(!mapping.shared && mapping.is_congruent() && mapping.is_read_only());
        let file = mapping.file.unwrap();
        assert_eq!((file.device, file.inode), ((0xfe, 10), 4242));
        assert_eq!(name, "/opt/a b (deleted)");
        assert!(!mapping.is_in_memory() && mapping.is_executable());

        let (stack, name) = parse("7ffc0000-7ffd0000 rw-p 00000000 00:00 0    [stack]").unwrap();
        assert_eq!((stack.file, name), (None, "[stack]"));
        let (shared, _) = parse("1000-2000 rw-s 00000000 00:01 7  /dev/zero (deleted)").unwrap();
        assert!(shared.shared && shared.is_in_memory() && !shared.is_congruent());
        assert_eq!(parse(""), None);
    }

    /// Gives a few bytes at a time.
    struct Slowly<'a>(&'a [u8], usize);

    impl Read for Slowly<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let now = self.1.min(self.0.len()).min(to.len());
            to[..now].copy_from_slice(&self.0[..now]);
            self.0 = &self.0[now..];
            Ok(now)
        }
    }

    #[test]
    fn no_line_is_lost_between_reads() {
        let line = |n: u64| {
            format!(
                "{:x}-{:x} rw-p 0 00:00 0 \u{e4}{n}\n",
                n << 12,
                (n + 1) << 12
            )
        };
        let text: String = (0..4000).map(line).collect();
        for step in [1, 7, 4096, 1 << 20] {
            let mut names = Vec::new();
            let list = Slowly(text.as_bytes(), step);
            let seen = Reader::default().read(list, |mapping, name| {
                assert_eq!(name, format!("\u{e4}{}", mapping.range.start.0 >> 12));
                names.push(mapping.range.start);
                ControlFlow::Continue(())
            });
            assert!(seen.is_ok());
            assert_eq!(names.len(), 4000);
        }
        let long = "x".repeat(2 * BUFFER);
        let refused = Reader::default().read(long.as_bytes(), |_, _| ControlFlow::Continue(()));
        assert!(refused.is_err());
    }

    #[test]
    fn this_process_is_listed() {
        let here = VirtAddr(parse as *const () as u64);
        let mut text = None;
        Reader::default()
            .own(|m, _| {
                if m.range.start <= here && here < m.range.end {
                    text = Some(m);
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(text.is_some_and(|m| m.is_executable() && m.file.is_some()));
    }
}
