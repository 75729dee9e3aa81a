//! Arbitration (P4Runtime section 5): which controller may write. For each role it keeps the
//! controllers with a stream and the highest election id ever seen. That id is remembered, so when
//! the primary disconnects, the role has none until a controller sends an id at least as high: a
//! disconnect promotes no other controller.
//!
//! Both are limited, but idle controllers do not keep out new ones: a backup is removed for a
//! controller of the same or a higher rank, and a role without a primary for a new role. The
//! default role always exists.

use std::collections::BTreeMap;

use tonic::{Code, Status};

use crate::proto::google::rpc;
use crate::proto::p4::v1::stream_message_response::Update;
use crate::proto::p4::v1::{MasterArbitrationUpdate, Role, Uint128};
use crate::stream::Outbox;

/// Largest number of streams of one role. Beyond it, the stream with the lowest election id, and of
/// those the oldest, is ended.
pub const MAX_CONTROLLERS: usize = 64;
/// Largest number of roles besides the default one. Beyond it, a role without controllers is
/// forgotten with its highest election id; otherwise a role without a primary is ended, the one
/// idle for longest first.
pub const MAX_ROLES: usize = 256;

/// A role, by name or, from clients older than 1.4, by number; if both are empty it is the default
/// role.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoleKey {
    name: String,
    id: u64,
}

impl RoleKey {
    /// The role in these fields of a message.
    pub fn new(name: &str, id: u64) -> Self {
        RoleKey { name: name.to_owned(), id: if name.is_empty() { id } else { 0 } }
    }

    fn of(role: Option<&Role>) -> Self {
        #[allow(deprecated)]
        role.map_or_else(RoleKey::default, |r| RoleKey::new(&r.name, r.id))
    }
}

/// The 128-bit election id; `None` if the message has none.
pub fn election_id(id: Option<&Uint128>) -> Option<u128> {
    id.map(|id| u128::from(id.high) << 64 | u128::from(id.low))
}

/// A stream, as the arbiter knows it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its number.
    pub stream: u64,
    /// The stream's connection.
    pub connection: u64,
    /// Its send queues.
    pub outbox: Outbox,
}

/// The primary of a role.
#[derive(Clone, Debug)]
pub struct Primary {
    /// Its stream.
    pub peer: Peer,
    /// Whether its role is the default one.
    pub default_role: bool,
}

struct Controller {
    peer: Peer,
    /// The role as this controller wrote it, to be returned unchanged.
    role: Option<Role>,
    election_id: Option<u128>,
}

#[derive(Default)]
struct RoleState {
    controllers: Vec<Controller>,
    highest: Option<u128>,
    /// When a controller of this role last sent a message, in messages of all roles.
    last_message: u64,
}

impl RoleState {
    /// The primary's stream: the connected controller with the highest id ever seen.
    fn primary(&self) -> Option<&Controller> {
        let highest = self.highest?;
        self.controllers.iter().find(|c| c.election_id == Some(highest))
    }

    /// Makes room for a controller with that id by removing a backup of no higher rank.
    fn make_room(&mut self, id: Option<u128>) -> Result<(), Status> {
        if self.controllers.len() < MAX_CONTROLLERS {
            return Ok(());
        }
        let primary = self.primary().map(|c| c.peer.stream);
        let backups = self.controllers.iter().enumerate().filter(|(_, c)| Some(c.peer.stream) != primary);
        match backups.min_by_key(|(_, c)| (c.election_id, c.peer.stream)) {
            Some((at, lowest)) if lowest.election_id <= id => {
                self.controllers.remove(at).peer.outbox.end(Status::resource_exhausted(format!(
                    "the role has {MAX_CONTROLLERS} controllers, and a new one ranks no lower"
                )));
                Ok(())
            }
            _ => Err(Status::resource_exhausted(format!(
                "the role has {MAX_CONTROLLERS} controllers that rank higher"
            ))),
        }
    }
}

/// All controllers of one device.
pub struct Arbiter {
    device_id: u64,
    roles: BTreeMap<RoleKey, RoleState>,
    messages: u64,
}

impl Arbiter {
    /// Creates an arbiter without controllers.
    pub fn new(device_id: u64) -> Self {
        Arbiter { device_id, roles: BTreeMap::new(), messages: 0 }
    }

    /// Checks that a `Write` or `SetForwardingPipelineConfig` with this role and election id comes
    /// from the role's primary: NOT_FOUND for an unknown role, PERMISSION_DENIED otherwise.
    pub fn check(&self, role: &RoleKey, id: Option<u128>) -> Result<(), Status> {
        let state = match self.roles.get(role) {
            Some(state) => state,
            None if *role == RoleKey::default() => {
                return Err(Status::permission_denied("no controller has become primary"));
            }
            None => {
                return Err(Status::not_found(format!("no controller has asked for role '{}'", role.name)));
            }
        };
        match state.primary() {
            Some(primary) if primary.election_id == id => Ok(()),
            Some(_) => Err(Status::permission_denied("not the primary's election id")),
            None => Err(Status::permission_denied("the role has no primary")),
        }
    }

    /// Handles a stream's `MasterArbitrationUpdate`. `known` is the stream's present role. Returns
    /// the stream's role; an error ends the stream.
    pub fn update(
        &mut self,
        peer: &Peer,
        known: Option<&RoleKey>,
        message: &MasterArbitrationUpdate,
    ) -> Result<RoleKey, Status> {
        let key = RoleKey::of(message.role.as_ref());
        match known {
            None if message.device_id != self.device_id => {
                return Err(Status::not_found(format!("no device with id {}", message.device_id)));
            }
            Some(_) if message.device_id != self.device_id => {
                return Err(Status::failed_precondition("a stream cannot change its device"));
            }
            Some(role) if *role != key => {
                return Err(Status::failed_precondition("a stream cannot change its role"));
            }
            _ => {}
        }
        if message.role.as_ref().is_some_and(|r| r.config.is_some()) {
            return Err(Status::unimplemented("roles with a config of their own are not served"));
        }
        self.make_room(&key)?;
        self.messages += 1;
        let stream = peer.stream;
        let id = election_id(message.election_id.as_ref());
        let state = self.roles.entry(key.clone()).or_default();
        state.last_message = self.messages;
        if id.is_some() && state.controllers.iter().any(|c| c.peer.stream != stream && c.election_id == id) {
            return Err(Status::invalid_argument("another controller of this role has the election id"));
        }
        let was_primary = state.primary().map(|c| c.peer.stream);
        match state.controllers.iter_mut().find(|c| c.peer.stream == stream) {
            Some(controller) => {
                controller.election_id = id;
                controller.role.clone_from(&message.role);
            }
            None => {
                state.make_room(id)?;
                let role = message.role.clone();
                state.controllers.push(Controller { peer: peer.clone(), role, election_id: id });
            }
        }
        if id > state.highest {
            state.highest = id;
        }
        let primary = state.primary().map(|c| c.peer.stream);
        // Notify all controllers if the primary changed, stepped down or sent an update again;
        // otherwise only the sender.
        let all = primary == Some(stream) || was_primary != primary;
        self.notify(&key, |s| (all || s == stream) && s != primary.unwrap_or(0));
        self.notify(&key, |s| (all || s == stream) && Some(s) == primary);
        Ok(key)
    }

    /// Makes room for a new role.
    fn make_room(&mut self, key: &RoleKey) -> Result<(), Status> {
        let default = RoleKey::default();
        let named = self.roles.len() - usize::from(self.roles.contains_key(&default));
        if *key == default || self.roles.contains_key(key) || named < MAX_ROLES {
            return Ok(());
        }
        let without_primary = self.roles.iter().filter(|(k, s)| **k != default && s.primary().is_none());
        let idle = without_primary.min_by_key(|(_, s)| (!s.controllers.is_empty(), s.last_message));
        let Some(idle) = idle.map(|(k, _)| k.clone()) else {
            return Err(Status::resource_exhausted(format!("{MAX_ROLES} roles have a primary")));
        };
        for controller in self.roles.remove(&idle).into_iter().flat_map(|s| s.controllers) {
            let status =
                Status::resource_exhausted(format!("{MAX_ROLES} roles, and this one has no primary"));
            controller.peer.outbox.end(status);
        }
        Ok(())
    }

    /// Removes a stream. Notifies the other controllers of its role if it was the primary's.
    pub fn disconnect(&mut self, role: &RoleKey, stream: u64) {
        let Some(state) = self.roles.get_mut(role) else { return };
        let was_primary = state.primary().is_some_and(|c| c.peer.stream == stream);
        state.controllers.retain(|c| c.peer.stream != stream);
        if was_primary {
            self.notify(role, |_| true);
        } else if state.controllers.is_empty() && state.highest.is_none() {
            self.roles.remove(role);
        }
    }

    /// The primaries of all roles, which get packet-ins, digests and idle notifications, and may
    /// send packet-outs.
    pub fn primaries(&self) -> Vec<Primary> {
        let primary = |(key, state): (&RoleKey, &RoleState)| {
            let default_role = *key == RoleKey::default();
            Some(Primary { peer: state.primary()?.peer.clone(), default_role })
        };
        self.roles.iter().filter_map(primary).collect()
    }

    /// Sends the state of a role to those of its controllers for which `meant` is true.
    fn notify(&self, role: &RoleKey, meant: impl Fn(u64) -> bool) {
        let Some(state) = self.roles.get(role) else { return };
        let primary = state.primary().map(|c| c.peer.stream);
        for controller in state.controllers.iter().filter(|c| meant(c.peer.stream)) {
            let (code, message) = match primary {
                Some(stream) if stream == controller.peer.stream => (Code::Ok, "you are primary"),
                Some(_) => (Code::AlreadyExists, "you are backup"),
                None => (Code::NotFound, "there is no primary"),
            };
            controller.peer.outbox.control(Update::Arbitration(MasterArbitrationUpdate {
                device_id: self.device_id,
                role: controller.role.clone(),
                election_id: state.highest.map(|id| Uint128 { high: (id >> 64) as u64, low: id as u64 }),
                status: Some(rpc::Status {
                    code: code as i32,
                    message: message.to_owned(),
                    details: Vec::new(),
                }),
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{Inbox, outbox};

    struct Bench {
        arbiter: Arbiter,
        clients: Vec<(Peer, Inbox, Option<RoleKey>)>,
    }

    fn message(role: &str, id: Option<u64>) -> MasterArbitrationUpdate {
        MasterArbitrationUpdate {
            device_id: 7,
            role: (!role.is_empty()).then(|| Role { name: role.to_owned(), ..Role::default() }),
            election_id: id.map(|low| Uint128 { high: 0, low }),
            status: None,
        }
    }

    impl Bench {
        fn new() -> Self {
            Bench { arbiter: Arbiter::new(7), clients: Vec::new() }
        }

        /// Passes a client's message to the arbiter, opening the stream if needed; returns the code
        /// with which the stream ended, or `Ok`.
        fn send(&mut self, client: usize, message: &MasterArbitrationUpdate) -> Code {
            while self.clients.len() <= client {
                let (outbox, receiver) = outbox();
                let stream = self.clients.len() as u64 + 1;
                self.clients.push((Peer { stream, connection: stream, outbox }, receiver, None));
            }
            let (peer, _, role) = &mut self.clients[client];
            match self.arbiter.update(peer, role.as_ref(), message) {
                Ok(key) => {
                    *role = Some(key);
                    Code::Ok
                }
                Err(status) => status.code(),
            }
        }

        /// Takes the messages sent to a stream: code and election id of each one.
        fn received(&mut self, client: usize) -> Vec<(Code, Option<u64>)> {
            let mut all = Vec::new();
            while let Some(Update::Arbitration(m)) = self.clients[client].1.try_control() {
                all.push((Code::from(m.status.unwrap().code), m.election_id.map(|id| id.low)));
            }
            all
        }

        fn leave(&mut self, client: usize) {
            let role = self.clients[client].2.clone().unwrap();
            self.arbiter.disconnect(&role, client as u64 + 1);
        }

        fn may_write(&self, role: &str, id: u64) -> Code {
            let result = self.arbiter.check(&RoleKey::new(role, 0), Some(u128::from(id)));
            result.map_or_else(|s| s.code(), |()| Code::Ok)
        }
    }

    #[test]
    fn highest_id_is_primary_and_all_are_notified() {
        let mut b = Bench::new();
        assert_eq!(b.send(0, &message("", Some(5))), Code::Ok);
        assert_eq!(b.received(0), [(Code::Ok, Some(5))]);
        assert_eq!(b.send(1, &message("", Some(3))), Code::Ok);
        assert_eq!(b.received(1), [(Code::AlreadyExists, Some(5))]);
        assert_eq!(b.received(0), [], "a new backup is no news for the primary");
        assert_eq!(b.send(1, &message("", Some(6))), Code::Ok);
        assert_eq!(
            (b.received(0), b.received(1)),
            (vec![(Code::AlreadyExists, Some(6))], vec![(Code::Ok, Some(6))])
        );
        assert_eq!((b.may_write("", 5), b.may_write("", 6)), (Code::PermissionDenied, Code::Ok));
    }

    #[test]
    fn disconnect_promotes_no_backup() {
        let mut b = Bench::new();
        b.send(0, &message("", Some(5)));
        b.send(1, &message("", Some(3)));
        b.received(1);
        b.leave(0);
        assert_eq!(b.received(1), [(Code::NotFound, Some(5))]);
        assert_eq!(
            (b.may_write("", 3), b.may_write("", 5)),
            (Code::PermissionDenied, Code::PermissionDenied)
        );
        assert_eq!(b.send(1, &message("", Some(4))), Code::Ok);
        assert_eq!(b.received(1), [(Code::NotFound, Some(5))], "4 is below the highest seen");
        assert_eq!(b.send(1, &message("", Some(5))), Code::Ok);
        assert_eq!(b.received(1), [(Code::Ok, Some(5))], "equal is enough");
    }

    #[test]
    fn a_primary_may_step_down() {
        let mut b = Bench::new();
        b.send(0, &message("", Some(5)));
        b.send(1, &message("", None));
        assert_eq!(b.received(1), [(Code::AlreadyExists, Some(5))], "without an id one is a backup");
        b.received(0);
        b.send(0, &message("", Some(4)));
        assert_eq!(
            (b.received(0), b.received(1)),
            (vec![(Code::NotFound, Some(5))], vec![(Code::NotFound, Some(5))])
        );
    }

    #[test]
    fn an_unset_id_differs_from_zero() {
        let mut b = Bench::new();
        b.send(0, &message("", None));
        assert_eq!(b.received(0), [(Code::NotFound, None)]);
        b.send(1, &message("", Some(0)));
        assert_eq!(b.received(1), [(Code::Ok, Some(0))]);
        assert_eq!(b.arbiter.check(&RoleKey::default(), None).unwrap_err().code(), Code::PermissionDenied);
    }

    #[test]
    fn roles_are_arbitrated_apart() {
        let mut b = Bench::new();
        b.send(0, &message("", Some(5)));
        b.send(1, &message("stats", Some(1)));
        assert_eq!(b.received(1), [(Code::Ok, Some(1))]);
        assert_eq!((b.may_write("stats", 1), b.may_write("stats", 5)), (Code::Ok, Code::PermissionDenied));
        assert_eq!(b.may_write("other", 1), Code::NotFound);
        assert_eq!(b.arbiter.primaries().len(), 2);
    }

    #[test]
    fn protocol_errors_end_the_stream() {
        let mut b = Bench::new();
        assert_eq!(
            b.send(0, &MasterArbitrationUpdate { device_id: 8, ..message("", Some(1)) }),
            Code::NotFound
        );
        b.send(1, &message("", Some(1)));
        let other_device = MasterArbitrationUpdate { device_id: 8, ..message("", Some(1)) };
        assert_eq!(b.send(1, &other_device), Code::FailedPrecondition);
        assert_eq!(b.send(1, &message("stats", Some(1))), Code::FailedPrecondition);
        assert_eq!(b.send(2, &message("", Some(1))), Code::InvalidArgument, "the id is taken");
        let mut configured = message("stats", Some(1));
        configured.role.as_mut().unwrap().config = Some(prost_types::Any::default());
        assert_eq!(b.send(3, &configured), Code::Unimplemented);
    }

    /// The statuses that ended each stream, by client.
    fn ended(b: &Bench) -> Vec<usize> {
        (0..b.clients.len()).filter(|i| b.clients[*i].1.was_ended()).collect()
    }

    #[test]
    fn idle_controllers_give_way_lowest_and_oldest_first() {
        let mut b = Bench::new();
        assert_eq!(b.send(0, &message("", Some(3))), Code::Ok);
        for i in 1..MAX_CONTROLLERS {
            assert_eq!(b.send(i, &message("", (i == 2).then_some(1))), Code::Ok);
        }
        assert!(ended(&b).is_empty());
        assert_eq!(b.send(MAX_CONTROLLERS, &message("", None)), Code::Ok, "as good as those that idle");
        assert_eq!(ended(&b), [1]);
        assert_eq!(b.send(MAX_CONTROLLERS + 1, &message("", Some(2))), Code::Ok);
        assert_eq!(ended(&b), [1, 3], "an id ranks above none");
        for i in 2..MAX_CONTROLLERS {
            assert_eq!(b.send(MAX_CONTROLLERS + i, &message("", Some(100 - i as u64))), Code::Ok);
        }
        assert_eq!(b.send(200, &message("", None)), Code::ResourceExhausted, "all others have ids");
        assert_eq!(b.send(201, &message("", Some(1000))), Code::Ok);
        assert_eq!(b.received(201).last(), Some(&(Code::Ok, Some(1000))));
    }

    #[test]
    fn roles_without_primary_give_way() {
        let mut b = Bench::new();
        for i in 0..MAX_ROLES {
            assert_eq!(b.send(i, &message(&format!("r{i}"), (i != 7).then_some(1))), Code::Ok);
        }
        assert_eq!(b.send(MAX_ROLES, &message("", Some(1))), Code::Ok, "the default role has its place");
        b.leave(5);
        assert_eq!(b.send(MAX_ROLES + 1, &message("a", Some(1))), Code::Ok);
        assert_eq!((b.may_write("r5", 1), ended(&b)), (Code::NotFound, vec![]), "a role without controllers");
        assert_eq!(b.send(MAX_ROLES + 2, &message("b", Some(1))), Code::Ok);
        assert_eq!(ended(&b), [7], "a role without a primary");
        assert_eq!(b.send(MAX_ROLES + 3, &message("c", Some(1))), Code::ResourceExhausted);
        assert_eq!(b.may_write("r8", 1), Code::Ok, "who leads a role stays");
    }
}
