//! The part of a connection that protects it: it has the agent store its state, continues from a
//! state, and sets timers.

use std::io::{self, ErrorKind};
use std::time::Instant;

use rivulet_tls::State;
use rivulet_trods::terminator::Request;
use rivulet_trods::{Reason, StoreOutcome, Tuple};

use super::{Connection, Stage};
use crate::buffer::Output;
use crate::channel::{Channel, Records};
use crate::exchange::Progress;
use crate::link::{Adopted, Identity};
use crate::protect::Protection;
use crate::relay::{Context, Open};
use crate::resume::{Resume, Resumed};
use crate::track::Track;

impl Connection {
    /// Continues another replica's connection.
    pub(crate) fn adopted(adopted: Adopted, context: &Context<'_>, now: Instant) -> Result<Self, String> {
        let Adopted { socket, record, acked, sent } = adopted;
        let link = context.link.ok_or("no agent")?;
        let text = |error: io::Error| error.to_string();
        socket.set_nonblocking(true).map_err(text)?;
        socket.set_nodelay(true).map_err(text)?;
        let state = record.tls.as_ref().ok_or("no state")?;
        let state = State::decode(state.bytes()).map_err(|error| error.to_string())?;
        let tuple = state.tuple();
        if tuple != record.tuple {
            return Err("the state of another connection".into());
        }
        // Only the low 32 bits of a stream offset are known. Starting above 2^32 keeps offsets from
        // wrapping.
        let begun = (1 << 32) + u64::from(acked);
        let resume = Resume::new(state, begun).map_err(|error| error.to_string())?;
        let (state, offset) = (resume.state(), resume.state_offset());
        let track = Track::of_state(state, offset).ok_or("a response of unknown length")?;
        let mut records = Records::of_state(state, track, (state.read.sequence.into(), offset));
        let (handshake, version) = (record.handshake, record.version);
        let identity = Identity { handshake, version, is_adopted: true, is_known: true };
        let (number, earlier, link) = (context.number, Some(sent), link.clone());
        let protection =
            Protection::resume(link, number, state, begun, earlier, Some(identity), &mut records);
        let stage = Stage::Resume(Box::new((resume, records)));
        let mut connection = Self::of(socket, (tuple.client, tuple.service), stage, begun, now);
        connection.protection = Some(protection);
        Ok(connection)
    }

    /// Continues from the connection's own state, because the server closed in the middle of a
    /// response.
    fn repeat(&mut self, context: &Context<'_>, state: State, now: Instant) -> Result<(), Progress> {
        let (Some(link), Stage::Open(_)) = (context.link, &self.stage) else { return Err(Progress::Abort) };
        let resume = Resume::new(state, self.written).map_err(|_| Progress::Abort)?;
        let track = Track::of_state(resume.state(), resume.state_offset()).ok_or(Progress::Abort)?;
        let closing = Stage::Closing { is_shut: false, discarded: 0, open: None };
        let Stage::Open(open) = std::mem::replace(&mut self.stage, closing) else {
            return Err(Progress::Abort);
        };
        let Channel::Records(mut records) = open.channel else { return Err(Progress::Abort) };
        tracing::debug!(peer = %self.peer, "the server closed in the middle of a response: requesting the rest");
        records.set_track(track);
        // Bytes that were not written yet are made again.
        self.output = Output::default();
        let identity = self.protection.as_mut().and_then(Protection::replace);
        let (number, state) = (context.number, resume.state());
        let (link, written) = (link.clone(), self.written);
        let protection = Protection::resume(link, number, state, written, None, identity, &mut records);
        self.protection = Some(protection);
        self.stage = Stage::Resume(Box::new((resume, *records)));
        self.moved = now;
        Ok(())
    }

    /// Takes the agent's answer to a record.
    pub(crate) fn stored(&mut self, ticket: u64, outcome: StoreOutcome) {
        self.with_protection(|protection, records| protection.stored(ticket, outcome, records));
    }

    /// Takes what the agent knows of the connection.
    pub(crate) fn identify(&mut self, identity: Identity) {
        self.protection.iter_mut().for_each(|protection| protection.identify(identity));
    }

    /// Registers the connection at an agent that has started.
    pub(crate) fn register(&mut self) {
        self.with_protection(|protection, records| protection.register(records));
    }

    /// The connection to the agent is lost.
    pub(crate) fn lose_agent(&mut self) {
        self.with_protection(|protection, records| protection.lose_agent(records));
    }

    pub(super) fn with_protection(&mut self, act: impl FnOnce(&mut Protection, &mut Records)) {
        let records = match &mut self.stage {
            Stage::Open(open) | Stage::Closing { open: Some(open), .. } => open.channel.records_mut(),
            Stage::Resume(resume) => Some(&mut resume.1),
            _ => None,
        };
        if let (Some(protection), Some(records)) = (&mut self.protection, records) {
            act(protection, records);
        }
    }

    /// Sets the time of the next timer check: once after an event, and again while the protection
    /// waits for a timer.
    pub(super) fn set_look(&mut self, now: Instant, is_look: bool) {
        let retry = match &self.stage {
            Stage::Resume(resume) => resume.0.retry_at(),
            Stage::Open(open) => open.retry_at(),
            _ => None,
        };
        let is_interrupted = matches!(&self.stage, Stage::Open(open) if open.is_interrupted);
        let protection = self.protection.as_ref();
        let look = protection.filter(|protection| !is_look || is_interrupted || protection.is_busy());
        let look = look.and_then(|protection| protection.look_at(now));
        // The earlier of both times, because an earlier event may still wait for the former.
        self.look_at = [self.look_at, retry, look].into_iter().flatten().min();
    }

    /// Makes the rest of a state's responses and writes it.
    pub(super) fn resume(&mut self, context: &Context<'_>, now: Instant) -> io::Result<bool> {
        let Stage::Resume(stage) = &mut self.stage else { return Ok(false) };
        let (resume, records) = &mut **stage;
        let resumed = resume.turn(context, &mut self.output, records, (self.peer, self.local), now);
        if let Some(protection) = &mut self.protection {
            protection.send(records);
        }
        match resumed {
            Resumed::Waits => return Ok(false),
            Resumed::Moved => {}
            Resumed::Refused => {
                self.protection.iter_mut().for_each(Protection::reset);
                return Err(ErrorKind::ConnectionAborted.into());
            }
            Resumed::Done => {
                let closing = Stage::Closing { is_shut: false, discarded: 0, open: None };
                let Stage::Resume(stage) = std::mem::replace(&mut self.stage, closing) else {
                    return Ok(false);
                };
                let (resume, mut records) = *stage;
                let http = &resume.state().http;
                let closes = http.responses.last().is_some_and(|last| last.close)
                    || http.client_fin && http.requests.is_empty();
                let ended = http.client_fin;
                let data = resume.finish(&mut records);
                let mut open = Open::new(Channel::Records(Box::new(records)), self.peer, context.forwarded);
                (open.data, open.client_ended) = (data, ended);
                self.stage = Stage::Open(Box::new(open));
                self.since = now;
                if closes {
                    // The state ends with a close_notify.
                    self.close(now);
                }
            }
        }
        self.moved = now;
        Ok(true)
    }

    /// Starts the protection of a connection after its handshake.
    pub(super) fn protect(&mut self, context: &Context<'_>, channel: &mut Channel) {
        let Some(link) = context.link.filter(|link| link.is_attached()) else {
            if channel.records().is_some() {
                context.counters.count_unprotected("no_agent");
            }
            return;
        };
        let tuple = Tuple { client: self.peer, service: self.local };
        match channel.records_mut() {
            Some(records) => {
                self.protection = Some(Protection::start(link.clone(), context.number, tuple, records));
            }
            None => self.leave_unprotected(context),
        }
    }

    /// Counts the connection as one that ends with its replica.
    pub(super) fn leave_unprotected(&self, context: &Context<'_>) {
        let tuple = Tuple { client: self.peer, service: self.local };
        context.link.iter().for_each(|link| {
            link.send(&Request::Unprotected(tuple, Reason::Tls));
        });
    }

    /// Continues a response that the server has cut, once all data of the client is stored. `None`
    /// if no response was cut; otherwise whether anything changed.
    pub(super) fn continue_response(&mut self, context: &Context<'_>, now: Instant) -> Option<bool> {
        let Stage::Open(open) = &self.stage else { return None };
        if !open.is_interrupted {
            return None;
        }
        let is_active = self.protection.as_ref().is_some_and(Protection::is_active);
        let records = open.channel.records().filter(|_| is_active);
        let state =
            self.protection.as_ref().zip(records).map(|(protection, records)| protection.movable(records));
        match state {
            Some(None) => return Some(false),
            Some(Some(state)) => {
                if self.repeat(context, state, now).is_err() {
                    self.abort(now);
                }
            }
            None => self.abort(now),
        }
        Some(true)
    }
}
