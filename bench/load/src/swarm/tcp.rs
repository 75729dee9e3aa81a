//! Kernel TCP clients: non-blocking sockets in one event loop.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::{Arrivals, LONGEST, Swarm, settle, wait};
use crate::report::Outcome;
use crate::response::Parser;

struct Client {
    stream: TcpStream,
    parser: Parser,
    began: Instant,
    /// Written bytes of the request.
    written: usize,
    held: bool,
}

/// Like [`super::rivulet::run`], over kernel TCP; `fast_open`: sends the request in the SYN if the kernel has
/// a cookie.
///
/// # Errors
/// Errors of creating sockets.
pub fn run(
    swarm: &Swarm,
    fast_open: bool,
    held: impl FnOnce(),
    released: &AtomicBool,
) -> anyhow::Result<Outcome> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    let mut clients: Vec<Option<Client>> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut arrivals = Arrivals::new(swarm);
    let mut outcome = Outcome { log: swarm.log.then(Vec::new), ..Outcome::default() };
    let mut buffer = vec![0; 64 * 1024];
    let mut held = Some(held);
    let mut looked = Instant::now();
    loop {
        if !swarm.hold && released.load(Ordering::Relaxed) {
            arrivals.end();
        }
        while let Some(at) = arrivals.next() {
            let opened = open(swarm, fast_open, arrivals.count).and_then(|(mut stream, written)| {
                let place = free.pop().unwrap_or(clients.len());
                let interest = Interest::READABLE | Interest::WRITABLE;
                poll.registry().register(&mut stream, Token(place), interest)?;
                Ok((place, stream, written))
            });
            match opened {
                Ok((place, stream, written)) => {
                    let parser = Parser::expecting(swarm.ask, swarm.expected.clone());
                    let client = Client { stream, parser, began: at, written, held: false };
                    if place == clients.len() {
                        clients.push(None);
                    }
                    clients[place] = Some(client);
                }
                Err(e) => {
                    let error = anyhow::Error::from(e).context("connecting");
                    settle(&mut outcome, at.elapsed(), Err(error));
                    arrivals.over += 1;
                }
            }
        }
        if arrivals.is_over() {
            if !swarm.hold || released.load(Ordering::Relaxed) {
                return Ok(outcome);
            }
            if let Some(held) = held.take() {
                held();
            }
        }
        // epoll waits for whole milliseconds.
        wait(&poll, false, arrivals.pause().unwrap_or(LONGEST));
        match poll.poll(&mut events, Some(Duration::ZERO)) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e).context("waiting for sockets"),
            _ => {}
        }
        for event in &events {
            let place = event.token().0;
            let Some(client) = clients.get_mut(place).and_then(Option::as_mut) else { continue };
            let Some(answer) = client.progress(&swarm.request, &mut buffer).transpose() else { continue };
            if client.held {
                outcome.fail(&anyhow::anyhow!("a connection ended while it was held"));
                clients[place] = None;
                free.push(place);
                continue;
            }
            let ok = answer.is_ok();
            settle(&mut outcome, client.began.elapsed(), answer);
            arrivals.over += 1;
            client.held = swarm.hold && ok;
            if !client.held {
                clients[place] = None;
                free.push(place);
            }
        }
        if looked.elapsed() > Duration::from_millis(200) {
            looked = Instant::now();
            for (place, entry) in clients.iter_mut().enumerate() {
                if entry.as_ref().is_some_and(|c| !c.held && c.began.elapsed() > swarm.timeout) {
                    let error = anyhow::anyhow!("no answer in {:?}", swarm.timeout);
                    settle(&mut outcome, swarm.timeout, Err(error));
                    arrivals.over += 1;
                    *entry = None;
                    free.push(place);
                }
            }
        }
    }
}

impl Client {
    /// Writes and reads as far as possible; returns the answer once it is complete.
    fn progress(&mut self, request: &[u8], buffer: &mut [u8]) -> anyhow::Result<Option<(u16, u64)>> {
        while let Some(rest) = request.get(self.written..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(n) => self.written += n,
                // Not connected yet.
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected) => {
                    return Ok(None);
                }
                Err(e) => return Err(e.into()),
            }
        }
        loop {
            match self.stream.read(buffer) {
                Ok(0) => anyhow::bail!("the connection ended {}", self.parser.progress()),
                Ok(n) => {
                    if let Some(done) = self.parser.feed(&buffer[..n])? {
                        return Ok(Some(done));
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// A connecting socket, and the bytes of the request in its SYN.
fn open(swarm: &Swarm, fast_open: bool, n: u64) -> io::Result<(TcpStream, usize)> {
    let socket = Socket::new(Domain::for_address(swarm.server), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    if !swarm.sources.is_empty() {
        let one: libc::c_int = 1;
        // SAFETY: an option of type int, with the length of one. It makes connect choose the port, which then
        // only has to be free towards this server.
        let rc = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_IP,
                libc::IP_BIND_ADDRESS_NO_PORT,
                (&raw const one).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        let source = swarm.sources[n as usize % swarm.sources.len()];
        socket.bind(&SockAddr::from(std::net::SocketAddr::new(source, 0)))?;
    }
    let server = SockAddr::from(swarm.server);
    let result = if fast_open {
        socket.send_to_with_flags(&swarm.request, &server, libc::MSG_FASTOPEN)
    } else {
        socket.connect(&server).map(|()| 0)
    };
    let written = match result {
        Ok(written) => written,
        // Connecting; with Fast Open too, the data is written once it is connected.
        Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => 0,
        Err(e) => return Err(e),
    };
    Ok((TcpStream::from_std(socket.into()), written))
}
