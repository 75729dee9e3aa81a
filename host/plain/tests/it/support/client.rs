//! A client as strict as Linux: it acknowledges in order, with delayed or compressed
//! acknowledgements if set, echoes timestamps by RFC 7323 (also PAWS), sends SACK and D-SACK
//! blocks, retransmits with doubling pauses, and closes after the server.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use rivulet_packet::TcpFlags;
use rivulet_plain::{Header, Options, Segment, Stamps};

/// Properties of a client.
#[derive(Clone, Debug)]
pub struct Nature {
    pub stamps: bool,
    pub sack: bool,
    pub mss: u16,
    pub shift: Option<u8>,
    /// Size of its receive buffer, bytes.
    pub buffer: u32,
    pub v6: bool,
    /// It sends a FIN with its last request.
    pub half_close: bool,
    /// It sends a FIN after its last request, in a separate segment.
    pub fin_apart: bool,
    /// It sends requests before the earlier ones are answered.
    pub pipelines: bool,
    /// First retransmission timeout, doubling; milliseconds.
    pub rto: u64,
    /// Limit on the data in one of its segments, bytes.
    pub segment: usize,
    /// Number of segments in order that it acknowledges together, unless 40 ms pass: 1, 2, or more
    /// for stretch acknowledgements.
    pub delayed: u32,
    /// Number of duplicate acknowledgements, after the first three, that are held for a
    /// millisecond; only the last one is sent.
    pub compressed: u32,
    /// It reports duplicates by D-SACK (RFC 2883).
    pub dsack: bool,
    /// User timeout after its first retransmission, milliseconds (RFC 5482, as Linux has it).
    pub user_timeout: Option<u64>,
    /// Idle time before keep-alive probes (RFC 9293 section 3.8.4), milliseconds.
    pub keepalive: Option<u64>,
    /// It ignores segments with an older acknowledgement than it had (like smoltcp; Linux echoes
    /// their timestamp only if they arrive in order).
    pub strict: bool,
}

/// Delay of acknowledgements, milliseconds.
const LATE: u64 = 40;
const COMPRESSED: u64 = 1;

impl Default for Nature {
    fn default() -> Self {
        Nature {
            stamps: true,
            sack: true,
            mss: 1460,
            shift: Some(7),
            buffer: 64 << 10,
            v6: false,
            half_close: false,
            fin_apart: false,
            pipelines: false,
            rto: 220,
            segment: 1448,
            delayed: 1,
            compressed: 0,
            dsack: false,
            user_timeout: None,
            keepalive: None,
            strict: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Opening,
    Open,
    Closed,
}

pub struct Client {
    nature: Nature,
    pub addr: SocketAddr,
    service: SocketAddr,
    state: State,
    /// Requests not yet sent.
    requests: VecDeque<Vec<u8>>,
    /// Unacknowledged data, from sequence number `una` on.
    unacked: Vec<u8>,
    /// Ends of the segments as they were first sent, so that the same ones are retransmitted.
    una: u32,
    nxt: u32,
    fin_sent: bool,
    rcv_nxt: u32,
    early: BTreeMap<u32, Vec<u8>>,
    /// Sequence number of the server's FIN.
    fin_at: Option<u32>,
    /// All received data, in order.
    pub stream: Vec<u8>,
    ts_recent: u32,
    last_ack: u32,
    clock: u32,
    /// Time of the next retransmission.
    repeats: Option<u64>,
    /// Time of its next delayed acknowledgement.
    acknowledges: Option<u64>,
    /// Time of its next keep-alive probe.
    probes: Option<u64>,
    /// Numbers of segments in order, and of duplicate acknowledgements, since the last
    /// acknowledgement that was sent.
    unsaid: u32,
    same: u32,
    held: u32,
    /// The last duplicate, until it is reported.
    twice: Option<(u32, u32)>,
    backoff: u32,
    /// Time of the first retransmission since all data was acknowledged.
    repeated: Option<u64>,
    pub gave_up: bool,
    /// Bytes of responses that the application must receive before its next request.
    pub got: usize,
    /// Number of segments with new data that PAWS dropped.
    pub paws: usize,
    pub retransmissions: usize,
    read: u32,
    /// The application reads nothing.
    pub stalled: bool,
}

impl Client {
    pub fn new(nature: Nature, number: u16, isn: u32, requests: &[Vec<u8>]) -> Client {
        let (addr, service) = match nature.v6 {
            true => (format!("[fd00::1]:{number}"), "[fd00:9::1]:80"),
            false => (format!("10.0.0.1:{number}"), "10.9.0.1:80"),
        };
        Client {
            addr: addr.parse().unwrap(),
            service: service.parse().unwrap(),
            state: State::Opening,
            requests: requests.iter().cloned().collect(),
            unacked: Vec::new(),
            una: isn,
            nxt: isn.wrapping_add(1),
            fin_sent: false,
            rcv_nxt: 0,
            early: BTreeMap::new(),
            fin_at: None,
            stream: Vec::new(),
            ts_recent: 0,
            last_ack: 0,
            clock: isn ^ 0x5555_5555,
            repeats: None,
            acknowledges: None,
            probes: None,
            unsaid: 0,
            same: 0,
            held: 0,
            twice: None,
            backoff: 0,
            repeated: None,
            gave_up: false,
            got: 0,
            paws: 0,
            retransmissions: 0,
            read: 0,
            stalled: false,
            nature,
        }
    }

    pub fn is_done(&self) -> bool {
        self.state == State::Closed
    }

    /// Time of its next segment by timer.
    pub fn timer(&self) -> Option<u64> {
        self.repeats.into_iter().chain(self.acknowledges).chain(self.probes).min()
    }

    /// Whether the server has sent a FIN.
    pub fn had_fin(&self) -> bool {
        self.fin_at.is_some_and(|at| at.wrapping_add(1) == self.rcv_nxt)
    }

    fn window(&self) -> u32 {
        let held = if self.stalled { self.stream.len() as u32 - self.read } else { 0 };
        self.nature.buffer.saturating_sub(held)
    }

    fn scale(&self) -> u8 {
        if self.nature.stamps { self.nature.shift.unwrap_or(0) } else { 0 }
    }

    fn packet(&mut self, now: u64, seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let syn = flags & TcpFlags::SYN != 0;
        let shift = if syn { 0 } else { self.scale() };
        let mut options = Options::default();
        if self.nature.stamps {
            let value = self.clock.wrapping_add(now as u32);
            options.stamps = Some(Stamps { value, echo: if syn { 0 } else { self.ts_recent } });
        }
        if syn {
            options.mss = Some(self.nature.mss);
            options.sack_permitted = self.nature.sack;
            options.scale = self.nature.shift;
        } else if self.nature.sack {
            let mut blocks: Vec<(u32, u32)> = Vec::new();
            for (from, data) in &self.early {
                let (from, to) =
                    (self.rcv_nxt.wrapping_add(*from), self.rcv_nxt.wrapping_add(from + data.len() as u32));
                match blocks.last_mut() {
                    Some(last) if last.1 == from => last.1 = to,
                    _ => blocks.push((from, to)),
                }
            }
            if let Some(twice) = self.twice.take() {
                options.sack.push(twice);
            }
            // The newest blocks; their order does not matter here.
            let room = 3 - usize::from(!options.sack.blocks().is_empty());
            blocks.iter().rev().take(room).for_each(|block| options.sack.push(*block));
        }
        self.last_ack = self.rcv_nxt;
        (self.acknowledges, self.unsaid, self.held) = (None, 0, 0);
        let header = Header {
            src: self.addr,
            dst: self.service,
            seq,
            ack: if syn { 0 } else { self.rcv_nxt },
            flags: TcpFlags(flags),
            window: (self.window() >> shift).min(0xffff) as u16,
            options,
        };
        let mut packet = vec![0; header.length()];
        packet.extend_from_slice(payload);
        header.finish(&mut packet, payload.len()).unwrap();
        packet
    }

    pub fn open(&mut self, now: u64) -> Vec<Vec<u8>> {
        self.repeats = Some(now + 1000);
        vec![self.packet(now, self.una, TcpFlags::SYN, &[])]
    }

    /// Sends due requests, and finally FIN.
    fn speak(&mut self, now: u64, out: &mut Vec<Vec<u8>>) {
        if self.had_fin() {
            self.requests.clear();
        }
        while !self.requests.is_empty()
            && (self.nature.pipelines || super::bodies_whole(&self.stream) == self.got)
        {
            let request = self.requests.pop_front().unwrap();
            self.got += 1;
            let last = self.requests.is_empty();
            for (n, part) in request.chunks(self.nature.segment).enumerate() {
                let whole = (n + 1) * self.nature.segment >= request.len();
                let fin = last && whole && self.nature.half_close;
                let flags = TcpFlags::ACK | TcpFlags::PSH | if fin { TcpFlags::FIN } else { 0 };
                out.push(self.packet(now, self.nxt, flags, part));
                self.unacked.extend_from_slice(part);
                self.nxt = self.nxt.wrapping_add(part.len() as u32 + u32::from(fin));
                self.fin_sent |= fin;
            }
            self.arm(now);
        }
        let all = self.requests.is_empty() && super::bodies_whole(&self.stream) == self.got;
        let apart = self.nature.fin_apart && self.requests.is_empty() && self.got > 0;
        if (self.had_fin() || all && self.got > 0 || apart) && !self.fin_sent {
            out.push(self.packet(now, self.nxt, TcpFlags::ACK | TcpFlags::FIN, &[]));
            self.nxt = self.nxt.wrapping_add(1);
            self.fin_sent = true;
            self.arm(now);
        }
    }

    fn arm(&mut self, now: u64) {
        let pause = self.nature.rto << self.backoff.min(9);
        let left =
            self.nature.user_timeout.zip(self.repeated).map(|(all, since)| (since + all).saturating_sub(now));
        self.repeats = Some(now + left.map_or(pause, |left| pause.min(left.max(4))));
    }

    /// Handles the time of [`timer`](Self::timer).
    pub fn fire(&mut self, now: u64) -> Vec<Vec<u8>> {
        if self.acknowledges.is_some() && self.acknowledges == self.timer() {
            return vec![self.packet(now, self.nxt, TcpFlags::ACK, &[])];
        }
        if self.probes.is_some() && self.probes == self.timer() {
            self.probes = self.nature.keepalive.map(|pause| now + pause);
            return vec![self.packet(now, self.nxt.wrapping_sub(1), TcpFlags::ACK, &[])];
        }
        self.repeats = None;
        self.backoff += 1;
        if self.state == State::Opening {
            self.repeats = Some(now + (1000 << self.backoff.min(6)));
            return vec![self.packet(now, self.una, TcpFlags::SYN, &[])];
        }
        if self.una == self.nxt {
            return Vec::new();
        }
        let since = *self.repeated.get_or_insert(now);
        if self.nature.user_timeout.is_some_and(|all| now >= since + all) {
            self.gave_up = true;
            return Vec::new();
        }
        self.retransmissions += 1;
        self.arm(now);
        let part: Vec<u8> = self.unacked.iter().take(self.nature.segment).copied().collect();
        let fin = self.fin_sent && part.len() == self.unacked.len();
        let flags = TcpFlags::ACK | if fin { TcpFlags::FIN } else { 0 };
        vec![self.packet(now, self.una, flags, &part)]
    }

    /// The application reads again, and the client announces its window.
    pub fn resume(&mut self, now: u64) -> Vec<Vec<u8>> {
        self.stalled = false;
        vec![self.packet(now, self.nxt, TcpFlags::ACK, &[])]
    }

    pub fn receive(&mut self, now: u64, packet: &[u8]) -> Vec<Vec<u8>> {
        let segment = Segment::parse(packet).expect("what servers send is well formed");
        assert!(segment.is_intact() && segment.header.dst == self.addr && segment.header.src == self.service);
        assert!(!segment.has(TcpFlags::RST), "nothing here is reset");
        let header = segment.header;
        let mut out = Vec::new();
        if self.state == State::Closed || self.gave_up {
            return out;
        }
        if self.nature.strict && self.state == State::Open && (header.ack.wrapping_sub(self.una) as i32) < 0 {
            return out;
        }
        self.probes = self.nature.keepalive.map(|pause| now + pause);
        if self.state == State::Opening {
            assert!(segment.has(TcpFlags::SYN | TcpFlags::ACK) && header.ack == self.nxt);
            assert_eq!(header.options.scale.is_some(), self.nature.stamps && self.nature.shift.is_some());
            self.state = State::Open;
            self.una = self.nxt;
            self.rcv_nxt = header.seq.wrapping_add(1);
            self.ts_recent = header.options.stamps.map_or(0, |s| s.value);
            self.backoff = 0;
            self.repeats = None;
            out.push(self.packet(now, self.nxt, TcpFlags::ACK, &[]));
            self.speak(now, &mut out);
            return out;
        }
        if segment.has(TcpFlags::SYN) {
            return out;
        }
        if let Some(stamps) = header.options.stamps {
            if (stamps.value.wrapping_sub(self.ts_recent) as i32) < 0 {
                // Data that arrived before is compared by its bytes.
                let end = header.seq.wrapping_add(segment.payload.len() as u32);
                self.paws += usize::from((end.wrapping_sub(self.rcv_nxt) as i32) > 0);
                out.push(self.packet(now, self.nxt, TcpFlags::ACK, &[]));
                return out;
            }
            // RFC 7323 sections 4.3 and 5.3: only a segment that covers the last acknowledgement
            // has its timestamp echoed, and none outside of the window.
            let old = (self.rcv_nxt.wrapping_sub(segment.end()) as i32) > 0;
            if (self.last_ack.wrapping_sub(header.seq) as i32) >= 0 && !old {
                self.ts_recent = stamps.value;
            }
        } else {
            assert!(!self.nature.stamps, "timestamps in every segment");
        }
        let acked = header.ack.wrapping_sub(self.una);
        assert!((header.ack.wrapping_sub(self.nxt) as i32) <= 0, "what was not sent is not acknowledged");
        if acked as i32 > 0 {
            let n = (acked as usize).min(self.unacked.len());
            self.unacked.drain(..n);
            self.una = header.ack;
            // A part of a retransmitted segment gives no round-trip time: Linux keeps its timeout.
            if self.una == self.nxt || acked as usize >= self.nature.segment {
                self.backoff = 0;
            }
            if self.una == self.nxt {
                (self.repeats, self.repeated) = (None, None);
            } else {
                self.arm(now);
            }
        }
        let (before, holes) = (self.rcv_nxt, !self.early.is_empty());
        self.note_twice(&segment);
        self.take(&segment);
        if !segment.payload.is_empty() || segment.has(TcpFlags::FIN) {
            let advanced = self.rcv_nxt != before;
            self.same = if advanced { 0 } else { self.same + 1 };
            let in_order = advanced && !holes && self.early.is_empty() && !segment.has(TcpFlags::FIN);
            if in_order && self.unsaid + 1 < self.nature.delayed {
                self.unsaid += 1;
                self.acknowledges.get_or_insert(now + LATE);
            } else if !advanced && self.twice.is_none() && self.same > 3 && self.held < self.nature.compressed
            {
                self.held += 1;
                self.acknowledges.get_or_insert(now + COMPRESSED);
            } else {
                out.push(self.packet(now, self.nxt, TcpFlags::ACK, &[]));
            }
        }
        self.speak(now, &mut out);
        if self.fin_sent && self.una == self.nxt && self.had_fin() {
            self.state = State::Closed;
            (self.repeats, self.acknowledges, self.probes) = (None, None, None);
        }
        out
    }

    /// Records which part of a segment arrived before.
    fn note_twice(&mut self, segment: &Segment<'_>) {
        if !self.nature.dsack || segment.payload.is_empty() {
            return;
        }
        let from = segment.header.seq;
        let to = from.wrapping_add(segment.payload.len() as u32);
        let offset = from.wrapping_sub(self.rcv_nxt) as i32;
        if offset < 0 {
            let end = if (to.wrapping_sub(self.rcv_nxt) as i32) < 0 { to } else { self.rcv_nxt };
            self.twice = Some((from, end));
        } else if self.early.get(&(offset as u32)).is_some_and(|data| data.len() >= segment.payload.len()) {
            self.twice = Some((from, to));
        }
    }

    fn take(&mut self, segment: &Segment<'_>) {
        let offset = segment.header.seq.wrapping_sub(self.rcv_nxt) as i32;
        let end = offset + segment.payload.len() as i32;
        let fin = i32::from(segment.has(TcpFlags::FIN));
        let window = self.window() as i32;
        assert!(
            end + fin <= window || end <= 0 || self.stalled,
            "more than the window takes: {end} + {fin}, {window} {} {}",
            segment.payload.len(),
            self.rcv_nxt.wrapping_sub(self.last_ack)
        );
        if segment.has(TcpFlags::FIN) {
            let at = self.rcv_nxt.wrapping_add(end as u32);
            assert!(self.fin_at.is_none_or(|before| before == at), "one end");
            self.fin_at = Some(at);
        }
        if end > 0 {
            let (from, data) = match offset {
                ..0 => (0, &segment.payload[(-offset) as usize..]),
                _ => (offset as u32, segment.payload),
            };
            let there = self.early.entry(from).or_default();
            if there.len() < data.len() {
                assert!(data.starts_with(there), "the same octets at the same place");
                *there = data.to_vec();
            } else {
                assert!(there.starts_with(data), "the same octets at the same place");
            }
        }
        while let Some((&from, _)) = self.early.first_key_value().filter(|(from, _)| **from == 0) {
            let data = self.early.remove(&from).unwrap();
            self.stream.extend_from_slice(&data);
            self.rcv_nxt = self.rcv_nxt.wrapping_add(data.len() as u32);
            let shift = data.len() as u32;
            let early = std::mem::take(&mut self.early);
            for (from, data) in early {
                let (to, gone) = (from.saturating_sub(shift), shift.saturating_sub(from) as usize);
                if gone < data.len() {
                    self.early.insert(to, data[gone..].to_vec());
                } else {
                    assert!(
                        self.stream.ends_with(&data) || gone > data.len(),
                        "the same octets at the same place"
                    );
                }
            }
        }
        if !self.stalled {
            self.read = self.stream.len() as u32;
        }
        if self.fin_at == Some(self.rcv_nxt) {
            self.rcv_nxt = self.rcv_nxt.wrapping_add(1);
        }
    }
}
