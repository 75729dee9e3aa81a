//! What a client and the door (`rivulet cm serve`) say to each other, over a Unix socket of sequenced packets.
//!
//! The door speaks first: [`Welcome`], and with it the descriptors of three programs and of the ring. That is all, where the
//! client may call bpf(2); the connection says by its end that the client is gone. Where it may not it sends [`Message`]s, each of
//! which the door answers by the same with results.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, recvmsg, send,
    sendmsg, socket_with, sockopt,
};

use crate::abi::{BULK, Op, Opening, Plain};
use crate::run::{Calls, Descriptors};

/// Of this protocol and of what the programs are called with; another one is refused.
pub const VERSION: u32 = 1;
/// Where the door is, unless it was told otherwise.
pub const SOCKET: &str = "/run/rivulet-cm/cm.sock";
/// Descriptors of a welcome.
pub const DESCRIPTORS: usize = 4;
/// Octets of the largest message.
pub const LARGEST: usize = HEADER + BULK * size_of::<Op>();
const MAGIC: u32 = 0x636d_4472;
const HEADER: usize = 4;
const OPEN: u32 = 1;
const CALL: u32 = 2;
/// A daemon that does not answer for so long is not there.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the door says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Number of the client.
    pub client: u32,
    /// Octets of its ring.
    pub ring: u32,
}

impl Welcome {
    const OCTETS: usize = 16;

    fn octets(self) -> [u8; Self::OCTETS] {
        let mut octets = [0; Self::OCTETS];
        for (to, word) in
            octets.as_chunks_mut::<4>().0.iter_mut().zip([MAGIC, VERSION, self.client, self.ring])
        {
            *to = word.to_ne_bytes();
        }
        octets
    }

    fn parse(octets: &[u8]) -> io::Result<Welcome> {
        let words: Vec<u32> = octets.as_chunks::<4>().0.iter().map(|o| u32::from_ne_bytes(*o)).collect();
        match words[..] {
            [MAGIC, VERSION, client, ring] => Ok(Welcome { client, ring }),
            [MAGIC, version, ..] => {
                let why = format!("the daemon speaks version {version}, this program {VERSION}");
                Err(io::Error::new(io::ErrorKind::Unsupported, why))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "no daemon of the Congestion Manager")),
        }
    }

    /// Says it, with descriptors of `cm_open`, `cm_call`, `cm_calls` and the ring.
    ///
    /// # Errors
    /// The system's.
    pub fn send(self, socket: BorrowedFd<'_>, descriptors: [BorrowedFd<'_>; DESCRIPTORS]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let octets = self.octets();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(socket, &[IoSlice::new(&octets)], &mut ancillary, flags)?;
        Ok(())
    }
}

/// Calls that a client cannot make by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// To open a flow.
    Open(Opening),
    /// Operations; at most [`BULK`].
    Call(Vec<Op>),
}

impl Message {
    /// As it is sent.
    #[must_use]
    pub fn octets(&self) -> Vec<u8> {
        match self {
            Message::Open(opening) => [&OPEN.to_ne_bytes(), opening.octets()].concat(),
            Message::Call(ops) => {
                let mut octets = CALL.to_ne_bytes().to_vec();
                ops.iter().for_each(|op| octets.extend_from_slice(op.octets()));
                octets
            }
        }
    }

    /// From what came; none if it is no message.
    #[must_use]
    pub fn parse(octets: &[u8]) -> Option<Message> {
        let (kind, rest) = octets.split_first_chunk()?;
        match u32::from_ne_bytes(*kind) {
            OPEN if rest.len() == size_of::<Opening>() => {
                let mut opening = Opening::default();
                opening.octets_mut().copy_from_slice(rest);
                Some(Message::Open(opening))
            }
            CALL => {
                let ops = rest.chunks_exact(size_of::<Op>());
                if !ops.remainder().is_empty() || !(1..=BULK).contains(&ops.len()) {
                    return None;
                }
                let copy = |octets: &[u8]| {
                    let mut op = Op::default();
                    op.octets_mut().copy_from_slice(octets);
                    op
                };
                Some(Message::Call(ops.map(copy).collect()))
            }
            _ => None,
        }
    }
}

/// What a client got.
#[derive(Debug)]
pub(crate) struct Admission {
    pub socket: OwnedFd,
    pub welcome: Welcome,
    pub programs: Descriptors,
    pub ring: OwnedFd,
}

/// Goes to the door.
pub(crate) fn enter(path: &Path) -> io::Result<Admission> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let mut octets = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(&socket, &mut [IoSliceMut::new(&mut octets)], &mut ancillary, flags)?;
    let mut passed = vec![];
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            passed.extend(descriptors);
        }
    }
    if got.bytes == 0 {
        let why = "the daemon let nobody in: it said why";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let welcome = Welcome::parse(&octets[..got.bytes])?;
    let Ok([open, call, calls, ring]) = <[OwnedFd; DESCRIPTORS]>::try_from(passed) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the daemon passed other descriptors"));
    };
    Ok(Admission { socket, welcome, programs: Descriptors { open, call, calls }, ring })
}

/// Calls through the door.
#[derive(Debug)]
pub(crate) struct Proxied(pub OwnedFd);

impl Proxied {
    fn ask(&self, message: &Message) -> io::Result<Message> {
        send(self.0.as_fd(), &message.octets(), SendFlags::NOSIGNAL)?;
        let mut octets = [0; LARGEST];
        let (_, got) = recv(self.0.as_fd(), &mut octets, RecvFlags::empty())?;
        let gone = || io::Error::new(io::ErrorKind::ConnectionAborted, "the daemon is gone");
        Message::parse(&octets[..got]).ok_or_else(gone)
    }
}

impl Calls for Proxied {
    fn open(&mut self, opening: &mut Opening) -> io::Result<()> {
        if let Message::Open(done) = self.ask(&Message::Open(*opening))? {
            *opening = done;
        }
        Ok(())
    }

    fn call(&mut self, ops: &mut [Op]) -> io::Result<()> {
        let count = ops.len().min(BULK);
        match self.ask(&Message::Call(ops[..count].to_vec()))? {
            Message::Call(done) if done.len() == count => ops[..count].copy_from_slice(&done),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer to something else")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Operation;

    #[test]
    fn messages_are_what_was_sent_and_nothing_else_is_one() {
        let op = Op::new(7, Operation::Update, [1, 2, 3, 4]);
        for message in [
            Message::Open(Opening { client: 3, mtu: 1472, ..Opening::default() }),
            Message::Call(vec![op]),
            Message::Call(vec![op; BULK]),
        ] {
            let octets = message.octets();
            assert!(octets.len() <= LARGEST);
            assert_eq!(Message::parse(&octets), Some(message));
            for cut in 0..octets.len().min(200) {
                let cut = Message::parse(&octets[..cut]);
                assert!(cut.is_none_or(|m| matches!(m, Message::Call(ops) if ops.len() < BULK)));
            }
        }
        assert_eq!(Message::parse(&Message::Call(vec![]).octets()), None);
        assert_eq!(Message::parse(&Message::Call(vec![op; BULK + 1]).octets()), None);
        assert_eq!(Message::parse(&[9, 0, 0, 0, 1, 2]), None);
    }

    #[test]
    fn a_welcome_of_another_version_is_refused_with_both() {
        let welcome = Welcome { client: 5, ring: 65_536 };
        assert_eq!(Welcome::parse(&welcome.octets()).unwrap(), welcome);
        let mut other = welcome.octets();
        other[4] = 9;
        let text = Welcome::parse(&other).unwrap_err().to_string();
        assert!(text.contains("version 9"), "{text}");
        assert!(Welcome::parse(b"GET / HTTP/1.1\r\n").is_err());
    }
}
