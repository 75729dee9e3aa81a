//! The datagrams between a server and its receiver; numbers are big-endian.
//!
//! | from the start | |
//! |---|---|
//! | all | magic (1 byte), kind (1) |
//! | hello | packets a report (2), longest delay of a report in ms (2), 0 (2), cookie (16) |
//! | cookie | 0 (2), cookie (16) |
//! | data | layer (1), 0 (1), number (8), sending time in ns of the sender's clock (8), content |
//! | report | 0 (2), cookie (16), highest number (8), packets (8), bytes (8), ns since the highest one arrived (8) |
//! | bye | 0 (2), cookie (16) |
//!
//! Reports count everything since the start, in whole datagrams, so that the next report makes up
//! for a lost one. The answer to a hello is shorter than the hello.

/// First byte of every datagram.
pub const MAGIC: u8 = 0xca;
/// Bytes before the content.
pub const HEADER: usize = 20;
/// Bytes of the largest datagram without content.
pub const CONTROL: usize = 52;

/// Proves that a receiver gets packets at its source address.
pub type Cookie = [u8; 16];

/// A decoded datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A receiver requests the stream. To a hello without a cookie (zeros) the server answers with
    /// one.
    Hello {
        /// When it reports.
        feedback: Feedback,
        /// The server's cookie.
        cookie: Cookie,
    },
    /// The cookie that the receiver must repeat.
    Cookie(Cookie),
    /// A packet of the stream.
    Data {
        /// Its layer.
        layer: u8,
        /// Its number, from 0 on.
        number: u64,
        /// When it was sent, in ns of the sender's clock.
        sent: u64,
        /// Its content.
        content: &'a [u8],
    },
    /// Counts of what arrived.
    Report(Report),
    /// The receiver ends the stream.
    Bye(Cookie),
}

/// When a receiver reports: after `every` packets, or `delay_ms` after the first unreported one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feedback {
    /// Packets; 1: each at once.
    pub every: u16,
    /// Milliseconds.
    pub delay_ms: u16,
}

/// Counts of what arrived since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The session's cookie.
    pub cookie: Cookie,
    /// The highest number that arrived.
    pub highest: u64,
    /// Packets, without duplicates.
    pub packets: u64,
    /// Their bytes, headers and content.
    pub bytes: u64,
    /// Nanoseconds since the highest one arrived.
    pub held: u64,
}

/// Why a datagram is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Wrong length for its kind.
    #[error("{0} bytes are not a datagram of this kind")]
    Length(usize),
    /// Wrong first byte.
    #[error("begins with {0:#04x}, not with {MAGIC:#04x}")]
    Magic(u8),
    /// Unknown kind.
    #[error("{0} is not a kind of datagram")]
    Kind(u8),
    /// Reports would never be sent.
    #[error("asks for reports after 0 packets")]
    Never,
}

const HELLO: u8 = 1;
const COOKIE: u8 = 2;
const DATA: u8 = 3;
const REPORT: u8 = 4;
const BYE: u8 = 5;

impl<'a> Message<'a> {
    /// Decodes a datagram.
    ///
    /// # Errors
    /// The datagram is malformed.
    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, Malformed> {
        let length = || Malformed::Length(bytes.len());
        let (&magic, rest) = bytes.split_first().ok_or_else(length)?;
        if magic != MAGIC {
            return Err(Malformed::Magic(magic));
        }
        let (&kind, rest) = rest.split_first().ok_or_else(length)?;
        let mut fields = Fields(rest);
        let message = match kind {
            HELLO => {
                let (every, delay_ms) = (fields.u16(), fields.u16());
                fields.take::<2>();
                let feedback = Feedback { every, delay_ms };
                Message::Hello { feedback, cookie: fields.take() }
            }
            COOKIE | BYE => {
                fields.take::<2>();
                let cookie = fields.take();
                if kind == BYE { Message::Bye(cookie) } else { Message::Cookie(cookie) }
            }
            DATA => {
                let [layer, _] = fields.take();
                if rest.len() + 2 < HEADER {
                    return Err(length());
                }
                let content = &bytes[HEADER..];
                return Ok(Message::Data { layer, number: fields.u64(), sent: fields.u64(), content });
            }
            REPORT => {
                fields.take::<2>();
                let cookie = fields.take();
                let [highest, packets, bytes, held] = std::array::from_fn(|_| fields.u64());
                Message::Report(Report { cookie, highest, packets, bytes, held })
            }
            _ => return Err(Malformed::Kind(kind)),
        };
        if bytes.len() != message.length() {
            return Err(length());
        }
        match message {
            Message::Hello { feedback: Feedback { every: 0, .. }, .. } => Err(Malformed::Never),
            _ => Ok(message),
        }
    }

    fn length(&self) -> usize {
        match self {
            Message::Hello { .. } => 24,
            Message::Cookie(_) | Message::Bye(_) => 20,
            Message::Data { content, .. } => HEADER + content.len(),
            Message::Report(_) => CONTROL,
        }
    }

    /// Encodes a message without content and returns its length in bytes.
    pub fn write(&self, to: &mut [u8; CONTROL]) -> usize {
        to.fill(0);
        to[0] = MAGIC;
        match self {
            Message::Hello { feedback, cookie } => {
                to[1] = HELLO;
                to[2..4].copy_from_slice(&feedback.every.to_be_bytes());
                to[4..6].copy_from_slice(&feedback.delay_ms.to_be_bytes());
                to[8..24].copy_from_slice(cookie);
            }
            Message::Cookie(cookie) | Message::Bye(cookie) => {
                to[1] = if matches!(self, Message::Bye(_)) { BYE } else { COOKIE };
                to[4..20].copy_from_slice(cookie);
            }
            Message::Data { layer, number, sent, .. } => {
                to[..HEADER].copy_from_slice(&header(*layer, *number, *sent));
                return HEADER;
            }
            Message::Report(report) => {
                to[1] = REPORT;
                to[4..20].copy_from_slice(&report.cookie);
                let numbers = [report.highest, report.packets, report.bytes, report.held];
                for (place, number) in to[20..].chunks_exact_mut(8).zip(numbers) {
                    place.copy_from_slice(&number.to_be_bytes());
                }
            }
        }
        self.length()
    }
}

/// The bytes before the content of a data datagram.
#[must_use]
pub fn header(layer: u8, number: u64, sent: u64) -> [u8; HEADER] {
    let mut to = [0; HEADER];
    to[..4].copy_from_slice(&[MAGIC, DATA, layer, 0]);
    to[4..12].copy_from_slice(&number.to_be_bytes());
    to[12..].copy_from_slice(&sent.to_be_bytes());
    to
}

/// The unread rest of a datagram; reads beyond its end return zeros, and the caller checks the
/// length.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        let (head, rest) = self.0.split_at(N.min(self.0.len()));
        field[..head.len()].copy_from_slice(head);
        self.0 = rest;
        field
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOKIE: Cookie = *b"0123456789abcdef";

    fn all() -> [Message<'static>; 5] {
        [
            Message::Hello { feedback: Feedback { every: 500, delay_ms: 2000 }, cookie: COOKIE },
            Message::Cookie(COOKIE),
            Message::Data { layer: 3, number: 1 << 40, sent: u64::MAX, content: b"" },
            Message::Report(Report { cookie: COOKIE, highest: 7, packets: 6, bytes: 6000, held: 1 }),
            Message::Bye(COOKIE),
        ]
    }

    #[test]
    fn messages_round_trip() {
        for message in all() {
            let mut to = [9; CONTROL];
            let length = message.write(&mut to);
            assert_eq!(Message::parse(&to[..length]), Ok(message));
        }
        let datagram = [&header(2, 1, 5)[..], b"content"].concat();
        let expected = Message::Data { layer: 2, number: 1, sent: 5, content: b"content" };
        assert_eq!(Message::parse(&datagram), Ok(expected));
    }

    #[test]
    fn answer_is_shorter_than_the_hello() {
        let [hello, cookie, ..] = all();
        assert!(cookie.length() < hello.length());
    }

    #[test]
    fn other_lengths_are_refused() {
        for message in all() {
            let mut to = [0; CONTROL];
            let length = message.write(&mut to);
            for cut in 0..length {
                assert_eq!(Message::parse(&to[..cut]), Err(Malformed::Length(cut)), "{message:?}");
            }
            let more = [&to[..length], &[0]].concat();
            match message {
                Message::Data { .. } => assert!(Message::parse(&more).is_ok()),
                _ => assert_eq!(Message::parse(&more), Err(Malformed::Length(length + 1))),
            }
        }
        let mut to = [0; CONTROL];
        let length = all()[0].write(&mut to);
        for (at, octet, why) in
            [(0, 1, Malformed::Magic(1)), (1, 6, Malformed::Kind(6)), (1, 0, Malformed::Kind(0))]
        {
            let mut bad = to;
            bad[at] = octet;
            assert_eq!(Message::parse(&bad[..length]), Err(why));
        }
        to[2..4].fill(0);
        assert_eq!(Message::parse(&to[..length]), Err(Malformed::Never));
    }
}
