//! Decides which segments belong to connections that the kernel has taken over.
//!
//! On a connection with timestamps, each segment shows it once the client echoes the kernel's clock
//! (`Stamp::Kernel`). Before that, and without timestamps, the connection is looked up here. An
//! entry lives as long as the socket, and then for the time in which the kernel still answers for
//! the closed connection.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};

use rivulet_packet::segment::TcpFlags;
use rivulet_plain::{Handshake, Segment, Stamp};

/// How long an entry stays after its socket was closed, microseconds: the kernel waits a minute for
/// the client's FIN, then stays in TIME-WAIT for another.
const LINGER_US: u64 = 120_000_000;
/// Maximum number of such entries, less than a megabyte; above it the oldest is dropped.
const MAX_LINGERING: usize = 8192;
/// Maximum bytes that a client can have sent before the kernel's first segment: our window, which
/// the SYN-ACK left unscaled.
const FIRST_WINDOW: u32 = 1 << 16;

/// The client's address and the service's.
pub(crate) type Flow = (SocketAddr, SocketAddr);

/// The owner of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The kernel: it has a socket for the connection, or answers for one that was closed.
    Kernel,
    /// Another replica's kernel has the connection.
    Stray,
    /// Not known here.
    Stateless,
    /// The ports match a connection here, but the segment is probably not part of it. If it gets an
    /// answer without state, a new connection has begun and the old one is over.
    Another,
}

/// Sent by a socket when it is closed: the flow, and the number of its entry.
pub(super) type ClosedFlow = (Flow, u64);

#[derive(Debug)]
struct Entry {
    /// Distinguishes connections between the same addresses and ports.
    number: u64,
    /// Sequence number of the first segment.
    first: u32,
    ack: u32,
    /// The timestamp that the first segment echoed: the SYN-ACK's, in which the number of the first
    /// byte is sealed. `None` without timestamps.
    opening: Option<u32>,
    /// Set if an answer was sent without state before: the TSval of the answer in progress then, if
    /// there was one.
    behind: Option<Option<u32>>,
    /// The socket was closed.
    lingers: bool,
}

/// The adopted connections.
#[derive(Debug)]
pub(super) struct Flows {
    entries: HashMap<Flow, Entry>,
    /// Entries with a closed socket, and when they expire. Some may have been removed or replaced.
    lingering: VecDeque<(u64, ClosedFlow)>,
    count: u64,
    close_sender: Sender<ClosedFlow>,
    closed: Receiver<ClosedFlow>,
}

impl Default for Flows {
    fn default() -> Flows {
        let (close_sender, closed) = channel();
        Flows { entries: HashMap::new(), lingering: VecDeque::new(), count: 0, close_sender, closed }
    }
}

impl Flows {
    /// Adds the connection that begins with this segment. Its socket must send the returned value
    /// on the returned channel when it is closed.
    pub fn add(&mut self, segment: &Segment<'_>, handshake: &Handshake) -> (ClosedFlow, Sender<ClosedFlow>) {
        self.count += 1;
        let header = &segment.header;
        let flow = (header.src, header.dst);
        let entry = Entry {
            number: self.count,
            first: header.seq,
            ack: header.ack,
            opening: header.options.stamps.map(|stamps| stamps.echo),
            behind: (handshake.start > 0 || handshake.answer.is_some()).then_some(handshake.answer),
            lingers: false,
        };
        self.entries.insert(flow, entry);
        ((flow, self.count), self.close_sender.clone())
    }

    /// Removes a connection.
    pub fn forget(&mut self, flow: &Flow) {
        self.entries.remove(flow);
    }

    /// Handles closed sockets and expired entries. Called at intervals; until then the kernel still
    /// gets the segments.
    pub fn expire(&mut self, now: u64) {
        while let Ok((flow, number)) = self.closed.try_recv() {
            if let Some(entry) = self.entries.get_mut(&flow).filter(|entry| entry.number == number) {
                entry.lingers = true;
                self.lingering.push_back((now + LINGER_US, (flow, number)));
            }
        }
        while let Some((until, (flow, number))) = self.lingering.front() {
            if *until > now && self.lingering.len() <= MAX_LINGERING {
                break;
            }
            if self.entries.get(flow).is_some_and(|entry| entry.number == *number) {
                self.entries.remove(flow);
            }
            self.lingering.pop_front();
        }
    }

    /// The owner of a segment.
    pub fn owner(&self, segment: &Segment<'_>) -> Owner {
        let header = &segment.header;
        let (reset, syn) = (segment.has(TcpFlags::RST), segment.has(TcpFlags::SYN));
        let stamp = header.options.stamps.map(|stamps| Stamp::parse(stamps.echo));
        let Some(entry) = self.entries.get(&(header.src, header.dst)) else {
            let theirs = stamp == Some(Stamp::Kernel) && segment.has(TcpFlags::ACK) && !reset && !syn;
            return if theirs { Owner::Stray } else { Owner::Stateless };
        };
        let is_near = header.seq.wrapping_sub(entry.first) < FIRST_WINDOW;
        let echo = header.options.stamps.map(|stamps| stamps.echo);
        match (entry.opening.is_some(), stamp) {
            // The kernel checks resets itself (RFC 5961).
            _ if reset => Owner::Kernel,
            _ if syn && !entry.lingers => Owner::Kernel,
            _ if syn => Owner::Another,
            (true, Some(Stamp::Kernel)) => Owner::Kernel,
            // If ports are reused at once, the sequence numbers are near, but the echoed SYN-ACK is
            // a different one.
            (true, Some(Stamp::Opening { .. })) if is_near && echo == entry.opening => Owner::Kernel,
            // After answers without state, the client may still echo their timestamps and
            // retransmit earlier data. A new connection on the same ports would have later sequence
            // numbers.
            (true, Some(Stamp::Opening { .. } | Stamp::Answer(_)))
                if entry.behind.is_some_and(|answer| {
                    let is_before = entry.first.wrapping_sub(header.seq).wrapping_sub(1) < FIRST_WINDOW;
                    is_before || is_near && (echo == entry.opening || echo == answer)
                }) =>
            {
                Owner::Kernel
            }
            (true, _) | (false, Some(_)) => Owner::Another,
            // This client received everything, so the segment cannot begin a new request.
            (false, None) if entry.lingers && header.ack == entry.ack && !is_near => Owner::Another,
            (false, None) => Owner::Kernel,
        }
    }

    /// The number of entries.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use rivulet_plain::{Header, Options, Stamps, kernel_value};

    use super::*;

    const ACK: u8 = TcpFlags::ACK;
    /// Timestamps of a SYN-ACK, and of an answer.
    const OPENING: u32 = 5 << 18;
    const ANSWER: u32 = 1 << 24 | 5;

    fn packet(port: u16, seq: u32, ack: u32, flags: u8, echo: Option<u32>) -> Vec<u8> {
        let header = Header {
            src: SocketAddr::new([10, 0, 0, 1].into(), port),
            dst: SocketAddr::new([10, 9, 0, 1].into(), 80),
            seq,
            ack,
            flags: TcpFlags(flags),
            window: 100,
            options: Options { stamps: echo.map(|echo| Stamps { value: 1, echo }), ..Options::default() },
        };
        let mut packet = vec![0; header.length()];
        header.finish(&mut packet, 0).unwrap();
        packet
    }

    fn owner(flows: &Flows, seq: u32, ack: u32, flags: u8, echo: Option<u32>) -> Owner {
        flows.owner(&Segment::parse(&packet(4000, seq, ack, flags, echo)).unwrap())
    }

    fn adopt(flows: &mut Flows, port: u16, seq: u32, echo: Option<u32>) -> (ClosedFlow, Sender<ClosedFlow>) {
        let first = packet(port, seq, 77, ACK, echo);
        flows.add(&Segment::parse(&first).unwrap(), &handshake(0, None))
    }

    fn handshake(start: u32, answer: Option<u32>) -> Handshake {
        Handshake { mss: 1460, scale: None, receive_next: 0, start, answer }
    }

    #[test]
    fn segments_with_kernel_timestamps_need_no_entry() {
        let mut flows = Flows::default();
        let kernel = Some(kernel_value(0) + 5);
        assert_eq!(owner(&flows, 1, 1, ACK, kernel), Owner::Stray);
        for (flags, echo) in [
            (ACK, Some(OPENING)),
            (ACK, Some(ANSWER)),
            (ACK, None),
            (TcpFlags::SYN, None),
            (TcpFlags::SYN, kernel),
            (TcpFlags::RST | ACK, kernel),
        ] {
            assert_eq!(owner(&flows, 1, 1, flags, echo), Owner::Stateless);
        }
        // Half a window before the sequence numbers wrap.
        let first = u32::MAX - 1000;
        adopt(&mut flows, 4000, first, Some(OPENING));
        assert_eq!(owner(&flows, 12345, 1, ACK, kernel), Owner::Kernel);
        assert_eq!(owner(&flows, 12345, 1, ACK, Some(ANSWER)), Owner::Another);
        assert_eq!(owner(&flows, first, 1, ACK, None), Owner::Another);
        for (further, want) in [(0, Owner::Kernel), (65_535, Owner::Kernel), (65_536, Owner::Another)] {
            assert_eq!(owner(&flows, first.wrapping_add(further), 1, ACK, Some(OPENING)), want, "{further}");
        }
        assert_eq!(owner(&flows, first.wrapping_sub(1), 1, ACK, Some(OPENING)), Owner::Another);
        let another = Some(OPENING ^ 77 << 3);
        assert_eq!(owner(&flows, first.wrapping_add(50_000), 1, ACK, another), Owner::Another);
        // The kernel decides about these segments itself.
        assert_eq!(owner(&flows, 5, 1, TcpFlags::RST, None), Owner::Kernel);
        assert_eq!(owner(&flows, 5, 1, TcpFlags::SYN, None), Owner::Kernel);
    }

    #[test]
    fn kernel_keeps_segments_that_echo_stateless_answers() {
        let mut flows = Flows::default();
        let (first, answer) = (5000, ANSWER + 8);
        let packet = packet(4000, first, 77, ACK, Some(ANSWER));
        flows.add(&Segment::parse(&packet).unwrap(), &handshake(64, Some(answer)));
        for (seq, echo, want) in [
            (first, ANSWER, Owner::Kernel),
            (first + 200, answer, Owner::Kernel),
            (first - 200, OPENING, Owner::Kernel),
            (first - 200, ANSWER - 8, Owner::Kernel),
            (first + 200, OPENING, Owner::Another),
            (first + 200, ANSWER + 16, Owner::Another),
            (first + FIRST_WINDOW, answer, Owner::Another),
        ] {
            assert_eq!(owner(&flows, seq, 1, ACK, Some(echo)), want, "{seq} {echo}");
        }
    }

    #[test]
    fn without_timestamps_a_connection_is_the_kernels_while_its_socket_is_held() {
        let mut flows = Flows::default();
        let (ended, close_sender) = adopt(&mut flows, 4000, 1000, None);
        let far = 1000 + 300_000;
        for (seq, ack, flags) in
            [(1000, 77, ACK), (far, 77, ACK), (far, 5_000_000, ACK), (9, 0, TcpFlags::SYN)]
        {
            assert_eq!(owner(&flows, seq, ack, flags, None), Owner::Kernel);
        }
        assert_eq!(owner(&flows, 1000, 77, ACK, Some(OPENING)), Owner::Another);
        close_sender.send(ended).unwrap();
        flows.expire(0);
        for (seq, ack, flags, want) in [
            (1000, 77, ACK, Owner::Kernel),
            (far, 77, ACK, Owner::Another),
            (far, 5_000_000, ACK, Owner::Kernel),
            (far, 5_000_000, TcpFlags::RST, Owner::Kernel),
            (9, 0, TcpFlags::SYN, Owner::Another),
        ] {
            assert_eq!(owner(&flows, seq, ack, flags, None), want);
        }
        flows.expire(LINGER_US - 1);
        assert_eq!(flows.len(), 1);
        flows.expire(LINGER_US);
        assert_eq!((flows.len(), flows.lingering.len()), (0, 0));
    }

    #[test]
    fn another_connection_of_the_same_ports_does_not_end_with_the_first() {
        let mut flows = Flows::default();
        let (first, close_sender) = adopt(&mut flows, 4000, 1000, None);
        adopt(&mut flows, 4000, 9000, None);
        close_sender.send(first).unwrap();
        flows.expire(0);
        flows.expire(2 * LINGER_US);
        assert_eq!(owner(&flows, 100_000, 77, ACK, None), Owner::Kernel);
        flows.forget(&(first.0.0, first.0.1));
        assert_eq!(owner(&flows, 100_000, 77, ACK, None), Owner::Stateless);
    }

    #[test]
    fn closed_connections_are_bounded() {
        let mut flows = Flows::default();
        for n in 0..3 * MAX_LINGERING {
            let (ended, close_sender) = adopt(&mut flows, n as u16, 1000, None);
            close_sender.send(ended).unwrap();
            flows.expire(n as u64);
            assert!(flows.len() <= MAX_LINGERING && flows.lingering.len() <= MAX_LINGERING);
        }
        assert_eq!(flows.len(), MAX_LINGERING, "the latest");
    }
}
