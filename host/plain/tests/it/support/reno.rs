//! A server with connection state and a sender like Linux's with Reno, for comparison. Losses by
//! RACK (RFC 8985, no reordering window beyond three segments), proportional rate reduction (RFC
//! 6937), a tail loss probe, a timeout of a round trip and 200 ms, and bursts (TSO deferral).

use std::collections::VecDeque;

use rivulet_packet::TcpFlags;
use rivulet_plain::{Header, Options, Segment, Stamps};

use super::content;
use super::path::Server;

const MSS: u32 = 1448;
const LEAST: u64 = 200_000;

#[derive(Clone, Copy, Debug)]
struct Sent {
    from: u32,
    to: u32,
    at: u64,
    sacked: bool,
    lost: bool,
    again: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Recovery,
    Loss,
}

pub struct Reno {
    answer: Vec<u8>,
    base: Option<Header>,
    sent: VecDeque<Sent>,
    una: u32,
    nxt: u32,
    window: u32,
    echo: u32,
    shift: u8,
    state: State,
    /// Congestion window in segments, as Linux counts.
    cwnd: u32,
    ssthresh: u32,
    counted: u32,
    high: u32,
    prior: u32,
    delivered: u32,
    out: u32,
    limited: bool,
    srtt: u64,
    rttvar: u64,
    least: u64,
    /// Of the delivered segments, the one that was sent last: its time of sending and end; and its
    /// round-trip time.
    newest: (u64, u32),
    took: u64,
    /// Time at which data sent before it counts as lost.
    late: Option<u64>,
    deadline: Option<u64>,
    probed: bool,
    backoff: u32,
    /// Segments of new data that are still sent without waiting for more room.
    piece: u32,
    pub halved: usize,
    pub timeouts: usize,
}

impl Reno {
    pub fn new(size: usize) -> Reno {
        let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").into_bytes();
        answer.extend(content(size));
        Reno {
            answer,
            base: None,
            sent: VecDeque::new(),
            una: 0,
            nxt: 0,
            window: 0,
            echo: 0,
            shift: 0,
            state: State::Open,
            cwnd: 10,
            ssthresh: u32::MAX,
            counted: 0,
            high: 0,
            prior: 0,
            delivered: 0,
            out: 0,
            limited: false,
            srtt: 0,
            rttvar: 0,
            least: u64::MAX,
            newest: (0, 0),
            took: 0,
            late: None,
            deadline: None,
            probed: false,
            backoff: 0,
            piece: 0,
            halved: 0,
            timeouts: 0,
        }
    }

    fn end(&self) -> u32 {
        self.answer.len() as u32 + 1
    }

    fn flight(&self) -> u32 {
        self.sent.iter().filter(|s| !s.sacked && (!s.lost || s.again)).count() as u32
    }

    fn packet(&self, from: u32, to: u32, now: u64) -> Vec<u8> {
        let base = self.base.expect("a connection");
        let fin = to == self.end();
        let data = &self.answer[from as usize..(to - u32::from(fin)) as usize];
        let flags = TcpFlags(TcpFlags::ACK | if fin { TcpFlags::FIN } else { 0 });
        let stamps = Some(Stamps { value: 1000 + (now / 1000) as u32, echo: self.echo });
        let seq = base.seq.wrapping_add(from);
        let header = Header { seq, flags, options: Options { stamps, ..Options::default() }, ..base };
        let mut packet = vec![0; header.length()];
        packet.extend_from_slice(data);
        header.finish(&mut packet, data.len()).unwrap();
        packet
    }

    fn timeout(&self) -> u64 {
        if self.srtt == 0 { 1_000_000 } else { self.srtt + (4 * self.rttvar).max(LEAST) }
    }

    fn arm(&mut self, now: u64) {
        self.deadline = (self.una < self.nxt).then(|| {
            let probe = self.state == State::Open && !self.probed && self.sent.iter().all(|s| !s.sacked);
            let alone = if self.sent.len() == 1 { LEAST } else { 2000 };
            let pause = self.timeout() << self.backoff.min(6);
            now + if probe && self.srtt > 0 { (2 * self.srtt + alone).min(pause) } else { pause }
        });
    }

    fn reduce(&mut self) {
        self.halved += 1;
        self.ssthresh = (self.cwnd / 2).max(2);
        (self.prior, self.delivered, self.out) = (self.cwnd, 0, 0);
        self.high = self.nxt;
        self.counted = 0;
    }

    fn hear(&mut self, segment: &Segment<'_>, now: u64) {
        let header = &segment.header;
        let base = self.base.expect("a connection").seq;
        let at = header.ack.wrapping_sub(base);
        self.window = u32::from(header.window) << self.shift;
        if at > self.nxt || at < self.una {
            return;
        }
        let (before, acked_to) = (self.una, at);
        let mut fresh = 0;
        let mut sample = None;
        let mut hit = |s: &Sent| {
            fresh += 1;
            let took = now - s.at;
            // The acknowledgement of a retransmission may be for the first transmission.
            if (!s.again || self.least <= took) && self.newest <= (s.at, s.to) {
                (self.newest, self.took) = ((s.at, s.to), took);
            }
            if !s.again {
                sample = Some(took);
            }
        };
        while let Some(first) = self.sent.front().filter(|s| s.to <= acked_to) {
            if !first.sacked {
                hit(first);
            }
            self.sent.pop_front();
        }
        self.una = at;
        for &(from, to) in header.options.sack.blocks() {
            let (from, to) = (from.wrapping_sub(base), to.wrapping_sub(base));
            for s in self.sent.iter_mut().filter(|s| from <= s.from && s.to <= to && !s.sacked) {
                hit(s);
                (s.sacked, s.lost) = (true, false);
            }
        }
        if let Some(took) = sample {
            self.least = self.least.min(took);
            if self.srtt == 0 {
                (self.srtt, self.rttvar) = (took, took / 2);
            } else {
                self.rttvar = (3 * self.rttvar + self.srtt.abs_diff(took)) / 4;
                self.srtt = (7 * self.srtt + took) / 8;
            }
        }
        let advanced = self.una > before;
        if fresh > 0 {
            (self.backoff, self.probed) = (0, false);
        }
        if self.state != State::Open && self.una >= self.high {
            if self.state == State::Recovery {
                self.cwnd = self.ssthresh;
            }
            self.state = State::Open;
        }
        let lost = self.detect(now);
        match self.state {
            State::Recovery => {
                self.delivered += fresh;
                let flight = self.flight();
                let mut more = if flight > self.ssthresh {
                    (self.ssthresh * self.delivered).div_ceil(self.prior).saturating_sub(self.out)
                } else {
                    let grown = self.delivered.saturating_sub(self.out).max(fresh);
                    (grown + u32::from(advanced && !lost)).min(self.ssthresh - flight)
                };
                if self.out == 0 {
                    more = more.max(1);
                }
                self.cwnd = flight + more;
            }
            _ if advanced && self.limited => {
                if self.cwnd < self.ssthresh {
                    self.cwnd = (self.cwnd + fresh).min(self.ssthresh.max(self.cwnd));
                } else {
                    self.counted += fresh;
                    if self.counted >= self.cwnd {
                        self.counted -= self.cwnd;
                        self.cwnd += 1;
                    }
                }
            }
            _ => {}
        }
        if fresh > 0 {
            self.arm(now);
        }
    }

    /// Whether a new loss is detected: data sent more than a round trip before data that has
    /// arrived.
    fn detect(&mut self, now: u64) -> bool {
        let sacked = self.sent.iter().filter(|s| s.sacked).count();
        let wait = if self.state != State::Open || sacked >= 3 { 0 } else { self.least / 4 };
        let (mut lost, newest, round) = (false, self.newest, self.took + wait);
        self.late = None;
        for s in self.sent.iter_mut().filter(|s| !s.sacked && (s.at, s.to) < newest && (!s.lost || s.again)) {
            if s.at + round <= now {
                (s.lost, s.again) = (true, false);
                lost = true;
            } else {
                self.late = Some(self.late.map_or(s.at + round, |at| at.min(s.at + round)));
            }
        }
        if self.state == State::Open && self.sent.iter().any(|s| s.lost) {
            self.reduce();
            self.state = State::Recovery;
        }
        lost
    }

    /// Whether it waits until it can send a millisecond's segments at once (tcp_tso_should_defer,
    /// tcp_tso_autosize).
    fn defers(&mut self, flight: u32) -> bool {
        if self.piece > 0 || flight == 0 || self.srtt == 0 || self.state != State::Open {
            return false;
        }
        let taken = self.nxt - self.una;
        let room = (self.cwnd - flight).min((self.window.saturating_sub(taken)).div_ceil(MSS));
        let a_millisecond = (u64::from(self.cwnd) * 1_200 / self.srtt) as u32;
        let piece = a_millisecond.max(2).min(self.cwnd.min(self.window / MSS) / 3);
        if room < piece.min((self.end() - self.nxt).div_ceil(MSS)) {
            return true;
        }
        self.piece = piece;
        false
    }

    fn push(&mut self, now: u64, out: &mut Vec<Vec<u8>>) {
        let mut flight = self.flight();
        self.limited = false;
        loop {
            if flight >= self.cwnd {
                self.limited = true;
                return;
            }
            if let Some(n) = self.sent.iter().position(|s| s.lost && !s.again) {
                let s = &mut self.sent[n];
                (s.again, s.at) = (true, now);
                let s = *s;
                out.push(self.packet(s.from, s.to, now));
            } else {
                let to = (self.nxt + MSS).min(self.end());
                if to == self.nxt || to - self.una > self.window + 1 {
                    return;
                }
                if self.defers(flight) {
                    self.limited = true;
                    return;
                }
                self.piece = self.piece.saturating_sub(1);
                let from = self.nxt;
                self.nxt = to;
                self.sent.push_back(Sent { from, to, at: now, sacked: false, lost: false, again: false });
                out.push(self.packet(from, to, now));
            }
            flight += 1;
            self.out += 1;
            if self.deadline.is_none() {
                self.arm(now);
            }
        }
    }
}

impl Server for Reno {
    fn take(&mut self, packet: &[u8], now: u64) -> Vec<Vec<u8>> {
        let segment = Segment::parse(packet).expect("what clients send is well formed");
        let (header, mut out) = (segment.header, Vec::new());
        let stamps = header.options.stamps.expect("timestamps");
        if segment.has(TcpFlags::SYN) {
            self.shift = header.options.scale.unwrap_or(0);
            let options = Options { stamps: Some(Stamps { value: 1, echo: stamps.value }), ..header.options };
            let base = Header {
                src: header.dst,
                dst: header.src,
                seq: 0x8000,
                ack: segment.end(),
                flags: TcpFlags(TcpFlags::SYN | TcpFlags::ACK),
                window: 65_535,
                options,
            };
            let mut reply = vec![0; base.length()];
            base.finish(&mut reply, 0).unwrap();
            self.base = Some(Header { seq: 0x8001, flags: TcpFlags(TcpFlags::ACK), ..base });
            out.push(reply);
            return out;
        }
        self.echo = stamps.value;
        let base = self.base.as_mut().expect("a connection");
        let speaks = segment.has_data_or_fin();
        if (segment.end().wrapping_sub(base.ack) as i32) > 0 {
            base.ack = segment.end();
        }
        let begins = speaks && self.nxt == 0;
        self.hear(&segment, now);
        if begins || self.nxt > 0 {
            self.push(now, &mut out);
        }
        if speaks && out.is_empty() {
            out.push(self.acknowledgement(now));
        }
        out
    }

    fn say(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        if self.late.is_some_and(|at| at <= now) {
            if self.detect(now) {
                self.cwnd = self.cwnd.min(self.flight() + 1);
                self.push(now, &mut out);
            }
            return out;
        }
        if self.deadline.is_none_or(|at| at > now) {
            return out;
        }
        let probe = self.state == State::Open && !self.probed && self.sent.iter().all(|s| !s.sacked);
        if probe && self.srtt > 0 {
            self.probed = true;
            if let Some(last) = self.sent.back_mut() {
                (last.at, last.again) = (now, true);
                let last = *last;
                out.push(self.packet(last.from, last.to, now));
            }
        } else {
            self.timeouts += 1;
            if self.state != State::Loss {
                self.reduce();
            }
            (self.state, self.high, self.cwnd) = (State::Loss, self.nxt, 1);
            for s in self.sent.iter_mut().filter(|s| !s.sacked) {
                (s.lost, s.again) = (true, false);
            }
            self.backoff += 1;
            self.push(now, &mut out);
        }
        self.arm(now);
        out
    }

    fn deadline(&self) -> Option<u64> {
        self.deadline.into_iter().chain(self.late).min()
    }
}

impl Reno {
    /// A segment with only an acknowledgement.
    fn acknowledgement(&self, now: u64) -> Vec<u8> {
        let base = self.base.expect("a connection");
        let stamps = Some(Stamps { value: 1000 + (now / 1000) as u32, echo: self.echo });
        let header = Header {
            seq: base.seq.wrapping_add(self.nxt),
            options: Options { stamps, ..Options::default() },
            ..base
        };
        let mut packet = vec![0; header.length()];
        header.finish(&mut packet, 0).unwrap();
        packet
    }
}

impl Drop for Reno {
    fn drop(&mut self) {
        if std::env::var("RENO").is_ok() {
            println!(
                "halved {} timeouts {} cwnd {} srtt {}",
                self.halved, self.timeouts, self.cwnd, self.srtt
            );
        }
    }
}
