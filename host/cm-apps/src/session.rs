//! One receiver's stream: its flow, its outstanding packets, and its content.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use libcm::{Client, Congestion, Error, FlowId, Status, Update};

use crate::Nanos;
use crate::journal::{Journal, Served};
use crate::layers::MOST;
use crate::outstanding::{Learnt, Outstanding};
use crate::source::{Next, Source};
use crate::time::{MILLISECOND, SECOND};
use crate::wire::{self, Cookie, Feedback, HEADER, Report};

/// Shortest feedback timeout, to which the receiver's report delay is added (RFC 6298 §2.4).
const LEAST_PATIENCE: Nanos = SECOND;
/// Shortest interval of journal lines about the share.
const LINE: Nanos = 20 * MILLISECOND;
/// Largest number of requests made at once.
const REQUESTS: u32 = 64;

/// A stream.
#[derive(Debug)]
pub struct Session {
    to: SocketAddr,
    who: String,
    flow: FlowId,
    mtu: u32,
    cookie: Cookie,
    feedback: Feedback,
    source: Box<dyn Source>,
    outstanding: Outstanding,
    /// Requests that were not granted yet.
    asked: u32,
    last_message: Nanos,
    /// The receiver is removed after this time without a message.
    timeout: Nanos,
    /// The last round trip time sample.
    sample: Nanos,
    status: Option<Status>,
    layer: Option<u8>,
    /// When the share was last logged.
    line: Nanos,
    layers: [u64; MOST],
    bytes: u64,
    reports: u64,
    lost: u64,
    switches: u64,
}

/// Result of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// A datagram was sent, or none was ready.
    Done,
    /// The socket's send buffer is full.
    Blocked,
}

impl Session {
    /// Creates the session of an open flow with datagrams of up to `mtu` bytes.
    #[must_use]
    pub fn new(
        now: Nanos,
        to: SocketAddr,
        (flow, mtu): (FlowId, u32),
        (cookie, feedback): (Cookie, Feedback),
        source: Box<dyn Source>,
        timeout: Nanos,
    ) -> Session {
        Session {
            to,
            who: to.to_string(),
            flow,
            mtu,
            cookie,
            feedback,
            source,
            outstanding: Outstanding::default(),
            asked: 0,
            last_message: now,
            timeout,
            sample: 0,
            status: None,
            layer: None,
            line: 0,
            layers: [0; MOST],
            bytes: 0,
            reports: 0,
            lost: 0,
            switches: 0,
        }
    }

    /// The flow.
    #[must_use]
    pub fn flow(&self) -> FlowId {
        self.flow
    }

    /// Bytes of the largest datagrams.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Subscribes to the changes that the content needs, and makes the first requests.
    ///
    /// # Errors
    /// The manager's error.
    pub fn begin(&mut self, now: Nanos, client: &mut Client, journal: &mut Journal) -> anyhow::Result<()> {
        let Feedback { every, delay_ms } = self.feedback;
        journal.write(now, Some(&self.who), &Served::Open { bytes: self.mtu, every, delay_ms })?;
        if let Some(thresholds) = self.source.thresholds() {
            client.thresh(self.flow, &thresholds)?;
            client.register_update(self.flow, true)?;
        }
        self.tick(now);
        Ok(self.ask(client)?)
    }

    /// Requests grants for the datagrams that are ready.
    ///
    /// # Errors
    /// The manager's error.
    pub fn ask(&mut self, client: &mut Client) -> Result<(), Error> {
        let more = self.source.ready().min(REQUESTS).saturating_sub(self.asked);
        if more == 0 {
            return Ok(());
        }
        match client.request(self.flow, more) {
            // The limit of waiting requests is reached; the next grant requests again.
            Err(Error::Refused(_)) if self.asked > 0 => return Ok(()),
            done => done?,
        }
        self.asked += more;
        Ok(())
    }

    /// Handles a grant of one datagram (`cmapp_send`).
    ///
    /// # Errors
    /// An error of the manager, the socket or the journal.
    pub fn granted(
        &mut self,
        now: Nanos,
        client: &mut Client,
        socket: &UdpSocket,
        journal: &mut Journal,
        room: &mut [u8],
    ) -> anyhow::Result<Sent> {
        self.asked = self.asked.saturating_sub(1);
        if self.source.ready() == 0 {
            client.decline(self.flow)?;
            return Ok(Sent::Done);
        }
        if self.source.asks() {
            self.status = client.query(self.flow)?;
        }
        let room = &mut room[..self.mtu as usize];
        let Some(Next { layer, bytes }) = self.source.next(now, self.status, &mut room[HEADER..]) else {
            client.decline(self.flow)?;
            return Ok(Sent::Done);
        };
        let datagram = &mut room[..HEADER + bytes];
        datagram[..HEADER].copy_from_slice(&wire::header(layer, self.outstanding.next(), now));
        match socket.send_to(datagram, self.to) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                client.decline(self.flow)?;
                return Ok(Sent::Blocked);
            }
            Err(e) => return Err(e.into()),
        }
        self.outstanding.sent(now, datagram.len() as u32);
        self.layers[usize::from(layer).min(MOST - 1)] += 1;
        self.bytes += datagram.len() as u64;
        if self.layer != Some(layer) {
            self.changed_layer(now, layer, journal)?;
        }
        self.ask(client)?;
        Ok(Sent::Done)
    }

    fn changed_layer(&mut self, now: Nanos, to: u8, journal: &mut Journal) -> io::Result<()> {
        let from = self.layer.replace(to);
        self.switches += u64::from(from.is_some());
        let rate = self.status.map(|s| s.rate * 8);
        let rtt_ms = self.status.map(|s| ms(s.rtt));
        let line = Served::Layer { from, to, rate, rtt_ms, sample_ms: ms(self.sample) };
        journal.write(now, Some(&self.who), &line)
    }

    /// Applies a receiver's report. Returns its new information, for [`Learnt::part`], or `None` if
    /// it has none or has another stream's cookie.
    pub fn report(&mut self, now: Nanos, report: &Report) -> Option<Learnt> {
        if report.cookie != self.cookie {
            return None;
        }
        self.last_message = now;
        let learnt = self.outstanding.report(now, report)?;
        self.reports += 1;
        self.lost += learnt.lost;
        self.sample = learnt.rtt;
        Some(learnt)
    }

    /// Logs the flow's share, unless it was just logged.
    ///
    /// # Errors
    /// An error of the manager or the journal.
    pub fn write_share(
        &mut self,
        now: Nanos,
        client: &mut Client,
        journal: &mut Journal,
    ) -> anyhow::Result<()> {
        if now < self.line + LINE {
            return Ok(());
        }
        let Some(status) = client.query(self.flow)? else { return Ok(()) };
        self.line = now;
        let line = Served::Share {
            rate: status.rate * 8,
            rtt_ms: ms(status.rtt),
            sample_ms: ms(self.sample),
            loss: status.loss,
            sent: self.layers.iter().sum(),
            bytes: self.bytes,
            ready: self.source.ready(),
            dropped: self.source.dropped(),
        };
        Ok(journal.write(now, Some(&self.who), &line)?)
    }

    /// Handles a crossed threshold (`cmapp_update`), which may change the thresholds.
    ///
    /// # Errors
    /// The manager's error.
    pub fn changed(&mut self, now: Nanos, client: &mut Client, status: Status) -> Result<(), Error> {
        self.status = Some(status);
        let before = self.source.thresholds();
        self.source.changed(now, &status);
        match self.source.thresholds() {
            Some(thresholds) if Some(thresholds) != before => client.thresh(self.flow, &thresholds),
            _ => Ok(()),
        }
    }

    /// Offers a datagram from the audio source.
    pub fn offer(&mut self, now: Nanos, content: &[u8]) {
        self.source.offer(now, content);
    }

    /// When the session must be called next.
    #[must_use]
    pub fn due(&self) -> Nanos {
        let silent = self.outstanding.oldest().map(|sent| sent.max(self.last_message) + self.patience());
        [self.source.due(), silent].into_iter().flatten().fold(self.last_message + self.timeout, Nanos::min)
    }

    fn patience(&self) -> Nanos {
        let rtt = self.status.map_or(self.sample, |s| s.rtt + 4 * s.deviation);
        LEAST_PATIENCE.max(rtt) + Nanos::from(self.feedback.delay_ms) * MILLISECOND
    }

    /// Ticks the content's clock if it is due.
    pub fn tick(&mut self, now: Nanos) {
        if self.source.due().is_some_and(|due| due <= now) {
            self.source.tick(now);
        }
    }

    /// Whether the receiver has timed out.
    #[must_use]
    pub fn timed_out(&self, now: Nanos) -> bool {
        now >= self.last_message + self.timeout
    }

    /// Counts everything outstanding as lost if no feedback arrived for the timeout
    /// (`CM_LOST_FEEDBACK`).
    ///
    /// # Errors
    /// An error of the manager or the journal.
    pub fn give_up(&mut self, now: Nanos, client: &mut Client, journal: &mut Journal) -> anyhow::Result<()> {
        let Some(sent) = self.outstanding.oldest() else { return Ok(()) };
        if now < sent.max(self.last_message) + self.patience() {
            return Ok(());
        }
        let bytes = self.outstanding.give_up();
        let update = Update { nsent: bytes, nrecd: 0, congestion: Congestion::Persistent, rtt: 0 };
        client.update(self.flow, &update)?;
        Ok(journal.write(now, Some(&self.who), &Served::Silence { bytes })?)
    }

    /// Closes the flow and logs the totals.
    ///
    /// # Errors
    /// The journal's error.
    pub fn close(
        self,
        now: Nanos,
        client: &mut Client,
        journal: &mut Journal,
        why: &'static str,
    ) -> io::Result<()> {
        // The manager may already have closed it, if it no longer admits this user.
        let _ = client.close(self.flow);
        let Session { bytes, reports, lost, switches, .. } = self;
        let layers = self.layers.to_vec();
        let dropped = self.source.dropped();
        let line = Served::Close { why, layers, bytes, reports, lost, switches, dropped };
        journal.write(now, Some(&self.who), &line)
    }

    /// Whether the cookie belongs to this session.
    #[must_use]
    pub fn has_cookie(&self, cookie: &Cookie) -> bool {
        self.cookie == *cookie
    }
}

fn ms(ns: Nanos) -> f64 {
    ns as f64 / MILLISECOND as f64
}
