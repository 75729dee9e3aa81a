//! A TLS connection of this host's terminator (`docs/tls.md`). Its bytes are ciphertext, so the terminator makes the records and
//! this machine applies their limits.
//!
//! Until the terminator hands over the first record, everything of the handshake passes in both directions. The client's first
//! encrypted record, which has its Finished, is not acknowledged: behind it may stand a request.

use super::action::{Action, Asked, Limits, Reason, StoreOutcome};
use super::stream::Stream;
use crate::record::{Age, Handshake, Record, Tuple};

/// Bytes that may leave during the handshake: within the half of the sequence numbers that the program compares.
const FAR: u32 = 1 << 30;
/// Bytes of the client that are kept until their record is whole: a record of TLS has fewer.
const MAX_RECORD: usize = (1 << 14) + 256 + HEADER;
/// Bytes of a record's header.
const HEADER: usize = 5;
/// Content types that the header of a record may have (RFC 8446 section 5.1); `APPLICATION_DATA` is that of all encrypted ones.
const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

#[derive(Debug)]
struct Storing {
    ticket: u64,
    asked: Option<Asked>,
    limits: Limits,
}

/// A connection of the terminator.
#[derive(Debug)]
pub(super) struct Terminated {
    pub now: u64,
    tuple: Tuple,
    handshake: Handshake,
    /// Sequence numbers of the first bytes of the client and the service.
    client: u32,
    service: u32,
    /// The client's handshake, until the terminator hands over a record.
    opening: Option<Stream>,
    /// End of the client's data, FIN counted.
    arrived: u32,
    /// The record that was last passed to the store.
    record: Option<Record>,
    version: u32,
    limits: Limits,
    storing: Option<Storing>,
    tickets: u64,
    /// The record is to be stored again: it was lost or gets old.
    renews: bool,
    /// The terminator ends the connection at this sequence number.
    ends_at: Option<u32>,
    /// Sequence number of the server's FIN.
    server_fin: Option<u32>,
}

impl Terminated {
    pub fn new(tuple: Tuple, handshake: Handshake, client: u32, service: u32) -> Terminated {
        let limits = Limits { ack: client, data: service.wrapping_add(FAR), fin_at: None };
        Terminated {
            now: handshake.at_ms,
            tuple,
            handshake,
            client,
            service,
            opening: Some(Stream::new(client, MAX_RECORD)),
            arrived: client,
            record: None,
            version: 0,
            limits,
            storing: None,
            tickets: 0,
            renews: false,
            ends_at: None,
            server_fin: None,
        }
    }

    /// A connection that this replica adopts; `out` gets the store of its record first.
    pub fn resume(record: Record, now: u64, out: &mut Vec<Action>) -> Terminated {
        let handshake = record.handshake;
        let (client, service) = (handshake.client_isn.wrapping_add(1), handshake.service_isn.wrapping_add(1));
        let mut flow = Terminated::new(record.tuple, handshake, client, service);
        flow.limits = Limits { ack: record.acknowledged(), data: record.response_at, fin_at: None };
        (flow.now, flow.opening, flow.arrived) = (now, None, record.acknowledged());
        flow.version = record.version;
        flow.record = Some(record);
        flow.store(None, out);
        flow
    }

    /// A connection that an earlier process watched; `out` gets the store of its record first.
    pub fn register(asked: Asked, record: Record, now: u64, out: &mut Vec<Action>) -> Terminated {
        let handshake = record.handshake;
        let (client, service) = (handshake.client_isn.wrapping_add(1), handshake.service_isn.wrapping_add(1));
        let mut flow = Terminated::new(record.tuple, handshake, client, service);
        (flow.now, flow.version) = (now, record.version);
        let (ack, data) =
            (record.acknowledged().wrapping_add(client), record.response_at.wrapping_add(service));
        flow.limits = Limits { ack, data, fin_at: None };
        flow.arrived = ack;
        flow.submit(asked, record, out);
        flow
    }

    pub fn identity(&self) -> Option<(Handshake, u32)> {
        self.record.as_ref().map(|record| (self.handshake, record.version))
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    pub fn service(&self) -> u32 {
        self.service
    }

    pub fn age(&self) -> Option<Age> {
        self.record.as_ref().map(Record::age)
    }

    pub fn is_known_to_store(&self) -> bool {
        self.version > 0
    }

    pub fn closes(&self) -> bool {
        self.ends_at.is_some()
    }

    pub fn settled(&self) -> Option<Record> {
        self.record.clone().filter(|record| self.storing.is_none() && !record.unprotected)
    }

    pub fn movable(&self) -> Option<Record> {
        let ends = self.ends_at.is_some() || self.server_fin.is_some();
        self.settled().filter(|record| !ends && record.acknowledged() == self.arrived)
    }

    pub fn ends_early(&self) -> bool {
        self.server_fin.is_some_and(|fin| self.limits.fin_at != Some(fin)) && self.storing.is_none()
    }

    /// Bytes of the client. An error ends the protection.
    pub fn request(
        &mut self,
        seq: u32,
        bytes: &[u8],
        fin: bool,
        out: &mut Vec<Action>,
    ) -> Result<(), Reason> {
        let end = seq.wrapping_add(bytes.len() as u32).wrapping_add(u32::from(fin));
        if end.wrapping_sub(self.arrived) as i32 > 0 {
            self.arrived = end;
        }
        let Some(client) = &mut self.opening else { return Ok(()) };
        client.insert(seq, bytes, fin);
        let mut is_encrypted = false;
        while let Some(content) = client.octets().first() {
            match *content {
                CHANGE_CIPHER_SPEC..=HANDSHAKE => {}
                APPLICATION_DATA => {
                    is_encrypted = true;
                    break;
                }
                _ => return Err(Reason::Malformed),
            }
            let Some(header) = client.octets().first_chunk::<HEADER>() else { break };
            let length = HEADER + usize::from(u16::from_be_bytes([header[3], header[4]]));
            if length > MAX_RECORD {
                return Err(Reason::Malformed);
            }
            if client.octets().len() < length {
                break;
            }
            client.advance(length as u64);
        }
        if client.is_ended() {
            return Err(Reason::Tls);
        }
        let ack = if is_encrypted { client.start() } else { client.end() };
        self.limit(Limits { ack, ..self.limits }, out);
        Ok(())
    }

    /// The server's FIN stands there.
    pub fn fin(&mut self, seq: u32) -> Result<(), Reason> {
        self.server_fin = Some(seq);
        // No replica can end a handshake.
        if self.opening.is_some() { Err(Reason::Tls) } else { Ok(()) }
    }

    /// Stores the terminator's record, in which sequence numbers count from the first byte of each direction.
    pub fn submit(&mut self, asked: Asked, record: Record, out: &mut Vec<Action>) {
        let (tuple, handshake) = (self.tuple, self.handshake);
        let (response_at, request_at) =
            (record.response_at.wrapping_add(self.service), record.request_at.wrapping_add(self.client));
        self.opening = None;
        self.record = Some(Record { tuple, handshake, response_at, request_at, ..record });
        self.store(Some(asked), out);
    }

    /// The terminator sends `close_notify` and FIN, which stands at this number from the first byte of the service.
    pub fn end_at(&mut self, at: u32, out: &mut Vec<Action>) {
        let at = at.wrapping_add(self.service);
        self.ends_at = Some(at);
        let ack = self.record.as_ref().map_or(self.arrived, Record::acknowledged);
        let limits = self.ending(Limits { ack, ..self.limits });
        self.limit(limits, out);
    }

    /// Everything that the client sent is answered when its connection ends.
    fn ending(&self, limits: Limits) -> Limits {
        let Some(at) = self.ends_at else { return limits };
        Limits { ack: limits.ack.wrapping_add(FAR), data: at, fin_at: Some(at) }
    }

    pub fn renew(&mut self) {
        self.renews = self.is_known_to_store();
    }

    pub fn tick(&mut self, out: &mut Vec<Action>) {
        if self.renews && self.storing.is_none() {
            self.store(None, out);
        }
    }

    fn store(&mut self, asked: Option<Asked>, out: &mut Vec<Action>) {
        let Some(record) = &mut self.record else { return };
        self.version = self.version.saturating_add(1);
        record.version = self.version;
        let passed = record.passed();
        let is_whole = record.responses.last().is_none_or(|last| last.passed == last.length);
        let closes = record.responses.last().is_some_and(|last| last.close);
        let limits = Limits {
            ack: record.acknowledged(),
            data: passed,
            fin_at: Some(passed).filter(|_| is_whole && closes),
        };
        self.tickets += 1;
        self.renews = false;
        self.storing = Some(Storing { ticket: self.tickets, asked, limits });
        out.push(Action::Store { ticket: self.tickets, record: Box::new(record.clone()) });
    }

    pub fn stored(&mut self, ticket: u64, kept: bool, out: &mut Vec<Action>) {
        let Some(storing) = self.storing.take_if(|storing| storing.ticket == ticket) else { return };
        if kept {
            let limits = self.ending(storing.limits);
            self.limit(limits, out);
        }
        let outcome = if kept { StoreOutcome::Kept } else { StoreOutcome::Failed };
        out.extend(storing.asked.map(|asked| Action::Answer(asked, outcome)));
    }

    /// Removes the limits.
    pub fn give_up(&mut self, reason: Reason, out: &mut Vec<Action>) {
        out.push(Action::Unprotected(reason));
        out.extend(self.is_known_to_store().then_some(Action::Forget));
    }

    fn limit(&mut self, limits: Limits, out: &mut Vec<Action>) {
        if limits != self.limits {
            self.limits = limits;
            out.push(Action::Limits(limits));
        }
    }
}
