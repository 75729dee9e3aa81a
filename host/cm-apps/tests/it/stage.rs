//! A server and receivers in threads of an unprivileged user, over the real kernel's calls.

use std::io::{self, Write};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use libcm::Client;
use rivulet_bpf::cm::CallOptions;
use rivulet_cm_apps::journal::Journal;
use rivulet_cm_apps::server::{Content, Options, Server};
use rivulet_cm_apps::wire::{CONTROL, Cookie, Feedback, Message, Report};
use rivulet_pktio::testing::PATIENCE;

use crate::rig::{ALICE, Rig};

pub const DATAGRAM_BYTES: u32 = 1000;

/// Lines written so far.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    pub fn journal(&self) -> Journal {
        Journal::new(Box::new(self.clone()))
    }

    /// The lines of one event.
    pub fn of(&self, event: &str) -> Vec<serde_json::Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.filter(|line| line["event"] == event).collect()
    }

    /// The only line of this event.
    pub fn one(&self, event: &str) -> serde_json::Value {
        let mut found = self.of(event);
        assert_eq!(found.len(), 1, "{event}: {found:?}");
        found.remove(0)
    }
}

pub struct Stage {
    pub rig: Rig,
    client: Option<Client>,
    pub lines: Lines,
}

impl Stage {
    /// `None`, with a line that says so, where the machine lacks a feature. Grants and missing
    /// feedback never expire, because tests count.
    pub fn new() -> Option<Stage> {
        let options = CallOptions { grant_life: 1 << 50, silence: 1 << 50, ..CallOptions::default() };
        let rig = Rig::new(options)?;
        let client = Some(rig.client(ALICE).0);
        Some(Stage { rig, client, lines: Lines::default() })
    }

    /// Runs a server while `f` runs with its address, in threads of the user.
    pub fn serve<T: Send>(
        &mut self,
        content: impl FnOnce() -> Content + Send,
        f: impl FnOnce(SocketAddr) -> T + Send,
    ) -> T {
        let (client, lines) = (self.client.take().unwrap(), &self.lines);
        self.rig.as_user(ALICE, move || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let at = socket.local_addr().unwrap();
            let options = Options { bytes: DATAGRAM_BYTES, receivers: 2, patience: 2_000_000_000 };
            let mut server = Server::new(socket, client, content(), options, lines.journal()).unwrap();
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                let running = scope.spawn(|| server.run(|| stop.load(Ordering::Acquire)));
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(at)));
                stop.store(true, Ordering::Release);
                running.join().unwrap().unwrap();
                done.unwrap_or_else(|e| std::panic::resume_unwind(e))
            })
        })
    }
}

/// A receiver driven by the test, message by message.
pub struct Hand {
    pub socket: UdpSocket,
    pub cookie: Cookie,
}

impl Hand {
    pub fn new(server: SocketAddr) -> Hand {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(server).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Hand { socket, cookie: Cookie::default() }
    }

    pub fn send(&self, message: &Message<'_>) {
        let mut datagram = [0; CONTROL];
        let bytes = message.write(&mut datagram);
        self.socket.send(&datagram[..bytes]).unwrap();
    }

    pub fn hello(&self, every: u16, delay_ms: u16) {
        self.send(&Message::Hello { feedback: Feedback { every, delay_ms }, cookie: self.cookie });
    }

    /// The next datagram and its length.
    pub fn receive<T>(&self, f: impl FnOnce(Message<'_>, usize) -> T) -> T {
        let mut datagram = [0; 2000];
        let bytes = loop {
            match self.socket.recv(&mut datagram) {
                // The process was stopped or frozen in the call.
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                received => break received.expect("a datagram"),
            }
        };
        f(Message::parse(&datagram[..bytes]).unwrap(), bytes)
    }

    /// Gets the stream's cookie and opens the stream.
    pub fn admitted(server: SocketAddr, every: u16, delay_ms: u16) -> Hand {
        let mut hand = Hand::new(server);
        hand.hello(every, delay_ms);
        hand.cookie = hand.receive(|message, _| match message {
            Message::Cookie(cookie) => cookie,
            other => panic!("{other:?}"),
        });
        hand.hello(every, delay_ms);
        hand
    }

    /// Numbers and layers of the next `count` packets.
    pub fn packets(&self, count: usize) -> Vec<(u64, u8)> {
        let one = |message: Message<'_>, bytes| match message {
            Message::Data { layer, number, .. } => {
                assert_eq!(bytes, DATAGRAM_BYTES as usize);
                (number, layer)
            }
            other => panic!("{other:?}"),
        };
        (0..count).map(|_| self.receive(one)).collect()
    }

    pub fn report(&self, highest: u64, packets: u64) {
        let bytes = packets * u64::from(DATAGRAM_BYTES);
        self.send(&Message::Report(Report { cookie: self.cookie, highest, packets, bytes, held: 0 }));
    }
}
