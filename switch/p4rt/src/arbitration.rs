//! Who may write (P4Runtime section 5): for each role the controllers with a stream, and the highest election
//! id ever seen. That number is never forgotten, so a primary that disconnects leaves the role without one
//! until a controller says an id at least as high: nobody is promoted by a disconnect.

use std::collections::BTreeMap;

use tonic::{Code, Status};

use crate::proto::google::rpc;
use crate::proto::p4::v1::stream_message_response::Update;
use crate::proto::p4::v1::{MasterArbitrationUpdate, Role, Uint128};
use crate::stream::Outbox;

/// Streams one role may have (RESOURCE_EXHAUSTED beyond).
pub const MAX_CONTROLLERS: usize = 64;
/// Roles a device remembers (RESOURCE_EXHAUSTED beyond): their highest election ids are kept for good.
pub const MAX_ROLES: usize = 256;

/// A role, by name or, from clients older than 1.4, by number; both empty is the default role.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoleKey {
    name: String,
    id: u64,
}

impl RoleKey {
    /// The role that these fields of a message name.
    pub fn new(name: &str, id: u64) -> Self {
        RoleKey { name: name.to_owned(), id: if name.is_empty() { id } else { 0 } }
    }

    fn of(role: Option<&Role>) -> Self {
        #[allow(deprecated)]
        role.map_or_else(RoleKey::default, |r| RoleKey::new(&r.name, r.id))
    }
}

/// The 128-bit number that decides; `None` where the message has none.
pub fn election_id(id: Option<&Uint128>) -> Option<u128> {
    id.map(|id| u128::from(id.high) << 64 | u128::from(id.low))
}

struct Controller {
    stream: u64,
    /// The role as this controller wrote it, to be said back the same.
    role: Option<Role>,
    election_id: Option<u128>,
    outbox: Outbox,
}

#[derive(Default)]
struct RoleState {
    controllers: Vec<Controller>,
    highest: Option<u128>,
}

impl RoleState {
    /// The stream of the primary: the live controller with the highest id ever seen.
    fn primary(&self) -> Option<&Controller> {
        let highest = self.highest?;
        self.controllers.iter().find(|c| c.election_id == Some(highest))
    }
}

/// All controllers of one device.
pub struct Arbiter {
    device_id: u64,
    roles: BTreeMap<RoleKey, RoleState>,
}

impl Arbiter {
    /// No controllers yet.
    pub fn new(device_id: u64) -> Self {
        Arbiter { device_id, roles: BTreeMap::new() }
    }

    /// Whether a `Write` or `SetForwardingPipelineConfig` with this role and election id comes from the role's
    /// primary: NOT_FOUND for an unknown role, PERMISSION_DENIED for anyone else.
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

    /// A `MasterArbitrationUpdate` of a stream. `known` is the role that the stream already has. Returns the
    /// stream's role; an error ends the stream.
    pub fn update(
        &mut self,
        stream: u64,
        outbox: &Outbox,
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
        if !self.roles.contains_key(&key) && self.roles.len() >= MAX_ROLES {
            return Err(Status::resource_exhausted(format!("{MAX_ROLES} roles are in use")));
        }
        let id = election_id(message.election_id.as_ref());
        let state = self.roles.entry(key.clone()).or_default();
        if id.is_some() && state.controllers.iter().any(|c| c.stream != stream && c.election_id == id) {
            return Err(Status::invalid_argument("another controller of this role has the election id"));
        }
        let was_primary = state.primary().map(|c| c.stream);
        let count = state.controllers.len();
        match state.controllers.iter_mut().find(|c| c.stream == stream) {
            Some(controller) => {
                controller.election_id = id;
                controller.role.clone_from(&message.role);
            }
            None if count >= MAX_CONTROLLERS => {
                return Err(Status::resource_exhausted(format!(
                    "the role has {MAX_CONTROLLERS} controllers"
                )));
            }
            None => state.controllers.push(Controller {
                stream,
                role: message.role.clone(),
                election_id: id,
                outbox: outbox.clone(),
            }),
        }
        if id > state.highest {
            state.highest = id;
        }
        let primary = state.primary().map(|c| c.stream);
        // Everyone is told when the primary changed, stepped down or spoke again; otherwise only the sender.
        let all = primary == Some(stream) || was_primary != primary;
        self.notify(&key, |c| (all || c.stream == stream) && c.stream != primary.unwrap_or(0));
        self.notify(&key, |c| (all || c.stream == stream) && Some(c.stream) == primary);
        Ok(key)
    }

    /// A stream is gone. The others of its role are told if it was the primary's.
    pub fn disconnect(&mut self, role: &RoleKey, stream: u64) {
        let Some(state) = self.roles.get_mut(role) else { return };
        let was_primary = state.primary().is_some_and(|c| c.stream == stream);
        state.controllers.retain(|c| c.stream != stream);
        if was_primary {
            self.notify(role, |_| true);
        } else if state.controllers.is_empty() && state.highest.is_none() {
            self.roles.remove(role);
        }
    }

    /// Primaries of all roles: they get packet-ins, digests and idle notifications, and may send packet-outs.
    pub fn primaries(&self) -> Vec<(u64, Outbox)> {
        self.roles.values().filter_map(RoleState::primary).map(|c| (c.stream, c.outbox.clone())).collect()
    }

    /// Sends the state of a role to those of its controllers that are meant.
    fn notify(&self, role: &RoleKey, meant: impl Fn(&Controller) -> bool) {
        let Some(state) = self.roles.get(role) else { return };
        let primary = state.primary().map(|c| c.stream);
        for controller in state.controllers.iter().filter(|c| meant(c)) {
            let (code, message) = match primary {
                Some(stream) if stream == controller.stream => (Code::Ok, "you are primary"),
                Some(_) => (Code::AlreadyExists, "you are backup"),
                None => (Code::NotFound, "there is no primary"),
            };
            controller.outbox.control(Update::Arbitration(MasterArbitrationUpdate {
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
        clients: Vec<(Outbox, Inbox, Option<RoleKey>)>,
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

        /// Says a message on a stream, opening it if needed; the code that ended the stream if it did.
        fn say(&mut self, client: usize, message: &MasterArbitrationUpdate) -> Code {
            while self.clients.len() <= client {
                let (sender, receiver) = outbox();
                self.clients.push((sender, receiver, None));
            }
            let (outbox, _, role) = &mut self.clients[client];
            match self.arbiter.update(client as u64 + 1, outbox, role.as_ref(), message) {
                Ok(key) => {
                    *role = Some(key);
                    Code::Ok
                }
                Err(status) => status.code(),
            }
        }

        /// What a stream was told since it was last asked: code and election id of each message.
        fn heard(&mut self, client: usize) -> Vec<(Code, Option<u64>)> {
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
    fn the_highest_id_is_primary_and_everyone_hears_of_a_change() {
        let mut b = Bench::new();
        assert_eq!(b.say(0, &message("", Some(5))), Code::Ok);
        assert_eq!(b.heard(0), [(Code::Ok, Some(5))]);
        assert_eq!(b.say(1, &message("", Some(3))), Code::Ok);
        assert_eq!(b.heard(1), [(Code::AlreadyExists, Some(5))]);
        assert_eq!(b.heard(0), [], "a new backup is no news for the primary");
        assert_eq!(b.say(1, &message("", Some(6))), Code::Ok);
        assert_eq!(
            (b.heard(0), b.heard(1)),
            (vec![(Code::AlreadyExists, Some(6))], vec![(Code::Ok, Some(6))])
        );
        assert_eq!((b.may_write("", 5), b.may_write("", 6)), (Code::PermissionDenied, Code::Ok));
    }

    #[test]
    fn nobody_is_promoted_by_a_disconnect() {
        let mut b = Bench::new();
        b.say(0, &message("", Some(5)));
        b.say(1, &message("", Some(3)));
        b.heard(1);
        b.leave(0);
        assert_eq!(b.heard(1), [(Code::NotFound, Some(5))]);
        assert_eq!(
            (b.may_write("", 3), b.may_write("", 5)),
            (Code::PermissionDenied, Code::PermissionDenied)
        );
        assert_eq!(b.say(1, &message("", Some(4))), Code::Ok);
        assert_eq!(b.heard(1), [(Code::NotFound, Some(5))], "4 is below the highest seen");
        assert_eq!(b.say(1, &message("", Some(5))), Code::Ok);
        assert_eq!(b.heard(1), [(Code::Ok, Some(5))], "equal is enough");
    }

    #[test]
    fn a_primary_may_step_down() {
        let mut b = Bench::new();
        b.say(0, &message("", Some(5)));
        b.say(1, &message("", None));
        assert_eq!(b.heard(1), [(Code::AlreadyExists, Some(5))], "without an id one is a backup");
        b.heard(0);
        b.say(0, &message("", Some(4)));
        assert_eq!(
            (b.heard(0), b.heard(1)),
            (vec![(Code::NotFound, Some(5))], vec![(Code::NotFound, Some(5))])
        );
    }

    #[test]
    fn an_unset_id_differs_from_zero() {
        let mut b = Bench::new();
        b.say(0, &message("", None));
        assert_eq!(b.heard(0), [(Code::NotFound, None)]);
        b.say(1, &message("", Some(0)));
        assert_eq!(b.heard(1), [(Code::Ok, Some(0))]);
        assert_eq!(b.arbiter.check(&RoleKey::default(), None).unwrap_err().code(), Code::PermissionDenied);
    }

    #[test]
    fn roles_are_arbitrated_apart() {
        let mut b = Bench::new();
        b.say(0, &message("", Some(5)));
        b.say(1, &message("stats", Some(1)));
        assert_eq!(b.heard(1), [(Code::Ok, Some(1))]);
        assert_eq!((b.may_write("stats", 1), b.may_write("stats", 5)), (Code::Ok, Code::PermissionDenied));
        assert_eq!(b.may_write("other", 1), Code::NotFound);
        assert_eq!(b.arbiter.primaries().len(), 2);
    }

    #[test]
    fn what_ends_a_stream() {
        let mut b = Bench::new();
        assert_eq!(
            b.say(0, &MasterArbitrationUpdate { device_id: 8, ..message("", Some(1)) }),
            Code::NotFound
        );
        b.say(1, &message("", Some(1)));
        let other_device = MasterArbitrationUpdate { device_id: 8, ..message("", Some(1)) };
        assert_eq!(b.say(1, &other_device), Code::FailedPrecondition);
        assert_eq!(b.say(1, &message("stats", Some(1))), Code::FailedPrecondition);
        assert_eq!(b.say(2, &message("", Some(1))), Code::InvalidArgument, "the id is taken");
        let mut configured = message("stats", Some(1));
        configured.role.as_mut().unwrap().config = Some(prost_types::Any::default());
        assert_eq!(b.say(3, &configured), Code::Unimplemented);
    }

    #[test]
    fn controllers_and_roles_are_bounded() {
        let mut b = Bench::new();
        for i in 0..MAX_CONTROLLERS {
            assert_eq!(b.say(i, &message("", None)), Code::Ok);
        }
        assert_eq!(b.say(MAX_CONTROLLERS, &message("", None)), Code::ResourceExhausted);
        for i in 1..MAX_ROLES {
            assert_eq!(b.say(MAX_CONTROLLERS + i, &message(&format!("r{i}"), Some(1))), Code::Ok);
        }
        assert_eq!(
            b.say(MAX_CONTROLLERS + MAX_ROLES, &message("one more", Some(1))),
            Code::ResourceExhausted
        );
        let _ = b.heard(0);
    }
}
