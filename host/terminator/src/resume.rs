//! Makes the rest of the responses of a connection that continues from a state, either another
//! replica's or this one's after its server died in the middle of a response.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use rivulet_tls::{Answers, PlanError, Resumption, Source, State};

use crate::buffer::Output;
use crate::channel::Records;
use crate::exchange::MAX_OUTPUT_BYTES;
use crate::head::{Forwarded, find_end, forward_request};
use crate::relay::{Context, PATIENCE, RETRY, Server, connect_server};

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resumed {
    /// Waits for the server, the client, or the time of the next attempt.
    Waits,
    /// Something changed.
    Moved,
    /// Everything is sealed; the client's next request can follow.
    Done,
    /// The rest cannot be made, so the client must be reset.
    Refused,
}

/// The response that is being requested from the server.
#[derive(Debug)]
struct Wanted {
    answers: Answers,
    /// Position of the next byte of the service's plaintext.
    at: u64,
}

/// The rest of a state's responses.
#[derive(Debug)]
pub(crate) struct Resume {
    state: State,
    resumption: Resumption,
    /// Stream offset at which `resumption` began, and the bytes that it has made since.
    begun: u64,
    made: u64,
    wanted: Option<Wanted>,
    pub(crate) server: Option<Server>,
    to_server: Output,
    /// When the server first failed since it last sent data, and the time of the next request.
    failing: Option<Instant>,
    retry_at: Option<Instant>,
}

impl Resume {
    /// For a client that has received everything before stream offset `begun`, or will receive it
    /// from the kernel.
    pub(crate) fn new(state: State, begun: u64) -> Result<Self, PlanError> {
        let resumption = Resumption::begin(&state, begun as u32)?;
        Ok(Self {
            state,
            resumption,
            begun,
            made: 0,
            wanted: None,
            server: None,
            to_server: Output::default(),
            failing: None,
            retry_at: None,
        })
    }

    /// Stream offset at which the state begins.
    pub(crate) fn state_offset(&self) -> u64 {
        self.begun.wrapping_sub(self.resumption.offset())
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// The time of the next request to the server.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Sets the writer's position when all responses are made; returns the client's data that has
    /// no response yet.
    pub(crate) fn finish(self, records: &mut Records) -> Vec<u8> {
        let offset = self.begun + self.made;
        records.continue_at(self.resumption.into_writer().position(), offset);
        self.state.http.requests
    }

    pub(crate) fn turn(
        &mut self,
        context: &Context<'_>,
        output: &mut Output,
        records: &mut Records,
        ends: (SocketAddr, SocketAddr),
        now: Instant,
    ) -> Resumed {
        if output.len() >= MAX_OUTPUT_BYTES || self.retry_at.is_some_and(|at| now < at) {
            return Resumed::Waits;
        }
        self.retry_at = None;
        let before = output.bytes().len();
        let step = match self.wanted {
            Some(_) => self.read(output, records),
            None => self.next(context, output, records, ends),
        };
        self.made += (output.bytes().len() - before) as u64;
        match step {
            Ok(resumed) => {
                if resumed == Resumed::Moved {
                    self.failing = None;
                }
                resumed
            }
            Err(Stop::Refused(why)) => {
                tracing::info!(client = %ends.0, "a connection cannot be continued: {why}");
                Resumed::Refused
            }
            Err(Stop::Server(error)) => {
                let since = *self.failing.get_or_insert(now);
                if now.saturating_duration_since(since) > PATIENCE {
                    tracing::info!(client = %ends.0, %error, "a connection cannot be continued: no server");
                    return Resumed::Refused;
                }
                // Begins again with the record that has the next byte.
                let begun = self.begun + self.made;
                match Self::new(self.state.clone(), begun) {
                    Ok(again) => *self = Self { failing: Some(since), retry_at: Some(now + RETRY), ..again },
                    Err(_) => return Resumed::Refused,
                }
                Resumed::Waits
            }
        }
    }

    /// Begins the next response.
    fn next(
        &mut self,
        context: &Context<'_>,
        output: &mut Output,
        records: &mut Records,
        (peer, local): (SocketAddr, SocketAddr),
    ) -> Result<Resumed, Stop> {
        let Some(needed) = self.resumption.next(output.bytes()).map_err(refused)? else {
            return Ok(Resumed::Done);
        };
        let responses = &self.state.http.responses;
        let before: u64 = responses[..needed.response].iter().map(|response| response.length).sum();
        let mut at = u64::from(self.state.http.response_at) + before + needed.from;
        let source = Source::of(&responses[needed.response], needed.from).map_err(refused)?;
        if let Some(track) = records.tracked_mut() {
            track.keep(at, source.stored);
        }
        at += source.stored.len() as u64;
        self.resumption.write(source.stored, output.bytes()).map_err(refused)?;
        let answers = source.answers();
        if answers.missing() > 0 {
            let mut server =
                connect_server(context, peer, local, self.to_server.bytes()).map_err(Stop::Server)?;
            forward_all(&source.request, peer, context.forwarded, self.to_server.bytes())
                .ok_or(Stop::Refused("its request is malformed".into()))?;
            server.socket.write(&mut self.to_server).map_err(Stop::Server)?;
            self.server = Some(server);
            self.wanted = Some(Wanted { answers, at });
        }
        Ok(Resumed::Moved)
    }

    /// Passes on the server's bytes.
    fn read(&mut self, output: &mut Output, records: &mut Records) -> Result<Resumed, Stop> {
        let (Some(wanted), Some(server)) = (&mut self.wanted, &mut self.server) else {
            return Err(Stop::Server(io::ErrorKind::NotConnected.into()));
        };
        let mut moved = server.socket.write(&mut self.to_server).map_err(Stop::Server)? > 0;
        let mut plaintext = Vec::new();
        match server.socket.read(&mut server.input).map_err(Stop::Server)? {
            Some(0) => return Err(Stop::Server(io::ErrorKind::UnexpectedEof.into())),
            Some(_) => {
                wanted.answers.read(server.input.data(), &mut plaintext).map_err(refused)?;
                server.input.consume(server.input.len());
                moved = true;
            }
            None => {}
        }
        if !plaintext.is_empty() {
            if let Some(track) = records.tracked_mut() {
                track.keep(wanted.at, &plaintext);
            }
            wanted.at += plaintext.len() as u64;
            self.resumption.write(&plaintext, output.bytes()).map_err(refused)?;
        }
        if wanted.answers.missing() == 0 {
            (self.wanted, self.server, self.to_server) = (None, None, Output::default());
        }
        Ok(if moved { Resumed::Moved } else { Resumed::Waits })
    }
}

/// Why a turn ended early.
enum Stop {
    Server(io::Error),
    Refused(String),
}

fn refused(why: impl std::fmt::Display) -> Stop {
    Stop::Refused(why.to_string())
}

/// Writes the heads of these requests in the form in which the server gets clients' requests.
fn forward_all(mut requests: &[u8], peer: SocketAddr, forwarded: Forwarded, out: &mut Vec<u8>) -> Option<()> {
    while !requests.is_empty() {
        let length = find_end(requests, &mut 0)?;
        forward_request(&requests[..length], peer, (forwarded, None), out).ok()?;
        requests = &requests[length..];
    }
    Some(())
}
