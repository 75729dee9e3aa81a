//! Change events of interfaces from rtnetlink, for programs with many interfaces.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, recv};

use crate::netlink::{HEADER, attributes, socket, text, u16_at, u32_at};
use crate::{OpenError, in_netns};

/// An event of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The interface was created, renamed, went up or down, or its MTU changed: its state now.
    Changed {
        /// Its name.
        name: String,
        /// Kernel index.
        index: u32,
        /// Whether it is administratively up with carrier.
        up: bool,
        /// MTU in bytes; 0 if the message lacks it.
        mtu: u32,
    },
    /// Deleted or moved to another namespace.
    Removed {
        /// Its former name.
        name: String,
        /// Its former index.
        index: u32,
    },
    /// The kernel dropped events: query every interface again.
    Missed,
}

/// A socket with the events of all interfaces of a namespace. Poll it; it does not block.
#[derive(Debug)]
pub struct LinkMonitor {
    fd: OwnedFd,
    buffer: Box<[u8]>,
    /// Start of the next message, and end of the datagram.
    next: usize,
    end: usize,
}

const BUFFER: usize = 32 << 10;
const IFINFO: usize = 16;

impl LinkMonitor {
    /// Subscribes in `netns`, or in the namespace of the calling thread.
    pub fn open(netns: Option<&str>) -> Result<Self, OpenError> {
        let fd = in_netns(netns, || socket(SocketFlags::NONBLOCK, libc::RTMGRP_LINK as u32))?.map_err(
            |source| OpenError::Os {
                interface: netns.unwrap_or("this namespace").into(),
                operation: "rtnetlink",
                source,
            },
        )?;
        Ok(LinkMonitor { fd, buffer: vec![0; BUFFER].into(), next: 0, end: 0 })
    }

    /// Returns the next event, `None` if none waits.
    pub fn next_event(&mut self) -> io::Result<Option<LinkEvent>> {
        loop {
            while self.next < self.end {
                let (event, len) = parse(&self.buffer[self.next..self.end]);
                self.next += len;
                if event.is_some() {
                    return Ok(event);
                }
            }
            let n = match recv(&self.fd, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((n, _)) => n,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(Errno::NOBUFS) => return Ok(Some(LinkEvent::Missed)),
                Err(e) => return Err(e.into()),
            };
            (self.next, self.end) = (0, n);
        }
    }
}

impl AsFd for LinkMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The event in the first message of `data`, if it is one, and the message's length.
fn parse(data: &[u8]) -> (Option<LinkEvent>, usize) {
    let Some(len) = u32_at(data, 0).map(|l| l as usize).filter(|l| (HEADER..=data.len()).contains(l)) else {
        return (None, data.len());
    };
    let event = u16_at(data, 4).and_then(|kind| link_event(kind, &data[HEADER..len]));
    (event, len.next_multiple_of(4).min(data.len()))
}

/// `struct ifinfomsg` and its attributes (rtnetlink(7)).
fn link_event(kind: u16, body: &[u8]) -> Option<LinkEvent> {
    let index = u32_at(body, 4)?;
    let flags = u32_at(body, 8)?;
    let (mut name, mut mtu) = (None, 0);
    for (attribute, value) in attributes(body.get(IFINFO..)?) {
        match attribute {
            libc::IFLA_IFNAME => name = Some(text(value)),
            libc::IFLA_MTU => mtu = u32_at(value, 0).unwrap_or(0),
            _ => {}
        }
    }
    let name = name?;
    match kind {
        libc::RTM_NEWLINK => {
            let both = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
            Some(LinkEvent::Changed { name, index, up: flags & both == both, mtu })
        }
        libc::RTM_DELLINK => Some(LinkEvent::Removed { name, index }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_messages_end_and_do_not_panic() {
        let mut message = vec![0; 64];
        message[0] = 64;
        message[4] = libc::RTM_NEWLINK as u8;
        message[32..36].copy_from_slice(&[8, 0, libc::IFLA_IFNAME as u8, 0]);
        message[36..38].copy_from_slice(b"va");
        let changed = LinkEvent::Changed { name: "va".into(), index: 0, up: false, mtu: 0 };
        assert_eq!(parse(&message), (Some(changed), 64));
        for at in 0..message.len() {
            for value in [0, 1, 3, 0x7f, 0xff] {
                let mut damaged = message.clone();
                damaged[at] = value;
                for len in 0..=damaged.len() {
                    let (_, next) = parse(&damaged[..len]);
                    assert!(next > 0 || len == 0, "no progress");
                }
            }
        }
    }
}
