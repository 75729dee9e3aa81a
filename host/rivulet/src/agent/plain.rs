//! Heartbeats for services of the kernel's TCP, which have no packet path to send them.
//!
//! A thread checks whether each service accepts connections (and answers a GET, if configured); the
//! heartbeats are `ready` while it does. A check that hangs counts as failed.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_agent::Status;
use rivulet_pktio::sockets::Sockets;
use rivulet_pktio::{AfPacket, Interface, LinkInfo, PacketIo, TxFrame};
use rivulet_server::heartbeat::Beat;
use rivulet_server::service::{Forwarded, Plain, Service};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::incarnation::Incarnation;
use super::moves;
use super::predecessor::Predecessor;
use super::trods::Guard;
use rivulet_trods::Wake;

/// Interval of a service's health checks.
const CHECK: Duration = Duration::from_millis(50);
/// Time limit of a check.
const PATIENCE: Duration = Duration::from_millis(500);
/// Number of services that are checked at the same time.
const AT_ONCE: usize = 32;
/// Age at which a result is no longer used.
const GOOD_FOR: Duration = Duration::from_secs(1);
/// Minimum interval between counts of the kernel's connections. The interval is also at least
/// [`SELDOM`] times the duration of a count, because the kernel searches all sockets of the
/// machine, even those in TIME-WAIT.
const COUNT: Duration = Duration::from_secs(1);
const SELDOM: u32 = 100;
/// Interval of checks of the interface.
const LOOK: Duration = Duration::from_millis(200);

/// Result of a health check.
#[derive(Clone, Debug)]
struct Health {
    at: Instant,
    /// Why the service is not ready.
    trouble: Option<String>,
    /// Number of the service's established connections.
    load: u16,
}

/// The services to check, and the results, by service number.
#[derive(Debug, Default)]
struct Board {
    services: Vec<Service>,
    /// Name of a service that is configured for stateless TCP, which only `rivulet serve` can
    /// serve.
    stateless: Option<String>,
    found: HashMap<u16, Health>,
}

/// Sends the heartbeats of one replica.
pub(super) struct PlainTcp {
    io: AfPacket,
    link: LinkInfo,
    looked: Instant,
    started: Instant,
    /// The second in which it started to send heartbeats.
    began: u32,
    /// One heartbeat for each pool, with the numbers of the replica's services in it: ready while
    /// one of them is.
    beats: Vec<(Vec<u16>, Beat)>,
    board: Arc<Mutex<Board>>,
    guard: Guard,
    /// The former agent's stand-in process, which sends heartbeats until this agent does.
    predecessor: Option<Predecessor>,
}

impl PlainTcp {
    /// Opens the interface for sending and starts the checks; with `path`, a GET of it must be
    /// answered. `incarnation` is that of the records. Heartbeats use the time of the start
    /// instead, like those of serving processes, with which they alternate. `programs`: the folder
    /// with sockets by which running BPF programs are found. `door`: the socket for TLS terminators, and
    /// their user.
    pub(super) fn open(
        interface: &Interface,
        programs: PathBuf,
        incarnation: Incarnation,
        path: Option<String>,
        wake: Wake,
        predecessor: Option<Predecessor>,
        door: (PathBuf, Option<u32>),
    ) -> anyhow::Result<PlainTcp> {
        let io = rivulet_server::heartbeat::open(interface)?;
        let link = io.link()?;
        let board = Arc::new(Mutex::new(Board::default()));
        let of_thread = Arc::downgrade(&board);
        std::thread::Builder::new().name("health".into()).spawn(move || {
            let mut count_at = Instant::now();
            while let Some(board) = of_thread.upgrade() {
                check_all(&board, path.as_deref(), &mut count_at);
                drop(board);
                std::thread::sleep(CHECK);
            }
        })?;
        let now = Instant::now();
        let mut guard = Guard::new(interface, programs, incarnation, wake, predecessor.is_some());
        guard.door = Some(door);
        let (beats, began) = (Vec::new(), rivulet_server::incarnation());
        Ok(PlainTcp { io, link, looked: now, started: now, began, beats, board, guard, predecessor })
    }

    /// Replaces the services for which heartbeats are sent.
    pub(super) fn replace(&mut self, all: &[Service]) {
        let now = self.now();
        let plain = || all.iter().filter(|s| s.is_kernels());
        let mut before = std::mem::take(&mut self.beats);
        for service in plain() {
            let Some(member) = service.member else { continue };
            let of =
                |beat: &Beat| (beat.member().pool, beat.member().replica) == (member.pool, member.replica);
            if let Some((services, _)) = self.beats.iter_mut().find(|(_, beat)| of(beat)) {
                services.push(service.keys.service);
                continue;
            }
            let same = before.iter().position(|(_, beat)| *beat.member() == member);
            let mut beat = match same.map(|at| before.swap_remove(at)) {
                Some((_, beat)) => beat,
                None => Beat::new(member, &service.keys, self.began, now),
            };
            beat.set_keys(&service.keys);
            self.beats.push((vec![service.keys.service], beat));
        }
        let mut board = self.board.lock();
        board.services = plain().cloned().collect();
        board.stateless = all.iter().find(|s| s.plain == Plain::Stateless).map(|s| s.name.clone());
        let Board { services, found, .. } = &mut *board;
        found.retain(|id, _| services.iter().any(|s| s.keys.service == *id));
        drop(board);
        self.guard.replace(all);
    }

    /// Stops before the process exits.
    pub(super) fn leave(self) {
        self.guard.leave();
    }

    /// Whether no connection here needs an agent for a moment: the replica is drained, and every
    /// connection that can move has left.
    pub(super) fn is_left_alone(&self) -> bool {
        let (services, counts) = (&self.board.lock().services, self.guard.counts());
        let has_drained = !services.is_empty() && services.iter().all(moves::has_drained);
        has_drained && counts.is_none_or(|counts| counts.watched == 0)
    }

    /// Passes the heartbeats of the next `time` to `each`, with the time when each is due;
    /// does not send them.
    pub(super) fn ahead(
        &mut self,
        time: Duration,
        mut each: impl FnMut(Duration, &[u8]) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let (begin, load) = (self.now(), 0);
        while let Some((_, beat)) = self.beats.iter_mut().min_by_key(|(_, beat)| beat.due()) {
            let at = beat.due().max(begin);
            let at_begin = Duration::from_micros(at - begin);
            let frame = beat.frame(at, self.link.mac, true, load, 0);
            if let Some(frame) = frame.filter(|_| at_begin < time) {
                each(at_begin, &frame)?;
            } else {
                break;
            }
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Sends the heartbeats that are due, and returns the time until the next one.
    pub(super) fn turn(&mut self, longest: Duration) -> Duration {
        if self.looked.elapsed() > LOOK {
            self.looked = Instant::now();
            self.guard.look();
            match self.io.link() {
                Ok(link) => self.link = link,
                Err(_) => {
                    // The interface was deleted, and may exist again under the same name.
                    let _ = self.io.reopen();
                }
            }
        }
        let now = self.now();
        // The sending part reports errors of the socket.
        for index in 0..self.io.recv().unwrap_or(0) {
            let frame = self.io.frame(index).data;
            if let Some((_, beat)) = self.beats.iter_mut().find_map(|b| b.1.answered(frame, now).then_some(b))
                && let Some(live) = beat.live().filter(|live| live.sent > 0)
            {
                let sent = rivulet_trods::lease::at(self.started).saturating_add(live.sent * 1000);
                self.guard.answered(beat.member(), live, sent);
            }
        }
        {
            let board = self.board.lock();
            let mut speaks = !self.beats.is_empty();
            for (services, beat) in &mut self.beats {
                let health = || services.iter().filter_map(|service| board.found.get(service));
                let protected = |service: &&u16| self.guard.lacks(**service).is_none();
                let mut good = services.iter().filter(protected).filter_map(|s| board.found.get(s));
                let ready = good.any(Health::is_good) && self.guard.trouble().is_none();
                // A heartbeat of a later process makes the ToR ignore an earlier one's.
                speaks &= ready;
                if !ready && self.predecessor.is_some() {
                    continue;
                }
                let load = health().map(|h| usize::from(h.load)).sum();
                if let Some(frame) = beat.frame(now, self.link.mac, ready, load, 0) {
                    // A heartbeat that the send queue has no room for is dropped; the next one
                    // follows soon.
                    let _ = self.io.send(&[TxFrame::new(&frame)]);
                }
            }
            if speaks {
                self.predecessor.take().into_iter().for_each(Predecessor::release);
            }
        }
        let due = self.beats.iter().map(|(_, b)| b.due().saturating_sub(now)).min();
        due.map_or(longest, |due| longest.min(Duration::from_micros(due)))
    }

    /// Waits for an answer of the ToR for at most `longest`: a death must be noticed at once, not
    /// only at the next heartbeat.
    pub(super) fn wait(&self, longest: Duration) {
        let mut fds = [PollFd::new(&self.io, PollFlags::IN)];
        let ready = poll(&mut fds, Timespec::try_from(longest).ok().as_ref());
        // After the interface was deleted, poll may report an error again and again with nothing to
        // read.
        if ready.is_ok_and(|count| count > 0) && !fds[0].revents().contains(PollFlags::IN) {
            std::thread::sleep(longest);
        }
    }

    /// The status in the report to the controller.
    pub(super) fn status(&self) -> Status {
        let board = self.board.lock();
        let trouble = board.services.iter().find_map(|s| match board.found.get(&s.keys.service) {
            Some(h) if h.is_good() => {
                self.guard.lacks(s.keys.service).map(|why| format!("{}: {why}", s.name))
            }
            Some(Health { trouble: Some(why), .. }) => Some(format!("{}: {why}", s.name)),
            _ => Some(format!("{}: not checked", s.name)),
        });
        let trouble = trouble.or_else(|| self.guard.trouble().map(str::to_owned));
        let asking = || {
            self.guard
                .is_asking()
                .then(|| "TRODS: reading which connections the other replicas hold".to_owned())
        };
        let trouble = trouble.or_else(asking);
        let reason = match (&board.stateless, trouble) {
            (Some(name), _) => format!("{name}: stateless TCP is for `rivulet serve`"),
            (_, None) if board.services.is_empty() => "no service of plain TCP is configured".into(),
            (_, trouble) => trouble.unwrap_or_default(),
        };
        let load = board.found.values().map(|h| u32::from(h.load)).sum();
        let trods = self.guard.counts();
        let content = self.guard.table();
        let ready = reason.is_empty() && self.link.up;
        Status { ready, reason, load, trods, content, ..Status::default() }
    }
}

impl Health {
    fn is_good(&self) -> bool {
        self.trouble.is_none() && self.at.elapsed() < GOOD_FOR
    }
}

fn check_all(board: &Mutex<Board>, path: Option<&str>, count_at: &mut Instant) {
    let services = board.lock().services.clone();
    let began = Instant::now();
    let table = if began >= *count_at {
        let table = connections();
        *count_at = began + COUNT.max(began.elapsed() * SELDOM);
        Some(table)
    } else {
        None
    };
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(service) = services.get(next.fetch_add(1, Ordering::Relaxed)) {
            let trouble = targets(service, path)
                .find_map(|(socket, path)| check(socket, path).err().map(|e| format!("{socket}: {e}")));
            let mut board = board.lock();
            let before = board.found.get(&service.keys.service).map_or(0, |h| h.load);
            let load = table.as_ref().map_or(before, |table| table.get(&service.port).copied().unwrap_or(0));
            board.found.insert(service.keys.service, Health { at: Instant::now(), trouble, load });
        }
    };
    // In parallel, so that a service that hangs does not make the results of others too old.
    std::thread::scope(|scope| {
        for _ in 1..services.len().min(AT_ONCE) {
            // If a thread cannot be started, fewer threads check.
            let _ = std::thread::Builder::new().name("health".into()).spawn_scoped(scope, work);
        }
        work();
    });
}

/// The sockets to check, with the path to get there. Before a service's TLS they accept connections, and the server of
/// plain HTTP behind it answers, unless it awaits the PROXY protocol.
fn targets<'a>(
    service: &Service,
    path: Option<&'a str>,
) -> impl Iterator<Item = (SocketAddr, Option<&'a str>)> {
    let server = service.tls.as_ref().map(|tls| {
        let answers = tls.forwarded != Forwarded::Proxy;
        (tls.server, path.filter(|_| answers))
    });
    let path = path.filter(|_| server.is_none());
    service.sockets().map(move |socket| (socket, path)).chain(server)
}

/// Checks one address: it must accept a connection and, with `path`, answer a GET.
fn check(socket: SocketAddr, path: Option<&str>) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&socket, PATIENCE)?;
    // Without a listener on a port of the ephemeral range, the kernel may choose this very port,
    // and TCP then opens the connection with itself (simultaneous open, RFC 9293 section 3.5).
    if stream.local_addr()? == socket {
        // Linger 0 closes with a RST, so that the port is free for the service at once.
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        return Err(std::io::Error::new(ErrorKind::ConnectionRefused, "nobody listens there"));
    }
    let Some(path) = path else { return Ok(()) };
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // In one write: a server may answer and close on the first segment, and later data would make
    // the kernel reset the connection before the answer is read.
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {socket}\r\nUser-Agent: rivulet-agent\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut line = [0; 12];
    stream.read_exact(&mut line)?;
    match line[9] {
        b'2' | b'3' if line.starts_with(b"HTTP/1.") => Ok(()),
        _ => Err(std::io::Error::other(format!("answered {:?}", String::from_utf8_lossy(&line)))),
    }
}

/// Number of established connections by local port.
fn connections() -> HashMap<u16, u16> {
    Sockets::open(None).and_then(|sockets| sockets.count()).unwrap_or_else(|e| {
        tracing::debug!("connections are not counted: {e}");
        HashMap::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rivulet_pktio::in_netns;
    use rivulet_pktio::testing::Netns;
    use std::net::TcpListener;

    #[test]
    fn service_is_ready_while_it_accepts_and_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        check(address, None).unwrap();
        let answers =
            ["HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 500 No\r\n\r\n", "nonsense, and a lot\r\n"];
        let server = std::thread::spawn(move || {
            // Accepts the connection of the check above.
            drop(listener.accept());
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut request, mut octet) = (Vec::new(), [0]);
                while !request.ends_with(b"\r\n\r\n") {
                    stream.read_exact(&mut octet).unwrap();
                    request.push(octet[0]);
                }
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        check(address, Some("/")).unwrap();
        assert!(check(address, Some("/")).unwrap_err().to_string().contains("500"));
        assert!(check(address, Some("/")).is_err());
        server.join().unwrap();
        assert!(check(address, None).is_err(), "nobody listens any more");
    }

    #[test]
    fn hanging_services_do_not_affect_others() {
        let good = TcpListener::bind("127.0.0.2:0").unwrap();
        std::thread::spawn({
            let good = good.try_clone().unwrap();
            move || {
                for stream in good.incoming().flatten() {
                    let mut stream = stream;
                    let _ = stream.read(&mut [0; 1024]);
                    let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
                }
            }
        });
        // These listeners accept connections and never answer.
        let hanging: Vec<_> = (0..6).map(|_| TcpListener::bind("127.0.0.3:0").unwrap()).collect();
        let service = |id: u16, at: SocketAddr| {
            Service::standalone(
                &format!("s{id}"),
                vec![at.ip()],
                at.port(),
                rivulet_server::keys::KeySet {
                    service: id,
                    ..rivulet_server::keys::KeySet::generate(1).unwrap()
                },
                Plain::Kernel,
            )
        };
        let mut services: Vec<_> =
            hanging.iter().zip(1..).map(|(l, id)| service(id, l.local_addr().unwrap())).collect();
        services.insert(0, service(100, good.local_addr().unwrap()));
        let board = Mutex::new(Board { services, ..Board::default() });
        check_all(&board, Some("/"), &mut Instant::now());
        let board = board.lock();
        // Sequentially they would take three seconds, and the first results would be too old.
        assert!(board.found[&100].is_good(), "{:?}", board.found[&100]);
        assert_eq!(board.found.values().filter(|h| h.trouble.is_some()).count(), hanging.len());
    }

    #[test]
    fn connection_to_itself_fails_the_check() {
        let Some(netns) = Netns::new("itself") else { return };
        in_netns(Some(netns.name()), || {
            // The kernel has no other port to choose.
            std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40001").unwrap();
            let socket = SocketAddr::from(([127, 0, 0, 1], 40_000));
            let own = |stream: TcpStream| {
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
                stream.local_addr().unwrap() == socket
            };
            assert!((0..8).any(|_| TcpStream::connect(socket).is_ok_and(own)), "it does happen");
            for path in [None, Some("/")] {
                for _ in 0..8 {
                    assert!(check(socket, path).is_err());
                }
            }
            // The connections to itself leave no socket that keeps the service from its port.
            let listener = TcpListener::bind(socket).unwrap();
            check(socket, None).unwrap();
            drop(listener);
        })
        .unwrap();
    }

    #[test]
    fn established_connections_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let held: Vec<_> = (0..3).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
        assert_eq!(connections().get(&port), Some(&3));
        drop(held);
    }
}
