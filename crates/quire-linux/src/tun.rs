//! Network devices whose other end is this process (TUN), in network namespaces of threads:
//! what machines need that are to be far from each other, on a kernel that delays nothing.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

const DEVICE: &str = "/dev/net/tun";
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
const IFF_TUN: u16 = 0x0001;
/// Packets come as they are, without a header of the device.
const IFF_NO_PI: u16 = 0x1000;
/// The most bytes of an interface's name, with the zero at its end.
const NAME: usize = 16;

#[repr(C)]
struct Request {
    name: [u8; NAME],
    flags: u16,
    rest: [u8; 22],
}

/// Makes a device in the namespace of this thread. Each read takes one IP packet out of it,
/// each write puts one in; neither blocks. The device goes when the file is closed.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`, `EBUSY` where there is such a device, `EINVAL` for a
/// name that is none, and where the kernel has no such devices.
pub fn open(name: &str) -> io::Result<File> {
    if name.is_empty() || name.len() >= NAME {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(DEVICE)?;
    let mut request = Request {
        name: [0; NAME],
        flags: IFF_TUN | IFF_NO_PI,
        rest: [0; 22],
    };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the argument is laid out as the `ifreq` that this ioctl takes, and lives.
    match unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Moves this thread, and what it will start, to a network namespace of its own. The file
/// keeps that namespace after the thread has ended.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`.
pub fn own_namespace() -> io::Result<File> {
    // SAFETY: the call changes which network this thread sees, and no memory.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => File::open("/proc/thread-self/ns/net"),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_device_is_in_the_namespace_of_its_thread() {
        let made = std::thread::spawn(|| {
            let namespace = own_namespace()?;
            open("quire0").map(|device| (namespace, device))
        });
        let (namespace, mut device) = match made.join().unwrap() {
            Ok(made) => made,
            Err(error) => return println!("SKIP: no namespace with a TUN device: {error}"),
        };
        // It is down, so that nothing comes, and reading does not block.
        assert!(device.read(&mut [0; 64]).is_err());
        assert!(!std::path::Path::new("/sys/class/net/quire0").exists());
        drop(namespace);
    }

    #[test]
    fn names_are_checked() {
        for name in ["", "a-name-that-is-too-long"] {
            let error = open(name).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
