//! The parts of netlink(7) that this crate needs: attributes, and requests with their replies.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

/// Bytes of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;
/// Flags in the type of nested attributes and of values in network byte order.
const FLAGS: u16 = 0xc000;
/// Requests an acknowledgement.
pub(crate) const NLM_F_ACK: u16 = libc::NLM_F_ACK as u16;
/// Largest reply in bytes.
const ANSWER: usize = 32 << 10;

pub(crate) fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

pub(crate) fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(data.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

/// Type and value of each attribute in `data`; ends at the first damaged one.
pub(crate) fn attributes(data: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(data, at)?);
        let kind = u16_at(data, at + 2)? & !FLAGS;
        let value = data.get(at + ATTRIBUTE..at.checked_add(len)?)?;
        at += len.next_multiple_of(4);
        Some((kind, value))
    })
}

/// Appends an attribute to a request's body.
pub(crate) fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(((ATTRIBUTE + value.len()) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Text up to the first NUL.
pub(crate) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

/// An rtnetlink socket in the calling thread's namespace, subscribed to these groups (`RTMGRP_*`).
pub(crate) fn socket(flags: SocketFlags, groups: u32) -> io::Result<OwnedFd> {
    // NETLINK_ROUTE is protocol 0.
    open(None, flags, groups)
}

/// A socket of another netlink protocol, in the calling thread's namespace.
pub(crate) fn socket_of(protocol: Protocol) -> io::Result<OwnedFd> {
    open(Some(protocol), SocketFlags::empty(), 0)
}

fn open(protocol: Option<Protocol>, flags: SocketFlags, groups: u32) -> io::Result<OwnedFd> {
    let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags | SocketFlags::CLOEXEC, protocol)?;
    bind(&fd, &SocketAddrNetlink::new(0, groups))?;
    Ok(fd)
}

fn request(fd: &OwnedFd, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    let len = (HEADER + body.len()) as u32;
    let mut message = len.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16 | flags).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    send(fd, &message, SendFlags::empty())?;
    Ok(())
}

/// Result in the body of `NLMSG_ERROR`, which may be success.
fn outcome(body: &[u8]) -> io::Result<()> {
    match u32_at(body, 0).ok_or(io::ErrorKind::InvalidData)? as i32 {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
    }
}

/// Sends a request and returns the body of the first message of the reply.
pub(crate) fn ask(fd: &OwnedFd, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    ask_with(fd, kind, 0, body)
}

/// The same with additional flags (`NLM_F_*`).
pub(crate) fn ask_with(fd: &OwnedFd, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    request(fd, kind, flags, body)?;
    let mut reply = vec![0; ANSWER];
    let (n, _) = recv(fd, &mut reply[..], RecvFlags::empty())?;
    reply.truncate(n);
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let len = u32_at(&reply, 0).ok_or_else(bad)? as usize;
    let body = reply.get(HEADER..len).ok_or_else(bad)?;
    if u16_at(&reply, 4) == Some(libc::NLMSG_ERROR as u16) {
        return outcome(body).map(|()| Vec::new());
    }
    Ok(body.to_vec())
}

/// Sends a dump request and calls `take` with the body of each message of the reply.
pub(crate) fn dump(fd: &OwnedFd, kind: u16, body: &[u8], mut take: impl FnMut(&[u8])) -> io::Result<()> {
    request(fd, kind, libc::NLM_F_DUMP as u16, body)?;
    let mut reply = vec![0; ANSWER];
    loop {
        let (n, _) = recv(fd, &mut reply[..], RecvFlags::empty())?;
        let mut rest = &reply[..n];
        while let (Some(len), Some(kind)) = (u32_at(rest, 0), u16_at(rest, 4)) {
            let body = rest.get(HEADER..len as usize).ok_or(io::ErrorKind::InvalidData)?;
            match i32::from(kind) {
                // The end message may carry an error.
                libc::NLMSG_DONE if body.is_empty() => return Ok(()),
                libc::NLMSG_DONE | libc::NLMSG_ERROR => return outcome(body),
                _ => take(body),
            }
            rest = rest.get((len as usize).next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushed_attributes_are_read() {
        let mut body = Vec::new();
        push_attribute(&mut body, 5, &[1, 2, 3]);
        push_attribute(&mut body, FLAGS | 6, &[]);
        let read: Vec<(u16, &[u8])> = attributes(&body).collect();
        assert_eq!(read, [(5, &[1, 2, 3][..]), (6, &[])]);
    }

    #[test]
    fn broken_attributes_end_the_walk() {
        assert_eq!(attributes(&[]).count(), 0);
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[200, 0, 1, 0, 5]).count(), 0);
        assert_eq!(attributes(&[5, 0, 1, 0, 5]).next(), Some((1, &[5u8][..])));
    }
}
