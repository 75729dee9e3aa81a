//! The TLS terminators of this host: their messages, and the connections that are handed to them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rivulet_bpf::trods::FlowKey;
use rivulet_pktio::repair::{Connection, RepairError, restore};

use crate::hold::{HoldError, Keeper, Watch};
use crate::record::{Record, Tuple};
use crate::terminator::{Door, Reply, Request};

/// The door, once it is open, and what came of adoptions.
#[derive(Debug, Default)]
pub(super) struct Terminators {
    door: Option<Door>,
    messages: Vec<Request>,
    /// The last wait found something to take.
    is_ready: bool,
    adopted: u64,
    refused: u64,
}

fn key(tuple: &Tuple) -> FlowKey {
    FlowKey::new(tuple.client, tuple.service)
}

impl Terminators {
    pub fn open(&mut self, door: Door) {
        self.door = Some(door);
    }

    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.door.iter().flat_map(Door::descriptors)
    }

    /// Whether one of the [descriptors](Self::descriptors) was readable after the last wait. Without this, each wake-up of
    /// the thread would cost a system call for each terminator, also where all traffic is plain HTTP.
    pub fn note_ready(&mut self, is_ready: bool) {
        self.is_ready = is_ready;
    }

    /// Connections that were handed to terminators, and those of them that no terminator could continue.
    pub fn counts(&self) -> (u64, u64) {
        (self.adopted, self.refused)
    }

    /// Carries out the terminators' messages and answers them. `closed` is whether a service holds what cannot be stored.
    pub fn turn<K: Keeper>(
        &mut self,
        closed: impl Fn(&SocketAddr) -> bool,
        watch: &mut Watch<K>,
    ) -> Result<(), HoldError> {
        let Some(door) = &mut self.door else { return Ok(()) };
        if std::mem::take(&mut self.is_ready) && door.take(watch.services().any(closed), &mut self.messages) {
            watch.set_terminated(door.ports());
        }
        for message in self.messages.drain(..) {
            match message {
                Request::Hello(_) => {}
                Request::Store(asked, record) => watch.submit(&key(&record.tuple), asked, *record)?,
                Request::Unprotected(tuple, reason) => watch.unprotect(&key(&tuple), reason)?,
                Request::End(tuple, at) => watch.end_at(&key(&tuple), at)?,
                Request::Reset(tuple) => {
                    self.refused += 1;
                    watch.reset(&key(&tuple))?;
                }
            }
        }
        for (key, asked, outcome) in watch.take_answers() {
            if !door.send(key.service().port(), &Reply::Stored(asked, outcome), None) {
                tracing::debug!(client = %key.client(), ?outcome, "no terminator takes the answer");
            }
        }
        Ok(())
    }

    /// Has the kernel take over a connection, in the calling thread's network namespace, and hands it to a terminator.
    /// `sent` is the end of the data that the client had sent, if it is known.
    pub fn adopt(
        &mut self,
        record: &Record,
        connection: &Connection,
        sent: Option<u32>,
    ) -> Result<(), RepairError> {
        let none = |step| RepairError { step, source: io::ErrorKind::NotConnected.into() };
        let door = self.door.as_ref().ok_or_else(|| none("no door for TLS terminators"))?;
        let port = record.tuple.service.port();
        if !door.ports().contains(&port) {
            return Err(none("no TLS terminator is attached"));
        }
        let socket = restore(connection, None)?;
        let (client, service) =
            (record.handshake.client_isn.wrapping_add(1), record.handshake.service_isn.wrapping_add(1));
        let (response_at, request_at) =
            (record.response_at.wrapping_sub(service), record.request_at.wrapping_sub(client));
        let reply = Reply::Adopt {
            record: Box::new(Record { response_at, request_at, ..record.clone() }),
            acked: connection.send_next.wrapping_sub(service),
            sent: sent.map(|sent| sent.wrapping_sub(client)),
        };
        if !door.send(port, &reply, Some(socket.as_fd())) {
            return Err(none("the TLS terminator takes no connection"));
        }
        self.adopted += 1;
        Ok(())
    }
}
