//! The little of rtnetlink(7) that is needed: attributes, and one question with one answer.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Octets of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;
/// Set in the type of attributes that hold others.
const NESTED: u16 = 0x8000;

pub(crate) fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

pub(crate) fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(data.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

/// Type and value of each attribute in `data`; ends at the first that is damaged.
pub(crate) fn attributes(data: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(data, at)?);
        let kind = u16_at(data, at + 2)? & !NESTED;
        let value = data.get(at + ATTRIBUTE..at.checked_add(len)?)?;
        at += len.next_multiple_of(4);
        Some((kind, value))
    })
}

/// Zero-terminated text.
pub(crate) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

/// An rtnetlink socket, in the calling thread's namespace.
pub(crate) fn socket(flags: libc::c_int, groups: u32) -> io::Result<OwnedFd> {
    // SAFETY: plain system call.
    let fd = unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC | flags, libc::NETLINK_ROUTE)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zero is a valid sockaddr_nl.
    let mut addr: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    addr.nl_family = libc::AF_NETLINK as u16;
    addr.nl_groups = groups;
    let len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: the address is whole and lives through the call.
    if unsafe { libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

/// Sends a request with this body and returns the body of the first message of the answer.
pub(crate) fn ask(fd: &OwnedFd, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    let len = (HEADER + body.len()) as u32;
    let mut message = len.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    // SAFETY: the message is readable for its length.
    let sent = unsafe { libc::send(fd.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut reply = vec![0; 32 << 10];
    // SAFETY: the buffer is writable for its length.
    let n = unsafe { libc::recv(fd.as_raw_fd(), reply.as_mut_ptr().cast(), reply.len(), 0) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    reply.truncate(n as usize);
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let len = u32_at(&reply, 0).ok_or_else(bad)? as usize;
    let body = reply.get(HEADER..len).ok_or_else(bad)?;
    if u16_at(&reply, 4) == Some(libc::NLMSG_ERROR as u16) {
        let code = u32_at(body, 0).ok_or_else(bad)? as i32;
        return Err(io::Error::from_raw_os_error(code.saturating_neg()));
    }
    Ok(body.to_vec())
}
