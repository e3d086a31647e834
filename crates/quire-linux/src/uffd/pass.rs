//! Descriptors that are passed to another process: whoever has a process's userfaultfd
//! can answer its faults, and whoever has the file can map the same memory.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::raw::{Errno, Result};

/// The most descriptors that are passed at once.
pub const MOST: usize = 4;

/// Sends a few bytes, at least one, and descriptors with them over a Unix socket.
///
/// # Errors
/// As `sendmsg`; `EINVAL` where there are more than [`MOST`] descriptors, or no bytes.
pub fn send(to: BorrowedFd<'_>, text: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    if descriptors.len() > MOST || text.is_empty() {
        return Err(Errno(libc::EINVAL));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let data = [IoSlice::new(text)];
    let sent = rustix::net::sendmsg(to, &data, &mut control, SendFlags::NOSIGNAL)?;
    if sent < text.len() {
        return Err(Errno(libc::EMSGSIZE));
    }
    Ok(())
}

/// Receives bytes and the descriptors that came with them: how many bytes there are (none
/// at the end), and the descriptors.
///
/// # Errors
/// As `recvmsg`.
pub fn receive(from: BorrowedFd<'_>, text: &mut [u8]) -> Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [IoSliceMut::new(text)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(from, &mut data, &mut control, flags)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    Ok((received.bytes, descriptors))
}
