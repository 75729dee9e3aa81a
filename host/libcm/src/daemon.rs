//! The protocol between a client and the daemon (`rivulet cm serve`), over a Unix socket of type
//! SOCK_SEQPACKET.
//!
//! The daemon first sends a [`Welcome`] with the descriptors of three kernel programs and of the
//! event ring. A client that may call bpf(2) then only keeps the connection open: closing it ends
//! the client. Any other client sends [`Message`]s, and the daemon returns each of them with its
//! results.

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

/// Version of this protocol and of the kernel programs' arguments; both ends must have the same
/// one.
pub const VERSION: u32 = 1;
/// Default socket of the daemon.
pub const SOCKET: &str = "/run/rivulet-cm/cm.sock";
/// Number of descriptors sent with a welcome.
pub const DESCRIPTORS: usize = 4;
/// Bytes of the largest message.
pub const LARGEST: usize = HEADER + BULK * size_of::<Op>();
const MAGIC: u32 = 0x636d_4472;
const HEADER: usize = 4;
const OPEN: u32 = 1;
const CALL: u32 = 2;
/// Timeout of the daemon's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// First message of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Number of the client.
    pub client: u32,
    /// Bytes of the client's event ring.
    pub ring: u32,
}

impl Welcome {
    const BYTES: usize = 16;

    fn bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (to, word) in
            bytes.as_chunks_mut::<4>().0.iter_mut().zip([MAGIC, VERSION, self.client, self.ring])
        {
            *to = word.to_ne_bytes();
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> io::Result<Welcome> {
        let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|o| u32::from_ne_bytes(*o)).collect();
        match words[..] {
            [MAGIC, VERSION, client, ring] => Ok(Welcome { client, ring }),
            [MAGIC, version, ..] => {
                let why = format!("the daemon has version {version}, this program {VERSION}");
                Err(io::Error::new(io::ErrorKind::Unsupported, why))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "not a daemon of the Congestion Manager")),
        }
    }

    /// Sends the message with the descriptors of `cm_open`, `cm_call`, `cm_calls` and the ring.
    ///
    /// # Errors
    /// The socket's error.
    pub fn send(self, socket: BorrowedFd<'_>, descriptors: [BorrowedFd<'_>; DESCRIPTORS]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let bytes = self.bytes();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags)?;
        Ok(())
    }
}

/// Calls that a client cannot make itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// To open a flow.
    Open(Opening),
    /// Operations; at most [`BULK`].
    Call(Vec<Op>),
}

impl Message {
    /// Encodes the message.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Message::Open(opening) => [&OPEN.to_ne_bytes(), opening.bytes()].concat(),
            Message::Call(ops) => {
                let mut bytes = CALL.to_ne_bytes().to_vec();
                ops.iter().for_each(|op| bytes.extend_from_slice(op.bytes()));
                bytes
            }
        }
    }

    /// Decodes a message; `None` if it is malformed.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Message> {
        let (kind, rest) = bytes.split_first_chunk()?;
        match u32::from_ne_bytes(*kind) {
            OPEN if rest.len() == size_of::<Opening>() => {
                let mut opening = Opening::default();
                opening.bytes_mut().copy_from_slice(rest);
                Some(Message::Open(opening))
            }
            CALL => {
                let ops = rest.chunks_exact(size_of::<Op>());
                if !ops.remainder().is_empty() || !(1..=BULK).contains(&ops.len()) {
                    return None;
                }
                let copy = |bytes: &[u8]| {
                    let mut op = Op::default();
                    op.bytes_mut().copy_from_slice(bytes);
                    op
                };
                Some(Message::Call(ops.map(copy).collect()))
            }
            _ => None,
        }
    }
}

/// Everything that the daemon hands to a client.
#[derive(Debug)]
pub(crate) struct Admission {
    pub socket: OwnedFd,
    pub welcome: Welcome,
    pub programs: Descriptors,
    pub ring: OwnedFd,
}

/// Connects to the daemon.
pub(crate) fn enter(path: &Path) -> io::Result<Admission> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let mut bytes = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
    let mut passed = vec![];
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            passed.extend(descriptors);
        }
    }
    if got.bytes == 0 {
        let why = "the daemon refused this client; its log has the reason";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let welcome = Welcome::parse(&bytes[..got.bytes])?;
    let Ok([open, call, calls, ring]) = <[OwnedFd; DESCRIPTORS]>::try_from(passed) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the daemon passed a wrong number of descriptors",
        ));
    };
    Ok(Admission { socket, welcome, programs: Descriptors { open, call, calls }, ring })
}

/// Calls that go through the daemon.
#[derive(Debug)]
pub(crate) struct Proxied(pub OwnedFd);

impl Proxied {
    fn ask(&self, message: &Message) -> io::Result<Message> {
        send(self.0.as_fd(), &message.bytes(), SendFlags::NOSIGNAL)?;
        let mut bytes = [0; LARGEST];
        let (_, got) = recv(self.0.as_fd(), &mut bytes, RecvFlags::empty())?;
        let gone = || io::Error::new(io::ErrorKind::ConnectionAborted, "the daemon has ended");
        Message::parse(&bytes[..got]).ok_or_else(gone)
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
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "the daemon answered another call")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Operation;

    #[test]
    fn messages_round_trip_and_malformed_ones_are_refused() {
        let op = Op::new(7, Operation::Update, [1, 2, 3, 4]);
        for message in [
            Message::Open(Opening { client: 3, mtu: 1472, ..Opening::default() }),
            Message::Call(vec![op]),
            Message::Call(vec![op; BULK]),
        ] {
            let bytes = message.bytes();
            assert!(bytes.len() <= LARGEST);
            assert_eq!(Message::parse(&bytes), Some(message));
            for cut in 0..bytes.len().min(200) {
                let cut = Message::parse(&bytes[..cut]);
                assert!(cut.is_none_or(|m| matches!(m, Message::Call(ops) if ops.len() < BULK)));
            }
        }
        assert_eq!(Message::parse(&Message::Call(vec![]).bytes()), None);
        assert_eq!(Message::parse(&Message::Call(vec![op; BULK + 1]).bytes()), None);
        assert_eq!(Message::parse(&[9, 0, 0, 0, 1, 2]), None);
    }

    #[test]
    fn a_welcome_of_another_version_is_refused_with_both() {
        let welcome = Welcome { client: 5, ring: 65_536 };
        assert_eq!(Welcome::parse(&welcome.bytes()).unwrap(), welcome);
        let mut other = welcome.bytes();
        other[4] = 9;
        let text = Welcome::parse(&other).unwrap_err().to_string();
        assert!(text.contains("version 9"), "{text}");
        assert!(Welcome::parse(b"GET / HTTP/1.1\r\n").is_err());
    }
}
