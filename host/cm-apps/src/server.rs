//! All streams of a server: one unconnected socket, whose datagrams the kernel counts for the flow that each is of, and one ring.

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

/// Datagrams, and events, that are taken before the others' turn.
const BATCH: usize = 64;
/// Octets of a datagram of streams.
const LARGEST: usize = 65_535;
/// It looks for its end so often.
const TICK: Nanos = SECOND / 4;

/// What is streamed.
#[derive(Debug)]
pub enum Content {
    /// Layers, by request and callback.
    Alf(Layers),
    /// Layers, by rate callback.
    Clocked(Layers, Clock),
    /// What somebody sends to this socket.
    Audio {
        /// The socket.
        input: UdpSocket,
        /// Datagrams in the application's buffer.
        buffer: usize,
        /// Which of them goes when it is full.
        drop: audio::Drop,
    },
}

/// How a server serves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Octets of the largest datagrams, if the path takes them: headers of ours and content.
    pub octets: u32,
    /// Most receivers at the same time.
    pub receivers: usize,
    /// A receiver that is silent for so long is gone, ns.
    pub patience: Nanos,
}

/// The usual [`Options::patience`].
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
    /// The socket took no more.
    blocked: bool,
    room: Vec<u8>,
}

impl Server {
    /// On a bound socket.
    ///
    /// # Errors
    /// The socket cannot be set up, or the kernel gives no random octets.
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

    /// Serves until it is told to end.
    ///
    /// # Errors
    /// Its sockets', the ring's or the journal's: those of one stream end that stream alone.
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
        self.hear()?;
        self.listen()?;
        if std::mem::take(&mut self.blocked) {
            self.each(|server, flow| server.with(flow, |session, client, _| Ok(session.ask(client)?)))?;
        }
        self.events()?;
        let at = now();
        self.each(|server, flow| {
            if server.sessions.get(&flow).is_some_and(|session| session.gone(at)) {
                return server.end(flow, "nothing is heard of the receiver");
            }
            server.with(flow, |session, client, journal| {
                session.tick(at);
                session.give_up(at, client, journal)?;
                Ok(session.ask(client)?)
            })
        })
    }

    /// Until something happens, or is due.
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

    /// What the kernel has to tell: grants, and shares that changed.
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

    /// What receivers say.
    fn hear(&mut self) -> anyhow::Result<()> {
        let mut datagram = [0; CONTROL + 1];
        for _ in 0..BATCH {
            let (octets, from) = match self.socket.recv_from(&mut datagram) {
                Ok(received) => received,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // What a receiver that is gone has its host answer.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(e) => return Err(e).context("receiving"),
            };
            // Anybody may send anything here; what is no message is nobody's.
            let Ok(message) = Message::parse(&datagram[..octets]) else { continue };
            match message {
                Message::Hello { feedback, cookie } => self.greet(from, feedback, cookie)?,
                Message::Report(report) => {
                    let Some(&flow) = self.receivers.get(&from) else { continue };
                    self.learn(flow, &report)?;
                }
                Message::Bye(cookie) => {
                    let Some(&flow) = self.receivers.get(&from) else { continue };
                    if self.sessions.get(&flow).is_some_and(|session| session.knows(&cookie)) {
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
            // Between one part and the next there are grants, as there would have been between reports.
            self.events()?;
        }
        self.with(flow, |session, client, journal| session.write_share(now(), client, journal))
    }

    /// Somebody wants a stream.
    fn greet(&mut self, from: SocketAddr, feedback: Feedback, cookie: Cookie) -> anyhow::Result<()> {
        if self.receivers.contains_key(&from) {
            return Ok(());
        }
        if !self.admission.admits(from, &cookie) {
            let mut answer = [0; CONTROL];
            let octets = Message::Cookie(self.admission.cookie(from)).write(&mut answer);
            // Who does not hear it asks again.
            let _ = self.socket.send_to(&answer[..octets], from);
            return Ok(());
        }
        if self.receivers.len() >= self.options.receivers {
            eprintln!("{from} is not served: there are {} receivers", self.receivers.len());
            return Ok(());
        }
        if let Err(e) = self.open(from, feedback, cookie) {
            eprintln!("{from} is not served: {e:#}");
        }
        Ok(())
    }

    fn open(&mut self, from: SocketAddr, feedback: Feedback, cookie: Cookie) -> anyhow::Result<()> {
        let (key, path) = path::describe(&self.socket, from).context("looking for the way there")?;
        let mtu = path.min(self.options.octets);
        anyhow::ensure!(mtu as usize > HEADER, "the path takes {path} octets");
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

    /// What the source of audio sends goes to all.
    fn listen(&mut self) -> anyhow::Result<()> {
        let Server { content, room, sessions, .. } = self;
        let Content::Audio { input, .. } = content else { return Ok(()) };
        for _ in 0..BATCH {
            let octets = match input.recv(room) {
                Ok(octets) => octets,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e).context("receiving from the source"),
            };
            let at = now();
            for session in sessions.values_mut() {
                session.offer(at, &room[..octets]);
            }
        }
        self.each(|server, flow| server.with(flow, |session, client, _| Ok(session.ask(client)?)))
    }

    /// Something for each stream, of which some may end by it.
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

    /// Something of one stream; an error ends that stream.
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
        eprintln!("a stream ends: {e:#}");
        self.end(flow, "an error")
    }

    fn end(&mut self, flow: FlowId, why: &'static str) -> anyhow::Result<()> {
        self.receivers.retain(|_, of| *of != flow);
        let Some(session) = self.sessions.remove(&flow) else { return Ok(()) };
        Ok(session.close(now(), &mut self.client, &mut self.journal, why)?)
    }
}
