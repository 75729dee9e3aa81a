//! A suspended connection in serialized form (section 1: suspension and migration): one sealed
//! continuation, the user continuations, and the stream positions. Requests in flight are sent
//! again after the resumption.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use rivulet_packet::SealedContinuation;

use super::connection::{Config, Connection, Phase, Stream};
use super::generation::Generation;
use super::input::Input;
use super::output::{Output, REGION_BITS};
use crate::seal::address_bytes;
use crate::time::Time;
use crate::ucont::{MAX_UCONT, validity};

const MAGIC: &[u8; 4] = b"RVS1";

/// Why bytes are not a suspended connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a suspended connection, or a damaged one")]
pub struct ResumeError;

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, n: usize) -> Result<&'a [u8], ResumeError> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(ResumeError)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ResumeError> {
        self.bytes(N)?.try_into().map_err(|_| ResumeError)
    }

    fn u8(&mut self) -> Result<u8, ResumeError> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, ResumeError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, ResumeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, ResumeError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    fn address(&mut self) -> Result<SocketAddr, ResumeError> {
        let ip: IpAddr = Ipv6Addr::from(self.array::<16>()?).to_canonical();
        Ok(SocketAddr::new(ip, self.u16()?))
    }

    fn long(&mut self) -> Result<&'a [u8], ResumeError> {
        let n = self.u32()?;
        self.bytes(n as usize)
    }
}

fn put_long(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_be_bytes());
    out.extend(bytes);
}

fn put_list<'a>(out: &mut Vec<u8>, list: impl Iterator<Item = &'a [u8]>) {
    let list: Vec<_> = list.collect();
    out.push(list.len() as u8);
    for bytes in list {
        put_long(out, bytes);
    }
}

impl Connection {
    /// Serializes the connection, to be resumed by another process or from another address. `None`:
    /// it has no continuation yet, or is over. The connection itself ends.
    pub fn suspend(mut self) -> Option<Vec<u8>> {
        if !matches!(self.phase, Phase::Open) {
            return None;
        }
        self.abandon_outstanding();
        for want in core::mem::take(&mut self.wanted_in_revival) {
            self.settle_want(want);
        }
        let generation = self.generation.as_ref()?;
        let sealed = generation.latest_continuation().and_then(|i| generation.slot(i)?.sealed)?;
        let mut out = MAGIC.to_vec();
        out.extend(address_bytes(self.sealed_for));
        out.extend(address_bytes(self.remote));
        out.extend(sealed.fields.to_bytes());
        out.extend(sealed.mac);
        out.extend(self.seq.to_be_bytes());
        out.extend(self.ack.to_be_bytes());
        out.extend(self.next_stream.to_be_bytes());
        out.extend((self.streams.len() as u16).to_be_bytes());
        for (id, s) in &self.streams {
            out.extend(id.to_be_bytes());
            let (base, unconsumed, finished) = s.input.position();
            out.extend(base.to_be_bytes());
            out.push(u8::from(finished));
            put_long(&mut out, &unconsumed);
            put_list(&mut out, s.input.continuations());
            let (next, unread, end) = s.output.position();
            out.extend(next.to_be_bytes());
            out.push(u8::from(end.is_some()));
            out.extend(end.unwrap_or(0).to_be_bytes());
            put_long(&mut out, &unread);
            put_list(&mut out, s.output.continuations());
        }
        Some(out)
    }

    /// The connection from another local address with another MTU, with its counts. `None`: as for [`suspend`](Self::suspend).
    #[must_use]
    pub fn relocated(self, local: SocketAddr, mtu: u16, now: Time) -> Option<Self> {
        let config = Config { mtu, token: None, ..self.config.clone() };
        let statistics = self.statistics;
        let mut moved = Self::resume(&self.suspend()?, config, local, now).ok()?;
        moved.statistics = statistics;
        Some(moved)
    }

    /// Resumes a suspended connection from `local`, which may be another address or port. It sends
    /// a RESTART as soon as there is something to request.
    ///
    /// # Errors
    /// [`ResumeError`]: the bytes are damaged. Deliberately changed bytes yield a connection that
    /// the server refuses.
    pub fn resume(bytes: &[u8], config: Config, local: SocketAddr, now: Time) -> Result<Self, ResumeError> {
        let mut r = Reader(bytes);
        if r.bytes(4)? != MAGIC {
            return Err(ResumeError);
        }
        let (sealed_for, remote) = (r.address()?, r.address()?);
        let sealed = SealedContinuation::from_bytes(&r.array()?).map_err(|_| ResumeError)?;
        let mut connection = Self::open(config, local, remote, now);
        (connection.seq, connection.ack, connection.next_stream) = (r.u32()?, r.u32()?, r.u16()?.max(1));
        connection.sealed_for = sealed_for;
        connection.generation = Some(Generation::resumed(sealed));
        connection.must_restart = true;
        connection.phase = Phase::Open;
        let (receive, send) = (connection.config.receive_buffer, connection.config.send_buffer);
        connection.streams.clear();
        for _ in 0..r.u16()? {
            // No connection opens a stream 65,535, whose offsets would not fit in 64 bits.
            let id = r.u16().ok().filter(|id| *id < u16::MAX).ok_or(ResumeError)?;
            let (base, finished) = (r.u64()?, r.u8()? != 0);
            let unconsumed = r.long()?;
            let end = base.checked_add(unconsumed.len() as u64);
            end.filter(|end| *end <= 1 << REGION_BITS).ok_or(ResumeError)?;
            let mut input = Input::resumed(send, base, unconsumed, finished);
            for _ in 0..r.u8()? {
                let sealed = r.long()?;
                let valid =
                    validity(sealed).filter(|v| v.input && sealed.len() <= MAX_UCONT).ok_or(ResumeError)?;
                input.hold(valid, sealed);
            }
            let (next, has_end, end) = (r.u64()?, r.u8()? != 0, r.u64()?);
            let unread = r.long()?;
            let mut output = Output::resumed(id, receive, next, unread, has_end.then_some(end));
            for _ in 0..r.u8()? {
                let sealed = r.long()?;
                let valid =
                    validity(sealed).filter(|v| !v.input && sealed.len() <= MAX_UCONT).ok_or(ResumeError)?;
                output.hold(valid, sealed);
            }
            let reported_consumed = input.is_consumed();
            let stream =
                Stream { input, output, reported_readable: false, blocked_writer: false, reported_consumed };
            connection.streams.insert(id, stream);
        }
        if !r.0.is_empty() {
            return Err(ResumeError);
        }
        if connection.streams.is_empty() {
            connection.open_stream(0);
        }
        connection.announce();
        Ok(connection)
    }
}
