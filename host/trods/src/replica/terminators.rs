//! The TLS terminators of this host: their messages, and the connections that are handed to them.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rivulet_bpf::trods::FlowKey;
use rivulet_pktio::repair::{Connection, RepairError, restore};

use crate::flow::{Asked, StoreOutcome};
use crate::hold::{HoldError, Keeper, Rescue, Watch};
use crate::record::{Record, Tuple};
use crate::terminator::{Door, Reply, Request};

/// Connections that wait to be registered again: more than a terminator serves.
const MAX_REGISTRATIONS: usize = 65_536;
/// Number of the first record that a terminator stores of a connection.
const FIRST_TICKET: u64 = 1;
/// Connections that are registered before other work has its turn.
const REGISTERED_AT_ONCE: usize = 256;
/// Time after which a connection of a service that this agent does not protect is unprotected.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection that an earlier process of the agent watched.
#[derive(Debug)]
struct Registration {
    asked: Asked,
    record: Box<Record>,
    is_adopted: bool,
    since: Instant,
}

/// The door, once it is open, and what came of adoptions.
#[derive(Debug, Default)]
pub(super) struct Terminators {
    door: Option<Door>,
    messages: Vec<Request>,
    /// They wait until this replica may send, and so knows which connections others have adopted.
    registrations: HashMap<FlowKey, Registration>,
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
        let mut unwatched = Vec::new();
        for message in self.messages.drain(..) {
            match message {
                Request::Hello(_) => {}
                Request::Store(asked, record) => watch.submit(&key(&record.tuple), asked, *record)?,
                Request::Register { asked, record, is_adopted } => {
                    let key = key(&record.tuple);
                    if self.registrations.len() < MAX_REGISTRATIONS {
                        let since = Instant::now();
                        self.registrations.insert(key, Registration { asked, record, is_adopted, since });
                    } else {
                        unwatched.push((key, asked, StoreOutcome::Unwatched));
                    }
                }
                Request::Unprotected(tuple, reason) => {
                    self.registrations.remove(&key(&tuple));
                    watch.unprotect(&key(&tuple), reason)?;
                }
                Request::End(tuple, at) => {
                    self.registrations.remove(&key(&tuple));
                    watch.end_at(&key(&tuple), at)?;
                }
                Request::Reset(tuple) => {
                    self.refused += 1;
                    self.registrations.remove(&key(&tuple));
                    watch.reset(&key(&tuple))?;
                }
            }
        }
        for (key, asked, outcome) in watch.take_answers().into_iter().chain(unwatched) {
            let identity = watch.identity(&key).filter(|_| asked.ticket == FIRST_TICKET);
            if outcome == StoreOutcome::Kept
                && let Some((handshake, version)) = identity
            {
                let watched = Reply::Watched { connection: asked.connection, handshake, version };
                door.send(key.service().port(), &watched, None);
            }
            if !door.send(key.service().port(), &Reply::Stored(asked, outcome), None) {
                tracing::debug!(client = %key.client(), ?outcome, "no terminator takes the answer");
            }
        }
        Ok(())
    }

    /// Whether connections wait to be registered.
    pub fn has_registrations(&self) -> bool {
        !self.registrations.is_empty()
    }

    /// Registers connections of the terminators that an earlier process of the agent watched. This
    /// comes before the answers of searched clients are read, because it ends searches.
    pub fn register<K: Keeper>(
        &mut self,
        watch: &mut Watch<K>,
        rescue: &mut Rescue,
    ) -> Result<(), HoldError> {
        let Some(door) = self.door.as_ref().filter(|_| !self.registrations.is_empty()) else { return Ok(()) };
        let ports = door.ports();
        let is_served = |key: &FlowKey| watch.services().any(|service| *service == key.service());
        let is_ready = |(key, registration): &(&FlowKey, &Registration)| {
            let is_over = !ports.contains(&key.service().port())
                || !is_served(key) && registration.since.elapsed() > PATIENCE;
            is_over || watch.may_send(&key.service())
        };
        let ready = self.registrations.iter().filter(is_ready).take(REGISTERED_AT_ONCE);
        let ready: Vec<FlowKey> = ready.map(|(key, _)| *key).collect();
        for key in ready {
            let Some(registration) = self.registrations.remove(&key) else { continue };
            let Registration { asked, record, is_adopted, .. } = registration;
            if ports.contains(&key.service().port()) {
                rescue.cancel(&key, watch)?;
                watch.register(&key, asked, *record, is_adopted)?;
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
