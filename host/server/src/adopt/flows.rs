//! Which connections are the kernel's.
//!
//! On a connection with timestamps each packet says so itself, once the client has heard the kernel's clock (`Stamp::Kernel`);
//! before that, and without timestamps, it is looked up here. A connection is known for as long as its socket is held, and
//! for a while longer, in which the kernel still answers for its end.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};

use rivulet_packet::segment::TcpFlags;
use rivulet_plain::{Handshake, Segment, Stamp};

/// For how long a connection is known after its socket was let go, microseconds: the kernel awaits the client's FIN for a
/// minute, and answers it for another.
const LINGERS: u64 = 120_000_000;
/// Connections that are known after their socket was let go, less than a megabyte; beyond, the oldest is forgotten.
const MAX_LINGERING: usize = 8192;
/// What a client can have sent before it hears from the kernel: our window, which the SYN-ACK left unscaled.
const FIRST_WINDOW: u32 = 1 << 16;

/// A client's address and a service's.
pub(crate) type Flow = (SocketAddr, SocketAddr);

/// Whose a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The kernel's, which has a socket for it or answers for one that ended.
    Kernel,
    /// Of a connection that some kernel has or had, not this one.
    Stray,
    /// Not known here.
    Stateless,
    /// The ports are those of a connection here, the segment is hardly its: if something is answered to it
    /// without state, another connection has begun and this one is over.
    Another,
}

/// What a socket that is let go says.
pub(super) type Ended = (Flow, u64);

#[derive(Debug)]
struct Entry {
    /// Tells connections between the same addresses and ports apart.
    number: u64,
    /// The first segment's sequence number and acknowledgement.
    first: u32,
    ack: u32,
    /// On a connection with timestamps, what it echoed: the SYN-ACK's value, in which the number of its first byte is sealed.
    opening: Option<u32>,
    /// Something was answered without state before: the TSval of the answer under way then, if there was one.
    behind: Option<Option<u32>>,
    /// The socket was let go.
    lingers: bool,
}

/// The connections that were adopted.
#[derive(Debug)]
pub(super) struct Flows {
    entries: HashMap<Flow, Entry>,
    /// Those that linger, and until when; some may have been forgotten or begun anew.
    lingering: VecDeque<(u64, Ended)>,
    count: u64,
    tell: Sender<Ended>,
    told: Receiver<Ended>,
}

impl Default for Flows {
    fn default() -> Flows {
        let (tell, told) = channel();
        Flows { entries: HashMap::new(), lingering: VecDeque::new(), count: 0, tell, told }
    }
}

impl Flows {
    /// Takes up the connection from this segment on. What comes back is to be sent to the other when its socket is let go.
    pub fn add(&mut self, segment: &Segment<'_>, handshake: &Handshake) -> (Ended, Sender<Ended>) {
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
        ((flow, self.count), self.tell.clone())
    }

    /// Forgets a connection.
    pub fn forget(&mut self, flow: &Flow) {
        self.entries.remove(flow);
    }

    /// Looks at what has ended. To be called now and then; a segment of a connection that ended since then is the kernel's.
    pub fn tidy(&mut self, now: u64) {
        while let Ok((flow, number)) = self.told.try_recv() {
            if let Some(entry) = self.entries.get_mut(&flow).filter(|entry| entry.number == number) {
                entry.lingers = true;
                self.lingering.push_back((now + LINGERS, (flow, number)));
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

    /// Whose a segment is.
    pub fn whose(&self, segment: &Segment<'_>) -> Whose {
        let header = &segment.header;
        let (reset, syn) = (segment.has(TcpFlags::RST), segment.has(TcpFlags::SYN));
        let stamp = header.options.stamps.map(|stamps| Stamp::parse(stamps.echo));
        let Some(entry) = self.entries.get(&(header.src, header.dst)) else {
            let theirs = stamp == Some(Stamp::Kernel) && segment.has(TcpFlags::ACK) && !reset && !syn;
            return if theirs { Whose::Stray } else { Whose::Stateless };
        };
        let is_near = header.seq.wrapping_sub(entry.first) < FIRST_WINDOW;
        let echo = header.options.stamps.map(|stamps| stamps.echo);
        match (entry.opening.is_some(), stamp) {
            // The kernel knows what becomes of these (RFC 5961).
            _ if reset => Whose::Kernel,
            _ if syn && !entry.lingers => Whose::Kernel,
            _ if syn => Whose::Another,
            (true, Some(Stamp::Kernel)) => Whose::Kernel,
            // Ports that are used again at once: the numbers are near, and another SYN-ACK was answered.
            (true, Some(Stamp::Opening { .. })) if is_near && echo == entry.opening => Whose::Kernel,
            // Behind answers that were given without state: the client may still echo their timestamps, and repeat what it sent
            // before. To a new connection of the same ports its sequence numbers would be later ones.
            (true, Some(Stamp::Opening { .. } | Stamp::Answer(_)))
                if entry.behind.is_some_and(|answer| {
                    let is_before = entry.first.wrapping_sub(header.seq).wrapping_sub(1) < FIRST_WINDOW;
                    is_before || is_near && (echo == entry.opening || echo == answer)
                }) =>
            {
                Whose::Kernel
            }
            (true, _) | (false, Some(_)) => Whose::Another,
            // Whose client had all of it, so it cannot begin again.
            (false, None) if entry.lingers && header.ack == entry.ack && !is_near => Whose::Another,
            (false, None) => Whose::Kernel,
        }
    }

    /// How many are known.
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
    /// Of a SYN-ACK, and of an answer.
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

    fn whose(flows: &Flows, seq: u32, ack: u32, flags: u8, echo: Option<u32>) -> Whose {
        flows.whose(&Segment::parse(&packet(4000, seq, ack, flags, echo)).unwrap())
    }

    fn adopt(flows: &mut Flows, port: u16, seq: u32, echo: Option<u32>) -> (Ended, Sender<Ended>) {
        let first = packet(port, seq, 77, ACK, echo);
        flows.add(&Segment::parse(&first).unwrap(), &handshake(0, None))
    }

    fn handshake(start: u32, answer: Option<u32>) -> Handshake {
        Handshake { mss: 1460, scale: None, receive_next: 0, start, answer }
    }

    #[test]
    fn what_a_packet_says_itself_needs_no_memory() {
        let mut flows = Flows::default();
        let kernel = Some(kernel_value(0) + 5);
        assert_eq!(whose(&flows, 1, 1, ACK, kernel), Whose::Stray);
        for (flags, echo) in [
            (ACK, Some(OPENING)),
            (ACK, Some(ANSWER)),
            (ACK, None),
            (TcpFlags::SYN, None),
            (TcpFlags::SYN, kernel),
            (TcpFlags::RST | ACK, kernel),
        ] {
            assert_eq!(whose(&flows, 1, 1, flags, echo), Whose::Stateless);
        }
        // Half a window before the end of the numbers.
        let first = u32::MAX - 1000;
        adopt(&mut flows, 4000, first, Some(OPENING));
        assert_eq!(whose(&flows, 12345, 1, ACK, kernel), Whose::Kernel);
        assert_eq!(whose(&flows, 12345, 1, ACK, Some(ANSWER)), Whose::Another);
        assert_eq!(whose(&flows, first, 1, ACK, None), Whose::Another);
        for (further, want) in [(0, Whose::Kernel), (65_535, Whose::Kernel), (65_536, Whose::Another)] {
            assert_eq!(whose(&flows, first.wrapping_add(further), 1, ACK, Some(OPENING)), want, "{further}");
        }
        assert_eq!(whose(&flows, first.wrapping_sub(1), 1, ACK, Some(OPENING)), Whose::Another);
        let another = Some(OPENING ^ 77 << 3);
        assert_eq!(whose(&flows, first.wrapping_add(50_000), 1, ACK, another), Whose::Another);
        // What a socket is to make of these it knows best.
        assert_eq!(whose(&flows, 5, 1, TcpFlags::RST, None), Whose::Kernel);
        assert_eq!(whose(&flows, 5, 1, TcpFlags::SYN, None), Whose::Kernel);
    }

    #[test]
    fn behind_stateless_answers_the_client_echoes_them_for_a_while() {
        let mut flows = Flows::default();
        let (first, answer) = (5000, ANSWER + 8);
        let packet = packet(4000, first, 77, ACK, Some(ANSWER));
        flows.add(&Segment::parse(&packet).unwrap(), &handshake(64, Some(answer)));
        for (seq, echo, want) in [
            (first, ANSWER, Whose::Kernel),
            (first + 200, answer, Whose::Kernel),
            (first - 200, OPENING, Whose::Kernel),
            (first - 200, ANSWER - 8, Whose::Kernel),
            (first + 200, OPENING, Whose::Another),
            (first + 200, ANSWER + 16, Whose::Another),
            (first + FIRST_WINDOW, answer, Whose::Another),
        ] {
            assert_eq!(whose(&flows, seq, 1, ACK, Some(echo)), want, "{seq} {echo}");
        }
    }

    #[test]
    fn without_timestamps_a_connection_is_the_kernels_while_its_socket_is_held() {
        let mut flows = Flows::default();
        let (ended, tell) = adopt(&mut flows, 4000, 1000, None);
        let far = 1000 + 300_000;
        for (seq, ack, flags) in
            [(1000, 77, ACK), (far, 77, ACK), (far, 5_000_000, ACK), (9, 0, TcpFlags::SYN)]
        {
            assert_eq!(whose(&flows, seq, ack, flags, None), Whose::Kernel);
        }
        assert_eq!(whose(&flows, 1000, 77, ACK, Some(OPENING)), Whose::Another);
        tell.send(ended).unwrap();
        flows.tidy(0);
        for (seq, ack, flags, want) in [
            (1000, 77, ACK, Whose::Kernel),
            (far, 77, ACK, Whose::Another),
            (far, 5_000_000, ACK, Whose::Kernel),
            (far, 5_000_000, TcpFlags::RST, Whose::Kernel),
            (9, 0, TcpFlags::SYN, Whose::Another),
        ] {
            assert_eq!(whose(&flows, seq, ack, flags, None), want);
        }
        flows.tidy(LINGERS - 1);
        assert_eq!(flows.len(), 1);
        flows.tidy(LINGERS);
        assert_eq!((flows.len(), flows.lingering.len()), (0, 0));
    }

    #[test]
    fn another_connection_of_the_same_ports_does_not_end_with_the_first() {
        let mut flows = Flows::default();
        let (first, tell) = adopt(&mut flows, 4000, 1000, None);
        adopt(&mut flows, 4000, 9000, None);
        tell.send(first).unwrap();
        flows.tidy(0);
        flows.tidy(2 * LINGERS);
        assert_eq!(whose(&flows, 100_000, 77, ACK, None), Whose::Kernel);
        flows.forget(&(first.0.0, first.0.1));
        assert_eq!(whose(&flows, 100_000, 77, ACK, None), Whose::Stateless);
    }

    #[test]
    fn what_lingers_is_bounded() {
        let mut flows = Flows::default();
        for n in 0..3 * MAX_LINGERING {
            let (ended, tell) = adopt(&mut flows, n as u16, 1000, None);
            tell.send(ended).unwrap();
            flows.tidy(n as u64);
            assert!(flows.len() <= MAX_LINGERING && flows.lingering.len() <= MAX_LINGERING);
        }
        assert_eq!(flows.len(), MAX_LINGERING, "the latest");
    }
}
