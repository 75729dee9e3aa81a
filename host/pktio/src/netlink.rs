//! The little of rtnetlink(7) that is needed: attributes, and one question with one answer.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

/// Octets of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;
/// Set in the type of attributes that hold others, or a number in network order.
const FLAGS: u16 = 0xc000;
/// Octets of an answer at most.
const ANSWER: usize = 32 << 10;

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

/// Zero-terminated text.
pub(crate) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

/// An rtnetlink socket, in the calling thread's namespace, which hears of what these groups (`RTMGRP_*`) are told.
pub(crate) fn socket(flags: SocketFlags, groups: u32) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    // NETLINK_ROUTE is protocol 0.
    let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&fd, &SocketAddrNetlink::new(0, groups))?;
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
    send(fd, &message, SendFlags::empty())?;
    let mut reply = vec![0; ANSWER];
    let (n, _) = recv(fd, &mut reply[..], RecvFlags::empty())?;
    reply.truncate(n);
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let len = u32_at(&reply, 0).ok_or_else(bad)? as usize;
    let body = reply.get(HEADER..len).ok_or_else(bad)?;
    if u16_at(&reply, 4) == Some(libc::NLMSG_ERROR as u16) {
        let code = u32_at(body, 0).ok_or_else(bad)? as i32;
        return Err(io::Error::from_raw_os_error(code.saturating_neg()));
    }
    Ok(body.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pushed_is_read() {
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
