//! All streams of a server, on one unconnected socket and one event ring; the kernel counts the
//! datagrams of each flow.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use anyhow::Context;
use libcm::{Client, Event, FlowId, path};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::admission::Admission;
use crate::audio::{self, Audio};
use crate::journal::Journal;
use crate::layers::{Alf, Clock, Clocked, Layers};
use crate::session::{Sent, Session};
use crate::source::Source;
use crate::time::SECOND;
use crate::wire::{CONTROL, Cookie, Feedback, HEADER, Message};
use crate::{Nanos, now};

/// Datagrams or events handled before the other streams have their turn.
const BATCH: usize = 64;
/// Bytes of the largest datagram of a stream.
const LARGEST: usize = 65_535;
/// Interval of checks whether the server should stop.
const TICK: Nanos = SECOND / 4;

/// Content of the streams.
#[derive(Debug)]
pub enum Content {
    /// Layers, by request and callback.
    Alf(Layers),
    /// Layers, by rate callback.
    Clocked(Layers, Clock),
    /// Datagrams that a source sends to this socket.
    Audio {
        /// The socket.
        input: UdpSocket,
        /// Size of the application's buffer in datagrams.
        buffer: usize,
        /// Which datagram a full buffer drops.
        drop: audio::Drop,
    },
}

/// Settings of a server.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of the largest datagrams, header and content, if the path allows them.
    pub bytes: u32,
    /// Largest number of receivers at the same time.
    pub receivers: usize,
    /// A receiver that sends nothing for this time (ns) is removed.
    pub patience: Nanos,
}

/// Default of [`Options::patience`].
pub const PATIENCE: Nanos = 10 * SECOND;

/// A server.
#[derive(Debug)]
pub struct Server {
    socket: UdpSocket,
    client: Client,
    content: Content,
    options: Options,
    admission: Admission,
    journal: Journal,
    sessions: BTreeMap<FlowId, Session>,
    receivers: BTreeMap<SocketAddr, FlowId>,
    /// The socket's send buffer is full.
    blocked: bool,
    room: Vec<u8>,
}

impl Server {
    /// Creates a server on a bound socket.
    ///
    /// # Errors
    /// The socket cannot be set up, or the kernel provides no random bytes.
    pub fn new(
        socket: UdpSocket,
        client: Client,
        content: Content,
        options: Options,
        journal: Journal,
    ) -> io::Result<Server> {
        socket.set_nonblocking(true)?;
        if let Content::Audio { input, .. } = &content {
            input.set_nonblocking(true)?;
        }
        Ok(Server {
            socket,
            client,
            content,
            options,
            admission: Admission::new()?,
            journal,
            sessions: BTreeMap::new(),
            receivers: BTreeMap::new(),
            blocked: false,
            room: vec![0; LARGEST],
        })
    }

    /// Serves until `ends` returns true.
    ///
    /// # Errors
    /// An error of a socket, the event ring or the journal. An error of one stream ends only that
    /// stream.
    pub fn run(&mut self, mut ends: impl FnMut() -> bool) -> anyhow::Result<()> {
        while !ends() {
            self.turn()?;
        }
        let at = now();
        while let Some((_, session)) = self.sessions.pop_first() {
            session.close(at, &mut self.client, &mut self.journal, "the server ends")?;
        }
        self.receivers.clear();
        Ok(())
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        self.wait()?;
        self.receive_messages()?;
        self.listen()?;
        if std::mem::take(&mut self.blocked) {
            self.each(|server, flow| server.with(flow, |session, client, _| Ok(session.ask(client)?)))?;
        }
        self.events()?;
        let at = now();
        self.each(|server, flow| {
            if server.sessions.get(&flow).is_some_and(|session| session.timed_out(at)) {
                return server.end(flow, "the receiver does not answer");
            }
            server.with(flow, |session, client, journal| {
                session.tick(at);
                session.give_up(at, client, journal)?;
                Ok(session.ask(client)?)
            })
        })
    }

    /// Waits for an event or the next due time.
    fn wait(&self) -> io::Result<()> {
        let at = now();
        let due = self.sessions.values().map(Session::due).fold(at + TICK, Nanos::min).saturating_sub(at);
        let timeout = Timespec { tv_sec: (due / SECOND) as i64, tv_nsec: (due % SECOND) as i64 };
        let ring = self.client.as_fd();
        let socket = if self.blocked { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let (input, count) = match &self.content {
            Content::Audio { input, .. } => (input, 3),
            _ => (&self.socket, 2),
        };
        let of = |socket, wanted| PollFd::new(socket, wanted);
        let mut fds = [of(&self.socket, socket), PollFd::new(&ring, PollFlags::IN), of(input, PollFlags::IN)];
        match poll(&mut fds[..count], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => Ok(()),
            done => Ok(done.map(drop)?),
        }
    }

    /// Handles events of the kernel: grants and changed shares.
    fn events(&mut self) -> anyhow::Result<()> {
        for _ in 0..BATCH {
            let Some(event) = self.client.poll()? else { break };
            match event {
                Event::Update(flow, status) => {
                    let at = now();
                    self.with(flow, |session, client, _| {
                        session.changed(at, client, status)?;
                        Ok(session.ask(client)?)
                    })?;
                }
                Event::Send(flow) => {
                    let Some(session) = self.sessions.get_mut(&flow) else { continue };
                    let (client, journal) = (&mut self.client, &mut self.journal);
                    match session.granted(now(), client, &self.socket, journal, &mut self.room) {
                        Ok(Sent::Done) => {}
                        Ok(Sent::Blocked) => self.blocked = true,
                        Err(e) => self.fail(flow, &e)?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Handles messages of receivers.
    fn receive_messages(&mut self) -> anyhow::Result<()> {
        let mut datagram = [0; CONTROL + 1];
        for _ in 0..BATCH {
            let (bytes, from) = match self.socket.recv_from(&mut datagram) {
                Ok(received) => received,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // An ICMP error from the host of a receiver that has ended.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(e) => return Err(e).context("receiving"),
            };
            // Anyone can send here; ignore malformed messages.
            let Ok(message) = Message::parse(&datagram[..bytes]) else { continue };
            match message {
                Message::Hello { feedback, cookie } => self.greet(from, feedback, cookie)?,
                Message::Report(report) => {
                    let Some(&flow) = self.receivers.get(&from) else { continue };
                    self.learn(flow, &report)?;
                }
                Message::Bye(cookie) => {
                    let Some(&flow) = self.receivers.get(&from) else { continue };
                    if self.sessions.get(&flow).is_some_and(|session| session.has_cookie(&cookie)) {
                        self.end(flow, "the receiver ends")?;
                    }
                }
                Message::Cookie(_) | Message::Data { .. } => {}
            }
        }
        Ok(())
    }

    fn learn(&mut self, flow: FlowId, report: &crate::wire::Report) -> anyhow::Result<()> {
        let Some(session) = self.sessions.get_mut(&flow) else { return Ok(()) };
        let mtu = session.mtu();
        let Some(mut learnt) = session.report(now(), report) else { return Ok(()) };
        while let Some(update) = learnt.part(mtu) {
            self.with(flow, |_, client, _| Ok(client.update(flow, &update)?))?;
            // Take grants between two parts, as there would have been between two reports.
            self.events()?;
        }
        self.with(flow, |session, client, journal| session.write_share(now(), client, journal))
    }

    /// Handles a receiver's hello.
    fn greet(&mut self, from: SocketAddr, feedback: Feedback, cookie: Cookie) -> anyhow::Result<()> {
        if self.receivers.contains_key(&from) {
            return Ok(());
        }
        if !self.admission.admits(from, &cookie) {
            let mut answer = [0; CONTROL];
            let bytes = Message::Cookie(self.admission.cookie(from)).write(&mut answer);
            // A receiver that does not get the cookie repeats its hello.
            let _ = self.socket.send_to(&answer[..bytes], from);
            return Ok(());
        }
        if self.receivers.len() >= self.options.receivers {
            eprintln!("refused {from}: the limit of {} receivers is reached", self.receivers.len());
            return Ok(());
        }
        if let Err(e) = self.open(from, feedback, cookie) {
            eprintln!("refused {from}: {e:#}");
        }
        Ok(())
    }

    fn open(&mut self, from: SocketAddr, feedback: Feedback, cookie: Cookie) -> anyhow::Result<()> {
        let (key, path) = path::describe(&self.socket, from).context("looking up the route")?;
        let mtu = path.min(self.options.bytes);
        anyhow::ensure!(mtu as usize > HEADER, "the path takes only {path} bytes");
        let flow = self.client.open(&key, mtu)?;
        let at = now();
        let source: Box<dyn Source> = match &self.content {
            Content::Alf(layers) => Box::new(Alf::new(layers.clone())),
            Content::Clocked(layers, clock) => {
                Box::new(Clocked::new(layers.clone(), *clock, mtu as usize, at))
            }
            Content::Audio { buffer, drop, .. } => {
                Box::new(Audio::new(*buffer, *drop, mtu as usize - HEADER))
            }
        };
        let session = Session::new(at, from, (flow, mtu), (cookie, feedback), source, self.options.patience);
        self.sessions.insert(flow, session);
        self.receivers.insert(from, flow);
        self.with(flow, |session, client, journal| session.begin(at, client, journal))
    }

    /// Passes datagrams of the audio source to all streams.
    fn listen(&mut self) -> anyhow::Result<()> {
        let Server { content, room, sessions, .. } = self;
        let Content::Audio { input, .. } = content else { return Ok(()) };
        for _ in 0..BATCH {
            let bytes = match input.recv(room) {
                Ok(bytes) => bytes,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e).context("receiving from the source"),
            };
            let at = now();
            for session in sessions.values_mut() {
                session.offer(at, &room[..bytes]);
            }
        }
        self.each(|server, flow| server.with(flow, |session, client, _| Ok(session.ask(client)?)))
    }

    /// Calls `f` for each stream; streams may end during the call.
    fn each(&mut self, mut f: impl FnMut(&mut Server, FlowId) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut after = None;
        while let Some(flow) = self.following(after) {
            f(self, flow)?;
            after = Some(flow);
        }
        Ok(())
    }

    fn following(&self, after: Option<FlowId>) -> Option<FlowId> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        self.sessions.range((from, Unbounded)).next().map(|(flow, _)| *flow)
    }

    /// Calls `f` for one stream; an error ends that stream.
    fn with(
        &mut self,
        flow: FlowId,
        f: impl FnOnce(&mut Session, &mut Client, &mut Journal) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Some(session) = self.sessions.get_mut(&flow) else { return Ok(()) };
        match f(session, &mut self.client, &mut self.journal) {
            Ok(()) => Ok(()),
            Err(e) => self.fail(flow, &e),
        }
    }

    fn fail(&mut self, flow: FlowId, e: &anyhow::Error) -> anyhow::Result<()> {
        eprintln!("a stream failed: {e:#}");
        self.end(flow, "an error")
    }

    fn end(&mut self, flow: FlowId, why: &'static str) -> anyhow::Result<()> {
        self.receivers.retain(|_, of| *of != flow);
        let Some(session) = self.sessions.remove(&flow) else { return Ok(()) };
        Ok(session.close(now(), &mut self.client, &mut self.journal, why)?)
    }
}
