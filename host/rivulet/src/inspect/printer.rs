//! The parts of a packet as text, a field a line or all in one.

use std::fmt::{Display, Write};

use rivulet_packet::parts::Part;
use rivulet_packet::request::HOLD_UNIT;
use rivulet_packet::{Body, ProofEntry, SealedContinuation, TransportContinuation, Want};
use rivulet_transport::ucont;

/// Octets of data shown.
const SHOWN: usize = 48;

pub(super) struct Printer {
    pub(super) text: String,
    /// All in one line.
    pub(super) brief: bool,
}

impl Printer {
    pub(super) fn new(brief: bool) -> Self {
        Printer { text: String::new(), brief }
    }

    pub(super) fn field(&mut self, name: &str, value: &dyn Display) {
        // Writing to a String does not fail.
        let _ = if self.brief {
            write!(self.text, " {name} {value}")
        } else {
            writeln!(self.text, "    {name:<14} {value}")
        };
    }

    /// A field that the brief form leaves out.
    pub(super) fn detail(&mut self, name: &str, value: &dyn Display) {
        if !self.brief {
            self.field(name, value);
        }
    }

    /// A line of its own, which the brief form leaves out.
    pub(super) fn line(&mut self, value: &dyn Display) {
        if !self.brief {
            let _ = writeln!(self.text, "{value}");
        }
    }

    /// The fields of a part; gives the octets of its data, which the caller shows.
    pub(super) fn part<'a>(&mut self, part: &Part<'a>) -> Option<&'a [u8]> {
        match part {
            Part::Tor(tor) => {
                self.field("tor", &format_args!("{tor}, {} exclusions", tor.exclusions));
                self.field("tor epochs", &format_args!("seal {}, nonce {}", tor.seal_epoch, tor.nonce_epoch));
            }
            Part::Counts { entries, attempt } => {
                self.field("counts", &format_args!("{entries} proof entries, attempt {attempt}"));
            }
            Part::Head(c) => {
                self.field("number", &format_args!("{}, tag {:08x}, base {}", c.number, c.tag, c.base));
            }
            Part::Proof(entry) => self.field("proof", entry),
            Part::Continuation(sealed) => self.sealed(sealed),
            Part::Fields { hold, covers, wants, uconts } => {
                let hold = u64::from(*hold) * HOLD_UNIT;
                self.field("hold", &format_args!("{hold} us, covers {covers}"));
                self.field(
                    "body",
                    &format_args!("{}, {}", count(*wants, "want"), count(*uconts, "user continuation")),
                );
            }
            Part::Want(want) => self.want(want),
            Part::Token(token) => self.field("token", &Hex(token)),
            Part::Former(former) => self.field("former", former),
            Part::Ucont(sealed) => self.user(sealed),
            Part::Input { input, length } => {
                let end = if input.end { ", the end" } else { "" };
                let (offset, stream) = (input.offset, input.stream);
                self.field("input", &format_args!("{length} bytes at {offset} of stream {stream}{end}"));
                return Some(input.data);
            }
            Part::Padding(octets) => self.field("padding", octets),
            Part::Response { number, nonce, prime, answers } => {
                let prime = if *prime { " under K'" } else { "" };
                self.field(
                    "number",
                    &format_args!("{number}, nonce {nonce:08x}{prime}, answers ..{answers:02x}"),
                );
            }
            Part::Delta(delta) => self.field("delta", &format_args!("{delta:?}")),
            Part::Offset { offset, end } => {
                self.field("offset", &format_args!("{offset}{}", if *end { ", the end" } else { "" }));
            }
            Part::Consumed(c) => {
                self.field("consumed", &format_args!("stream {} up to {}", c.stream, c.offset));
            }
            Part::Body(Body::Data | Body::Retransmission | Body::Input) => {}
            Part::Body(body) => self.field("body", &format_args!("{body:?}")),
            Part::Member(member) => self.field("group", &member.continuation.fields),
            Part::Data { data, length } => {
                self.field("data", &format_args!("{length} bytes"));
                return Some(data);
            }
            // Parts to come.
            _ => {}
        }
        None
    }

    fn want(&mut self, want: &Want) {
        let again = if want.retransmit { ", again" } else { "" };
        let by = want.ucont.map_or(String::new(), |i| format!(" by continuation {i}"));
        self.field("want", &format_args!("{} bytes at {}{by}{again}", want.length, want.offset));
    }

    fn sealed(&mut self, sealed: &SealedContinuation) {
        let TransportContinuation {
            time,
            nonce_epoch,
            seal_epoch,
            tor_id,
            exclusions,
            wire_base,
            mss,
            marked,
            connection,
            ..
        } = sealed.fields;
        self.field("continuation", &sealed.fields);
        self.field(
            "",
            &format_args!("time {time} us of tor {tor_id:04x}, {exclusions} exclusions, marked {marked}"),
        );
        self.field(
            "",
            &format_args!("epochs seal {seal_epoch} nonce {nonce_epoch}, mss {mss}, wire base {wire_base}"),
        );
        self.field("", &format_args!("connection {connection:016x}, mac {}", Hex(&sealed.mac)));
    }

    fn user(&mut self, sealed: &[u8]) {
        match ucont::validity(sealed) {
            Some(v) => {
                let kind = if v.input { "input" } else { "output" };
                let end = if v.valid_end == u64::MAX { "end".into() } else { v.valid_end.to_string() };
                let (stream, start, length) = (v.stream, v.valid_start, sealed.len());
                let what = format!("{kind} of stream {stream}, {start} to {end}, {length} bytes");
                self.field("user", &what);
            }
            None => self.field("user", &format_args!("malformed, {} bytes", sealed.len())),
        }
    }
}

/// A packet's parts in one line: those that are there, whether whole or cut.
#[derive(Default)]
pub(super) struct Line {
    head: Option<TransportContinuation>,
    continuation: Option<SealedContinuation>,
    proof: Vec<ProofEntry>,
    /// Number of a response, and whether it is under K'.
    number: Option<(u32, bool)>,
    rest: String,
    offset: Option<u64>,
    octets: usize,
}

impl Line {
    pub(super) fn part(&mut self, part: &Part<'_>) {
        // Writing to a String does not fail.
        let _ = match part {
            Part::Head(c) => return self.head = Some(*c),
            Part::Continuation(c) => return self.continuation = Some(*c),
            Part::Proof(entry) => return self.proof.push(*entry),
            Part::Response { number, prime, .. } => return self.number = Some((*number, *prime)),
            Part::Offset { offset, .. } => return self.offset = Some(*offset),
            Part::Data { length, .. } => return self.octets = *length,
            Part::Delta(_) => write!(self.rest, " [delta]"),
            Part::Fields { wants, .. } => write!(self.rest, ", {}", count(*wants, "want")),
            Part::Input { input, length } => {
                write!(self.rest, ", {length} bytes of input at {}", input.offset)
            }
            _ => Ok(()),
        };
    }
}

impl Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some((number, prime)) = self.number {
            write!(f, " #{number}{}", if prime { "'" } else { "" })?;
            if let Some(c) = &self.continuation {
                write!(f, " [{}]", c.fields)?;
            }
        } else {
            match (&self.continuation, &self.head) {
                (Some(c), _) => write!(f, " {}", c.fields)?,
                (None, Some(c)) => write!(f, " {:08x} #{} base {}", c.tag, c.number, c.base)?,
                (None, None) => {}
            }
            if self.head.is_some() {
                let proof: Vec<String> = self.proof.iter().map(ToString::to_string).collect();
                // Without the tail behind it, the proof may have entries that are not there.
                let more = if self.continuation.is_some() { "" } else { " ..." };
                write!(f, " proof [{}{more}]", proof.join(", "))?;
            }
        }
        f.write_str(&self.rest)?;
        if self.octets > 0 {
            write!(f, ", {} bytes", self.octets)?;
        }
        self.offset.map_or(Ok(()), |offset| write!(f, " at {offset}"))
    }
}

fn count(n: u8, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

struct Hex<'a>(&'a [u8]);

impl Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// The first octets of data, printable ones as they are.
pub(super) struct Octets<'a>(pub(super) &'a [u8]);

impl Display for Octets<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN)];
        write!(f, "\"{}\"", shown.escape_ascii())?;
        if self.0.len() > SHOWN { f.write_str("...") } else { Ok(()) }
    }
}
