//! The connection to one memcached server: it is reopened when it breaks, commands are pipelined,
//! and answers arrive in their order.

use std::collections::{HashSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rivulet_pktio::begin_connection;

use super::put_command;

/// Pause between attempts to connect.
const RETRY: Duration = Duration::from_millis(200);
/// A connection without an answer for this long is broken.
const SILENCE: Duration = Duration::from_secs(1);
/// Limits on the bytes that wait to be sent, and on the commands without an answer: beyond them a
/// server gets no further records.
const MAX_OUT: usize = 4 << 20;
const MAX_WAITING: usize = 65_536;
/// Limit on the length of a line in an answer, bytes.
const MAX_LINE: usize = 2048;
/// Limit on the deletions that wait for an unreachable server; further records expire.
const MAX_STALE: usize = 65_536;

/// Kind of a command that was sent to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Put,
    /// A command with an answer that is ignored.
    Other,
}

/// The server's answer to the storing of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub serial: u64,
    pub kept: bool,
}

#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    stream: Option<TcpStream>,
    retry_at: Instant,
    /// Until this time the server is used only if no other one is left.
    pub suspect_until: Instant,
    out: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    waiting: VecDeque<(u64, Kind, Instant)>,
    /// Time of the server's last answer.
    answered: Option<Instant>,
    /// Opaque numbers of commands that store no record; they count down from the largest.
    others: u64,
    /// Numbers of records to delete on the server.
    stale: HashSet<u32>,
    /// Failures to report for the records that were in flight when the connection broke.
    broken: Vec<Answer>,
    /// Whether the connection broke since the last call of `take_lost`.
    lost: bool,
}

/// A replica's key prefix, and the sealed values by which others find its records.
#[derive(Debug)]
pub(super) struct Names {
    pub prefix: String,
    /// Key of the list of incarnations, and the sealed list.
    pub index_key: String,
    pub index: Vec<u8>,
    /// The sealed bound above all numbers in use; empty if none is in use.
    pub count: Vec<u8>,
}

impl Server {
    pub fn new(address: SocketAddr, now: Instant) -> Server {
        Server {
            address,
            stream: None,
            retry_at: now,
            suspect_until: now,
            out: Vec::new(),
            sent: 0,
            input: Vec::new(),
            waiting: VecDeque::new(),
            answered: None,
            others: u64::MAX,
            stale: HashSet::new(),
            broken: Vec::new(),
            lost: false,
        }
    }

    /// Whether the server can take another record.
    pub fn takes(&self) -> bool {
        self.stream.is_some() && self.out.len() - self.sent < MAX_OUT && self.waiting.len() < MAX_WAITING
    }

    pub fn descriptor(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.stream.as_ref().map(|stream| (stream.as_fd(), self.sent < self.out.len()))
    }

    pub fn deadline(&self) -> Instant {
        if !self.broken.is_empty() {
            return self.retry_at - RETRY;
        }
        match (&self.stream, self.waiting.front()) {
            (None, _) => self.retry_at,
            (Some(_), Some((_, _, since))) => *since + SILENCE,
            // Connected, and nothing to wait for.
            (Some(_), None) => self.retry_at + Duration::from_secs(3600),
        }
    }

    /// Whether any answer is missing for longer than `patience`.
    pub fn is_late(&self, now: Instant, patience: Duration) -> bool {
        self.waiting.front().is_some_and(|(_, _, since)| now.saturating_duration_since(*since) >= patience)
    }

    /// Whether the server has sent any answer within this time.
    pub fn answers(&self, now: Instant, within: Duration) -> bool {
        self.stream.is_some() && self.answered.is_some_and(|at| now.saturating_duration_since(at) < within)
    }

    pub fn put(&mut self, prefix: &str, n: u32, serial: u64, record: &[u8], now: Instant) {
        put_command(format_args!("{prefix}.{n}"), serial, record, &mut self.out);
        self.waiting.push_back((serial, Kind::Put, now));
        // The new record replaces the one that was to be deleted.
        self.stale.remove(&n);
    }

    /// Stores the list of the replica's incarnations, and the bound on its numbers if it has
    /// records.
    pub fn announce(&mut self, names: &Names, now: Instant) {
        if self.stream.is_none() {
            return;
        }
        let both = [(&names.index_key, &names.index), (&names.prefix, &names.count)];
        for (key, value) in both.into_iter().filter(|(_, value)| !value.is_empty()) {
            self.others -= 1;
            put_command(format_args!("{key}"), self.others, value, &mut self.out);
            self.waiting.push_back((self.others, Kind::Other, now));
        }
    }

    /// Deletes a record, as soon as the server can be reached.
    pub fn delete(&mut self, n: u32) {
        if self.stale.len() < MAX_STALE {
            self.stale.insert(n);
        }
    }

    /// Whether the connection broke since the last call.
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// Connects if there is no connection and the pause is over. Returns whether there is one,
    /// possibly still being opened.
    pub fn reconnect(&mut self, now: Instant, names: &Names) -> bool {
        if self.stream.is_none() && now >= self.retry_at {
            self.retry_at = now + RETRY;
            match begin_connection(self.address) {
                Ok(stream) => {
                    self.stream = Some(stream);
                    self.announce(names, now);
                }
                Err(e) => tracing::debug!(server = %self.address, "the store cannot be reached: {e}"),
            }
        }
        self.stream.is_some() || !self.broken.is_empty()
    }

    /// Sends waiting commands and reads answers.
    pub fn turn(&mut self, prefix: &str, answers: &mut Vec<Answer>, now: Instant) {
        if self.takes() {
            for n in self.stale.drain() {
                self.others -= 1;
                // Writing into memory does not fail.
                let _ = write!(self.out, "md {prefix}.{n} O{}\r\n", self.others);
                self.waiting.push_back((self.others, Kind::Other, now));
            }
        }
        self.flush(now);
        let before = self.waiting.len();
        if let Err(e) = self.receive(answers) {
            self.fail(&e, now);
        } else if self.waiting.len() < before {
            self.answered = Some(now);
        }
        if self.waiting.front().is_some_and(|(_, _, since)| now.saturating_duration_since(*since) >= SILENCE)
        {
            self.fail(&io::ErrorKind::TimedOut.into(), now);
        }
        answers.append(&mut self.broken);
    }

    pub fn flush(&mut self, now: Instant) {
        while let Some(stream) = self.stream.as_mut().filter(|_| self.sent < self.out.len()) {
            match stream.write(&self.out[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // A connection that is still being opened cannot be read from either.
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected) => {
                    break;
                }
                Err(e) => self.fail(&e, now),
            }
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        } else if self.sent > MAX_OUT {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
    }

    fn receive(&mut self, answers: &mut Vec<Answer>) -> io::Result<()> {
        let mut chunk = [0; 16_384];
        while let Some(stream) = self.stream.as_mut() {
            let count = match stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected) => {
                    break;
                }
                Err(e) => return Err(e),
            };
            self.input.extend_from_slice(&chunk[..count]);
            self.read_answers(answers)?;
            // A short read: the socket is empty, and epoll reports further data or the end.
            if count < chunk.len() {
                break;
            }
        }
        Ok(())
    }

    fn read_answers(&mut self, answers: &mut Vec<Answer>) -> io::Result<()> {
        let rubbish = || io::Error::from(io::ErrorKind::InvalidData);
        let mut at = 0;
        while let Some(end) = self.input[at..].iter().position(|&b| b == b'\n') {
            let line = self.input[at..at + end].trim_ascii_end();
            let (serial, kind, _) = *self.waiting.front().ok_or_else(rubbish)?;
            let mut words = line.split(|&b| b == b' ');
            let said = words.next().unwrap_or_default();
            let kept = match said {
                // The server is out of memory or faulty: it answers but stores nothing.
                b"SERVER_ERROR" => false,
                b"HD" | b"NF" | b"NS" | b"EX" => {
                    let opaque =
                        words.next().and_then(|word| std::str::from_utf8(word.strip_prefix(b"O")?).ok());
                    if opaque.and_then(|digits| digits.parse().ok()) != Some(serial) {
                        return Err(rubbish());
                    }
                    said == b"HD"
                }
                _ => return Err(rubbish()),
            };
            self.waiting.pop_front();
            if kind == Kind::Put {
                answers.push(Answer { serial, kept });
            }
            at += end + 1;
        }
        self.input.drain(..at);
        if self.input.len() > MAX_LINE { Err(rubbish()) } else { Ok(()) }
    }

    fn fail(&mut self, error: &io::Error, now: Instant) {
        tracing::debug!(server = %self.address, "the store's connection broke: {error}");
        self.stream = None;
        self.lost = true;
        self.retry_at = now + RETRY;
        (self.sent, self.out, self.input) = (0, Vec::new(), Vec::new());
        for (serial, kind, _) in self.waiting.drain(..) {
            if kind == Kind::Put {
                self.broken.push(Answer { serial, kept: false });
            }
        }
    }
}
