//! A controller's stream and calls, and names in place of numbers.

use prost::Message as _;
use rivulet_p4rt::proto::google::rpc;
use rivulet_p4rt::proto::p4::config::v1::P4Info;
use rivulet_p4rt::proto::p4::v1 as p4;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::harness::*;

/// A controller: its stream and its unary calls.
pub struct Controller {
    pub client: P4RuntimeClient<Channel>,
    pub requests: mpsc::Sender<p4::StreamMessageRequest>,
    pub received: Streaming<p4::StreamMessageResponse>,
    pub role: String,
    pub election_id: Option<u64>,
}

pub fn uint128(id: Option<u64>) -> Option<p4::Uint128> {
    id.map(|low| p4::Uint128 { high: 0, low })
}

impl Controller {
    pub async fn send_message(&self, update: Outgoing) {
        self.requests
            .send(p4::StreamMessageRequest { update: Some(update) })
            .await
            .expect("the stream is open");
    }

    /// The next message, or the status with which the stream ended.
    pub async fn receive(&mut self) -> Result<Received, Status> {
        let next = tokio::time::timeout(PATIENCE, self.received.message()).await;
        let message = next.expect("expected a message on the stream, none arrived")?;
        Ok(message
            .ok_or_else(|| Status::cancelled("the stream ended"))?
            .update
            .expect("a message has content"))
    }

    /// Checks that no message arrives.
    pub async fn expect_no_message(&mut self) {
        if let Ok(received) = tokio::time::timeout(SILENCE, self.received.message()).await {
            panic!("unexpected message on the stream: {received:?}");
        }
    }

    pub fn arbitration(&self, election_id: Option<u64>) -> p4::MasterArbitrationUpdate {
        p4::MasterArbitrationUpdate {
            device_id: DEVICE,
            role: (!self.role.is_empty())
                .then(|| p4::Role { name: self.role.clone(), ..p4::Role::default() }),
            election_id: uint128(election_id),
            status: None,
        }
    }

    /// Sends an election id; returns status and id of the answer.
    pub async fn arbitrate(&mut self, election_id: Option<u64>) -> (Code, Option<u64>) {
        self.election_id = election_id;
        self.send_message(Outgoing::Arbitration(self.arbitration(election_id))).await;
        self.receive_arbitration().await
    }

    pub async fn receive_arbitration(&mut self) -> (Code, Option<u64>) {
        match self.receive().await.unwrap() {
            Received::Arbitration(a) => (Code::from(a.status.unwrap().code), a.election_id.map(|id| id.low)),
            other => panic!("expected an arbitration update, received {other:?}"),
        }
    }

    pub fn request(&self, updates: Vec<p4::Update>) -> p4::WriteRequest {
        p4::WriteRequest {
            device_id: DEVICE,
            role: self.role.clone(),
            election_id: uint128(self.election_id),
            updates,
            ..p4::WriteRequest::default()
        }
    }

    pub async fn send(&mut self, request: p4::WriteRequest) -> Result<(), Status> {
        self.client.write(request).await.map(drop)
    }

    /// Writes one update; returns its error code.
    pub async fn write(&mut self, r#type: Type, entity: impl Kind) -> Result<(), Code> {
        let request = self.request(vec![update(r#type, entity)]);
        match self.send(request).await {
            Ok(()) => Ok(()),
            Err(status) => {
                let codes = codes(&status);
                assert_eq!(codes.len(), 1, "one error for one update: {status:?}");
                Err(codes[0])
            }
        }
    }

    pub async fn insert(&mut self, entity: impl Kind) -> Result<(), Code> {
        self.write(Type::Insert, entity).await
    }

    pub async fn modify(&mut self, entity: impl Kind) -> Result<(), Code> {
        self.write(Type::Modify, entity).await
    }

    pub async fn delete(&mut self, entity: impl Kind) -> Result<(), Code> {
        self.write(Type::Delete, entity).await
    }

    /// Reads; returns all entities and the final status.
    pub async fn read_all(
        &mut self,
        entities: Vec<p4::entity::Entity>,
    ) -> (Vec<p4::entity::Entity>, Result<(), Status>) {
        let entities = entities.into_iter().map(|e| p4::Entity { entity: Some(e) }).collect();
        let request = p4::ReadRequest { device_id: DEVICE, role: String::new(), entities };
        let mut stream = match self.client.read(request).await {
            Ok(stream) => stream.into_inner(),
            Err(status) => return (Vec::new(), Err(status)),
        };
        let mut found = Vec::new();
        loop {
            match stream.next().await {
                Some(Ok(response)) => found.extend(response.entities.into_iter().filter_map(|e| e.entity)),
                Some(Err(status)) => return (found, Err(status)),
                None => return (found, Ok(())),
            }
        }
    }

    /// Reads one request; returns its error code.
    pub async fn read<E: Kind>(&mut self, request: E) -> Result<Vec<E>, Code> {
        let (found, end) = self.read_all(vec![request.wrap()]).await;
        end.map_err(|status| codes(&status).first().copied().unwrap_or(status.code()))?;
        Ok(found.into_iter().filter_map(|e| E::unwrap(e)).collect())
    }

    pub async fn set_pipeline(
        &mut self,
        action: PipelineAction,
        config: Option<p4::ForwardingPipelineConfig>,
    ) -> Result<(), Status> {
        let request = p4::SetForwardingPipelineConfigRequest {
            device_id: DEVICE,
            role: self.role.clone(),
            election_id: uint128(self.election_id),
            action: action as i32,
            config,
            ..p4::SetForwardingPipelineConfigRequest::default()
        };
        self.client.set_forwarding_pipeline_config(request).await.map(drop)
    }
}

pub fn update(r#type: Type, entity: impl Kind) -> p4::Update {
    p4::Update { r#type: r#type as i32, entity: Some(p4::Entity { entity: Some(entity.wrap()) }) }
}

/// The codes in the details of a batch's status, checked for their form; empty without details.
pub fn codes(status: &Status) -> Vec<Code> {
    let inner = rpc::Status::decode(status.details()).expect("the details are a google.rpc.Status");
    if inner.details.is_empty() {
        return Vec::new();
    }
    assert_eq!((status.code(), inner.code), (Code::Unknown, Code::Unknown as i32));
    assert_eq!(inner.message, status.message());
    let one = |any: &prost_types::Any| {
        assert_eq!(any.type_url, "type.googleapis.com/p4.v1.Error");
        Code::from(p4::Error::decode(&*any.value).unwrap().canonical_code)
    };
    inner.details.iter().map(one).collect()
}

/// Identifiers of the test program, by name.
pub struct Names {
    info: P4Info,
}

impl Names {
    pub fn new() -> Names {
        Names::of(p4info())
    }

    pub fn of(info: P4Info) -> Names {
        Names { info }
    }

    pub fn id(&self, name: &str) -> u32 {
        let i = &self.info;
        let all = i
            .tables
            .iter()
            .map(|x| &x.preamble)
            .chain(i.actions.iter().map(|x| &x.preamble))
            .chain(i.action_profiles.iter().map(|x| &x.preamble))
            .chain(i.counters.iter().map(|x| &x.preamble))
            .chain(i.meters.iter().map(|x| &x.preamble))
            .chain(i.registers.iter().map(|x| &x.preamble))
            .chain(i.value_sets.iter().map(|x| &x.preamble))
            .chain(i.digests.iter().map(|x| &x.preamble));
        let found: Vec<u32> = all.flatten().filter(|p| p.alias == name).map(|p| p.id).collect();
        assert_eq!(found.len(), 1, "{name} in the P4Info");
        found[0]
    }

    pub fn action(&self, name: &str, params: &[&[u8]]) -> p4::Action {
        let param = |(value, id): (&&[u8], u32)| p4::action::Param { param_id: id, value: value.to_vec() };
        p4::Action { action_id: self.id(name), params: params.iter().zip(1..).map(param).collect() }
    }

    pub fn table_action(&self, name: &str, params: &[&[u8]]) -> Option<p4::TableAction> {
        let r#type = Some(p4::table_action::Type::Action(self.action(name, params)));
        Some(p4::TableAction { r#type })
    }

    /// An entry without an action.
    pub fn key(&self, table: &str, r#match: Vec<p4::FieldMatch>) -> p4::TableEntry {
        p4::TableEntry { table_id: self.id(table), r#match, ..p4::TableEntry::default() }
    }

    pub fn entry(
        &self,
        table: &str,
        r#match: Vec<p4::FieldMatch>,
        action: &str,
        params: &[&[u8]],
    ) -> p4::TableEntry {
        p4::TableEntry { action: self.table_action(action, params), ..self.key(table, r#match) }
    }

    /// `l2`: destination MAC to a port.
    pub fn l2(&self, dst: u8, port: u8) -> p4::TableEntry {
        self.entry("l2", vec![exact(1, &[2, 0, 0, 0, 0, dst])], "forward", &[&[port]])
    }

    /// `routes`: a prefix to a port.
    pub fn route(&self, prefix: &[u8], len: i32, port: u8) -> p4::TableEntry {
        self.entry("routes", vec![lpm(1, prefix, len)], "forward", &[&[port]])
    }
}

pub fn exact(field_id: u32, value: &[u8]) -> p4::FieldMatch {
    let exact = p4::field_match::Exact { value: value.to_vec() };
    p4::FieldMatch { field_id, field_match_type: Some(p4::field_match::FieldMatchType::Exact(exact)) }
}

pub fn lpm(field_id: u32, value: &[u8], prefix_len: i32) -> p4::FieldMatch {
    let lpm = p4::field_match::Lpm { value: value.to_vec(), prefix_len };
    p4::FieldMatch { field_id, field_match_type: Some(p4::field_match::FieldMatchType::Lpm(lpm)) }
}

pub fn ternary(field_id: u32, value: &[u8], mask: &[u8]) -> p4::FieldMatch {
    let ternary = p4::field_match::Ternary { value: value.to_vec(), mask: mask.to_vec() };
    p4::FieldMatch { field_id, field_match_type: Some(p4::field_match::FieldMatchType::Ternary(ternary)) }
}

pub fn optional(field_id: u32, value: &[u8]) -> p4::FieldMatch {
    let optional = p4::field_match::Optional { value: value.to_vec() };
    p4::FieldMatch { field_id, field_match_type: Some(p4::field_match::FieldMatchType::Optional(optional)) }
}

pub fn range(field_id: u32, low: &[u8], high: &[u8]) -> p4::FieldMatch {
    let range = p4::field_match::Range { low: low.to_vec(), high: high.to_vec() };
    p4::FieldMatch { field_id, field_match_type: Some(p4::field_match::FieldMatchType::Range(range)) }
}

/// An Ethernet frame of type 0x1234, which no table matches.
pub fn frame(dst: u8, src: u8) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, dst][..], &[2, 0, 0, 0, 1, src], &[0x12, 0x34], b"some payload, long enough"].concat()
}

/// An IPv4 packet.
pub fn ipv4(src: [u8; 4], dst: [u8; 4], ttl: u8) -> Vec<u8> {
    let mut f = frame(9, 9);
    f.truncate(12);
    f.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0, 0, ttl, 17, 0, 0]);
    f.extend(src);
    f.extend(dst);
    f.extend([0; 20]);
    f
}

/// A kind of entity, so that tests can write `insert(entry)` and `read(entry)`.
pub trait Kind: Sized {
    fn wrap(self) -> p4::entity::Entity;
    fn unwrap(entity: p4::entity::Entity) -> Option<Self>;
}

macro_rules! kinds {
    ($($kind:ident),* $(,)?) => {$(
        impl Kind for p4::$kind {
            fn wrap(self) -> p4::entity::Entity {
                p4::entity::Entity::$kind(self)
            }
            fn unwrap(entity: p4::entity::Entity) -> Option<Self> {
                match entity {
                    p4::entity::Entity::$kind(kind) => Some(kind),
                    _ => None,
                }
            }
        }
    )*};
}

kinds!(
    ExternEntry,
    TableEntry,
    ActionProfileMember,
    ActionProfileGroup,
    MeterEntry,
    DirectMeterEntry,
    CounterEntry,
    DirectCounterEntry,
    PacketReplicationEngineEntry,
    ValueSetEntry,
    RegisterEntry,
    DigestEntry,
);
