//! A non-blocking TCP socket and its readiness.

use std::io::{self, ErrorKind};
use std::net::TcpStream;

use rustix::event::epoll::EventFlags;

use crate::buffer::{Input, Output};

/// The events that a socket is registered for. Edge-triggered: readiness is kept in [`Socket`] until a call would block.
pub(crate) const EVENTS: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

/// A non-blocking socket, and whether calls may succeed.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) stream: TcpStream,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The connection was reset, or both directions have ended.
    pub(crate) failed: bool,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, readable: true, writable: true, failed: false }
    }

    pub(crate) fn set_ready(&mut self, events: EventFlags) {
        let failed = events.intersects(EventFlags::ERR | EventFlags::HUP);
        self.failed |= failed;
        self.readable |= failed || events.intersects(EventFlags::IN | EventFlags::RDHUP);
        self.writable |= failed || events.contains(EventFlags::OUT);
    }

    /// Returns `None` if there is nothing to read now, and 0 at the end of the stream.
    pub(crate) fn read(&mut self, input: &mut Input) -> io::Result<Option<usize>> {
        if !self.readable || input.is_full() {
            return Ok(None);
        }
        settle(input.read_from(&self.stream), &mut self.readable)
    }

    /// Returns the number of bytes that could be written now.
    pub(crate) fn write(&mut self, output: &mut Output) -> io::Result<usize> {
        self.write_some(output, u64::MAX)
    }

    /// Like [`write`](Self::write), with at most `most` bytes.
    pub(crate) fn write_some(&mut self, output: &mut Output, most: u64) -> io::Result<usize> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        if !self.writable || output.is_empty() || most == 0 {
            return Ok(0);
        }
        let written = settle(output.write_to(&mut self.stream, most), &mut self.writable)?;
        Ok(written.unwrap_or(0))
    }
}

fn settle(result: io::Result<usize>, ready: &mut bool) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(e) if e.kind() == ErrorKind::WouldBlock => {
            *ready = false;
            Ok(None)
        }
        Err(e) if e.kind() == ErrorKind::Interrupted => Ok(None),
        Err(e) => Err(e),
    }
}
