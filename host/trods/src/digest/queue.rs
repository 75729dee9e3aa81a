//! The queue of objects to read, shared fairly among the clients that fetched them.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::{Name, Wanted};
use crate::hold::room::Room;

/// Length of each queue of objects to read; one client and one network may fill a share of it
/// ([`Room`]). An object that finds the queue full is queued when it is next fetched or looked up.
pub(super) const MAX_WAITING: usize = 4096;

/// Objects to read, each with the client that fetched it, if known. Each client and network has a
/// limited share, and clients take turns.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) objects: VecDeque<(Wanted, Option<IpAddr>)>,
    room: Room,
    /// The client of the object that left the queue last.
    last: Option<IpAddr>,
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue { objects: VecDeque::new(), room: Room::new(MAX_WAITING), last: None }
    }

    /// Appends an object; returns `false` if the queue, or the client's share of it, is full.
    pub(super) fn push(&mut self, wanted: &Wanted, client: Option<IpAddr>) -> bool {
        if self.objects.len() >= MAX_WAITING || client.is_some_and(|client| !self.room.has(client, 1)) {
            return false;
        }
        if let Some(client) = client {
            self.room.take(client, 1);
        }
        self.objects.push_back((wanted.clone(), client));
        true
    }

    /// Takes out the next object, from another client than the last one if possible.
    pub(super) fn pop(&mut self) -> Option<(Wanted, Option<IpAddr>)> {
        let at = self.objects.iter().position(|(_, client)| *client != self.last).unwrap_or(0);
        let next = self.take(at)?;
        self.last = next.1;
        Some(next)
    }

    pub(super) fn position(&self, name: &Name) -> Option<usize> {
        self.objects.iter().position(|(wanted, _)| wanted.name == *name)
    }

    pub(super) fn take(&mut self, at: usize) -> Option<(Wanted, Option<IpAddr>)> {
        let taken = self.objects.remove(at)?;
        if let Some(client) = taken.1 {
            self.room.give_back(client, 1);
        }
        Some(taken)
    }
}
