//! The receiver's loop: requests a stream, acknowledges it, logs what arrived, and may forward the
//! content.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::journal::Journal;
use crate::receiver::Receiver;
use crate::time::{MILLISECOND, SECOND};
use crate::wire::{CONTROL, Cookie, Feedback, Message};
use crate::{Nanos, now};

/// Interval and largest number of repeated hellos.
const AGAIN: Nanos = 500 * MILLISECOND;
const HELLOS: u32 = 20;
/// Interval of repeated reports while nothing arrives, which show the sender that the receiver is
/// alive.
const ALIVE: Nanos = 2 * SECOND;
/// A stream without packets for this time has ended.
const SILENCE: Nanos = 30 * SECOND;
/// Interval of checks whether the receiver should stop.
const TICK: Nanos = SECOND / 4;
const BATCH: usize = 64;

/// Settings of a receiver.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The server.
    pub from: SocketAddr,
    /// When to report.
    pub feedback: Feedback,
    /// Destination of the content, one datagram for each received one.
    pub forward: Option<SocketAddr>,
}

/// A stream being received.
#[derive(Debug)]
pub struct Stream {
    socket: UdpSocket,
    forward: Option<UdpSocket>,
    feedback: Feedback,
    cookie: Cookie,
    receiver: Option<Receiver>,
    journal: Journal,
    /// When the last hello or report was sent, and when the last packet arrived.
    last_sent: Nanos,
    last_packet: Nanos,
    hellos: u32,
    room: Vec<u8>,
}

impl Stream {
    /// Requests a stream.
    ///
    /// # Errors
    /// There is no route to the server or to the content's destination.
    pub fn new(options: &Options, journal: Journal) -> anyhow::Result<Stream> {
        let connected = |to: SocketAddr| {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).and_then(|socket| socket.connect(to).map(|()| socket));
            socket.with_context(|| format!("cannot open a socket to {to}"))
        };
        let socket = connected(options.from)?;
        socket.set_nonblocking(true)?;
        let forward = options.forward.map(connected).transpose()?;
        let at = now();
        let mut stream = Stream {
            socket,
            forward,
            feedback: options.feedback,
            cookie: Cookie::default(),
            receiver: None,
            journal,
            last_sent: at,
            last_packet: at,
            hellos: 0,
            room: vec![0; 65_535],
        };
        stream.hello(at)?;
        Ok(stream)
    }

    /// Receives until `ends` returns true or the server stops sending. Returns whether anything
    /// arrived.
    ///
    /// # Errors
    /// The server does not answer; a socket or the journal fails.
    pub fn run(&mut self, mut ends: impl FnMut() -> bool) -> anyhow::Result<bool> {
        while !ends() && now() < self.last_packet + SILENCE {
            self.wait()?;
            self.take()?;
            self.send_due()?;
        }
        // Three copies, because packets can be lost; without any of them the server times out.
        for _ in 0..3 {
            self.send(&Message::Bye(self.cookie))?;
        }
        let Some(receiver) = &self.receiver else { return Ok(false) };
        self.journal.write(now(), None, &receiver.end())?;
        Ok(receiver.began())
    }

    fn wait(&self) -> io::Result<()> {
        let at = now();
        let due = self.receiver.as_ref().and_then(Receiver::due).unwrap_or(Nanos::MAX);
        let due = due.min(at + TICK).saturating_sub(at);
        let timeout = Timespec { tv_sec: 0, tv_nsec: due as i64 };
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => Ok(()),
            done => Ok(done.map(drop)?),
        }
    }

    fn take(&mut self) -> anyhow::Result<()> {
        for _ in 0..BATCH {
            let bytes = match self.socket.recv(&mut self.room) {
                Ok(bytes) => bytes,
                // ICMP refused it: the server is not up yet, or no longer.
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused) =>
                {
                    break;
                }
                Err(e) => return Err(e).context("receiving"),
            };
            match Message::parse(&self.room[..bytes]) {
                Ok(Message::Cookie(cookie)) if self.receiver.is_none() => {
                    self.cookie = cookie;
                    self.receiver = Some(Receiver::new(cookie, self.feedback));
                    self.hello(now())?;
                }
                Ok(Message::Data { layer, number, sent, content }) => {
                    let Some(receiver) = &mut self.receiver else { continue };
                    let at = now();
                    self.last_packet = at;
                    let (new, line) = receiver.data(at, layer, number, sent, bytes);
                    if let Some(line) = line {
                        self.journal.write(at, None, &line)?;
                    }
                    if let Some(forward) = self.forward.as_ref().filter(|_| new) {
                        // A player that is not running is no reason to stop.
                        let _ = forward.send(content);
                    }
                    self.report(at)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn report(&mut self, at: Nanos) -> anyhow::Result<()> {
        let Some(report) = self.receiver.as_mut().and_then(|receiver| receiver.report(at)) else {
            return Ok(());
        };
        self.last_sent = at;
        self.send(&Message::Report(report))
    }

    /// Sends what is due: a report, a journal line, a hello.
    fn send_due(&mut self) -> anyhow::Result<()> {
        let at = now();
        self.report(at)?;
        if let Some(line) = self.receiver.as_mut().and_then(|receiver| receiver.line(at)) {
            self.journal.write(at, None, &line)?;
        }
        if !self.receiver.as_ref().is_some_and(Receiver::began) {
            if at >= self.last_sent + AGAIN {
                self.hello(at)?;
            }
        } else if at >= self.last_sent + ALIVE + Nanos::from(self.feedback.delay_ms) * MILLISECOND
            && let Some(report) = self.receiver.as_mut().and_then(|receiver| receiver.again(at))
        {
            self.last_sent = at;
            self.send(&Message::Report(report))?;
        }
        Ok(())
    }

    fn hello(&mut self, at: Nanos) -> anyhow::Result<()> {
        if self.hellos == HELLOS {
            bail!("{} does not answer", self.socket.peer_addr()?);
        }
        self.hellos += 1;
        self.last_sent = at;
        self.send(&Message::Hello { feedback: self.feedback, cookie: self.cookie })
    }

    /// Lost and refused datagrams are repeated later.
    fn send(&self, message: &Message<'_>) -> anyhow::Result<()> {
        let mut datagram = [0; CONTROL];
        let bytes = message.write(&mut datagram);
        match self.socket.send(&datagram[..bytes]) {
            Err(e) if !matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused) => {
                Err(e).context("sending")
            }
            _ => Ok(()),
        }
    }
}
