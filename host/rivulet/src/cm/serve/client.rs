//! One client of the daemon, and the calls that the daemon makes for a client that may not call
//! bpf(2).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libcm::abi::{BULK, Bulk, BulkFor, Op, Opening, OpeningFor};
use libcm::daemon::{LARGEST, Message, Welcome};
use rivulet_bpf::cm::{Calls, RING};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::peer::{self, Peer};

/// Number of calls of one client before other clients are served.
const TURN: usize = 16;

#[derive(Debug)]
pub(super) struct Client {
    pub peer: Peer,
    pub socket: Option<OwnedFd>,
    /// Whether the daemon calls the BPF programs for the client, because the client may not.
    proxied: bool,
}

impl Client {
    pub fn new(peer: Peer, socket: Option<OwnedFd>) -> Client {
        Client { peer, socket, proxied: false }
    }

    /// Sends the client its id and the descriptors that it needs.
    pub fn welcome(&self, id: u32, calls: &Calls, ring: BorrowedFd<'_>) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let [open, call, bulk] = calls.programs();
        Welcome { client: id, ring: RING }.send(socket.as_fd(), [open, call, bulk, ring])
    }

    /// Processes the client's requests; returns `false` if it has exited or sent something
    /// malformed.
    pub fn hear(&mut self, id: u32, calls: &Calls) -> bool {
        for _ in 0..TURN {
            let Some(socket) = &self.socket else { return true };
            let mut octets = [0; LARGEST + 1];
            match recv(socket, &mut octets, RecvFlags::DONTWAIT) {
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return true,
                Err(_) | Ok((_, 0)) => return false,
                Ok((_, got)) => {
                    let Some(answer) = self.answer(id, calls, octets.get(..got).unwrap_or_default()) else {
                        return false;
                    };
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    let Some(socket) = &self.socket else { return false };
                    if send(socket, &answer.bytes(), flags).is_err() {
                        return false;
                    }
                }
            }
        }
        true
    }

    fn answer(&mut self, id: u32, calls: &Calls, octets: &[u8]) -> Option<Message> {
        let message = Message::parse(octets)?;
        if !std::mem::replace(&mut self.proxied, true) {
            let Peer { pid, uid, .. } = self.peer;
            eprintln!("process {pid} of user {uid} may not call bpf(2): its calls go through this process");
        }
        match self.ask(id, calls, message) {
            Ok(answer) => Some(answer),
            Err(e) => {
                tracing::warn!(client = id, "its calls cannot be made: {e}");
                None
            }
        }
    }

    fn ask(&self, id: u32, calls: &Calls, message: Message) -> io::Result<Message> {
        let [open, call] = calls.programs_for_others();
        let uid = self.peer.uid;
        match message {
            Message::Open(opening) => {
                let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
                let netns = peer::netns(socket.as_fd())?;
                let opening = Opening { client: id, ..opening };
                let mut arguments = OpeningFor { uid, unused: 0, netns, opening };
                libcm::run(open, &mut arguments)?;
                Ok(Message::Open(arguments.opening))
            }
            Message::Call(mut ops) => {
                let count = ops.len().min(BULK);
                let mut arguments = BulkFor { uid, unused: 0, bulk: Bulk { ops: [Op::default(); BULK] } };
                arguments.bulk.ops[..count].copy_from_slice(&ops[..count]);
                libcm::run(call, &mut arguments)?;
                ops[..count].copy_from_slice(&arguments.bulk.ops[..count]);
                Ok(Message::Call(ops))
            }
        }
    }
}
