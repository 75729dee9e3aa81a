//! One packet as text, a field a line.

use std::fmt::Write;

use rivulet_packet::heartbeat::{ETHER_TYPE, Heartbeat};
use rivulet_packet::{
    Body, EthHeader, NewContinuation, Request, Response, SealedContinuation, Segment, TransportContinuation,
    WireError,
};
use rivulet_transport::ucont;

/// A packet of ours.
pub struct Text {
    /// One line, or one for each field.
    pub text: String,
    /// It breaks a rule of the format.
    pub malformed: bool,
}

/// Octets of data shown.
const SHOWN: usize = 48;

/// Describes a frame or an IP packet; none if it is not of ours.
pub fn packet(bytes: &[u8], brief: bool) -> Option<Text> {
    let mut p = Printer { text: String::new(), brief };
    let malformed = match p.any(bytes) {
        Ok(true) => false,
        Ok(false) => return None,
        Err(e) => {
            p.field("malformed", &e);
            true
        }
    };
    if !p.text.ends_with('\n') {
        p.text.push('\n');
    }
    Some(Text { text: p.text, malformed })
}

struct Printer {
    text: String,
    brief: bool,
}

impl Printer {
    fn field(&mut self, name: &str, value: &dyn std::fmt::Display) {
        // Writing to a String does not fail.
        let _ = if self.brief {
            write!(self.text, " {name} {value}")
        } else {
            writeln!(self.text, "    {name:<14} {value}")
        };
    }

    fn detail(&mut self, name: &str, value: &dyn std::fmt::Display) {
        if !self.brief {
            self.field(name, value);
        }
    }

    fn any(&mut self, bytes: &[u8]) -> Result<bool, WireError> {
        let is_ip =
            bytes.first().is_some_and(|b| matches!(b >> 4, 4 | 6)) && Segment::parse_packet(bytes).is_ok();
        if is_ip {
            return self.segment(&Segment::parse_packet(bytes)?).map(|()| true);
        }
        if let Ok((header, kind)) = EthHeader::parse(bytes)
            && kind == ETHER_TYPE
        {
            let _ = write!(self.text, "{header}");
            let beat = Heartbeat::parse(&bytes[header.length()..])?;
            let _ = writeln!(self.text, " {beat}");
            self.detail("incarnation", &format_args!("{:#06x}", beat.incarnation));
            return Ok(true);
        }
        match Segment::parse_frame(bytes) {
            Ok((header, segment)) => {
                self.detail_line(&header);
                self.segment(&segment).map(|()| true)
            }
            // Everything that is not TCP with our option.
            Err(
                WireError::OptionMissing(_)
                | WireError::EthType(_)
                | WireError::EthTruncated(_)
                | WireError::EthTagTwice(_),
            ) => Ok(false),
            Err(e) if is_foreign(&e) => Ok(false),
            Err(e) => {
                let _ = write!(self.text, "segment");
                Err(e)
            }
        }
    }

    fn detail_line(&mut self, value: &dyn std::fmt::Display) {
        if !self.brief {
            let _ = writeln!(self.text, "{value}");
        }
    }

    fn segment(&mut self, segment: &Segment<'_>) -> Result<(), WireError> {
        let _ = if self.brief { write!(self.text, "{segment}") } else { writeln!(self.text, "  {segment}") };
        if let Some(o) = &segment.syn_options {
            self.detail("mss", &o.mss);
        }
        self.detail("ecn", &segment.ecn);
        if let Err(e) = segment.verify() {
            self.field("wrong", &e);
        }
        if segment.is_bare_syn() || segment.is_bare_syn_ack() {
            return Ok(());
        }
        match segment.option.class {
            rivulet_packet::Class::Request(_) => self.request(&segment.request()?),
            rivulet_packet::Class::Response(_) => self.response(&segment.response()?),
        }
        Ok(())
    }

    fn request(&mut self, r: &Request<'_>) {
        if self.brief {
            let _ = write!(self.text, " {r}");
            return;
        }
        self.field("class", &r.class);
        let tor = &r.tor;
        self.field("tor", &format_args!("{tor}, {} exclusions", tor.exclusions));
        self.field("tor epochs", &format_args!("seal {}, nonce {}", tor.seal_epoch, tor.nonce_epoch));
        if let Some(sealed) = &r.continuation {
            self.sealed(sealed);
        }
        for entry in r.proof.iter() {
            self.field("proof", &entry);
        }
        self.field(
            "hold",
            &format_args!("{} us, covers {}, attempt {}", r.hold_micros(), r.covers, r.attempt),
        );
        for want in r.wants() {
            let again = if want.retransmit { ", again" } else { "" };
            let by = want.ucont.map_or(String::new(), |i| format!(" by continuation {i}"));
            self.field("want", &format_args!("{} bytes at {}{by}{again}", want.length, want.offset));
        }
        for sealed in r.uconts() {
            self.user(sealed.as_ref());
        }
        if let Some(token) = r.token {
            self.field("token", &Hex(token));
        }
        if let Some(former) = r.former {
            self.field("former", &former);
        }
        if let Some(input) = &r.input {
            let end = if input.end { ", the end" } else { "" };
            let what =
                format!("{} bytes at {} of stream {}{end}", input.data.len(), input.offset, input.stream);
            self.field("input", &what);
            self.field("", &Octets(input.data));
        }
        if r.padding > 0 {
            self.field("padding", &r.padding);
        }
    }

    fn response(&mut self, r: &Response<'_>) {
        if self.brief {
            let _ = write!(self.text, " {r}");
            return;
        }
        self.field("class", &r.body.class());
        let prime = if r.prime { " under K'" } else { "" };
        self.field(
            "number",
            &format_args!("{}, nonce {:08x}{prime}, answers ..{:02x}", r.number, r.nonce, r.answers),
        );
        match &r.continuation {
            NewContinuation::None => {}
            NewContinuation::Full(sealed) => self.sealed(sealed),
            NewContinuation::Delta(d) => self.field("delta", &format_args!("{d:?}")),
        }
        for sealed in r.uconts.iter() {
            self.user(sealed);
        }
        if let Some(c) = &r.consumed {
            self.field("consumed", &format_args!("stream {} up to {}", c.stream, c.offset));
        }
        if let Some(token) = r.token {
            self.field("token", &Hex(token));
        }
        match &r.body {
            Body::Data => {}
            Body::Group(group) => {
                for member in group.iter() {
                    self.field("group", &member.continuation.fields);
                }
            }
            other => self.field("body", &format_args!("{other:?}")),
        }
        if let Some(offset) = r.offset {
            let end = if r.end { ", the end" } else { "" };
            self.field("data", &format_args!("{} bytes at {offset}{end}", r.data.len()));
            self.field("", &Octets(r.data));
        }
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
                let what = format!(
                    "{kind} of stream {}, {} to {end}, {} bytes",
                    v.stream,
                    v.valid_start,
                    sealed.len()
                );
                self.field("user", &what);
            }
            None => self.field("user", &format_args!("malformed, {} bytes", sealed.len())),
        }
    }
}

/// Errors that other protocols' packets give.
fn is_foreign(error: &WireError) -> bool {
    let name = format!("{error:?}");
    !name.starts_with("Option") && !name.starts_with("Tcp")
        || name.starts_with("TcpTruncated")
        || name.starts_with("TcpDataOffset")
}

struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// The first octets of data, printable ones as they are.
struct Octets<'a>(&'a [u8]);

impl std::fmt::Display for Octets<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN)];
        write!(f, "\"{}\"", shown.escape_ascii())?;
        if self.0.len() > SHOWN { f.write_str("...") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every packet of the wire vectors is recognised; those that a parser must refuse are told as malformed.
    #[test]
    fn wire_vectors_are_described() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/wire-vectors.json");
        let vectors: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let octets = |hex: &str| -> Vec<u8> {
            (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
        };
        let mut seen = 0;
        for vector in vectors["packets"].as_array().unwrap() {
            let bytes = octets(vector["frame"].as_str().unwrap());
            for brief in [false, true] {
                let text = packet(&bytes, brief).unwrap_or_else(|| panic!("not ours: {vector}"));
                assert!(!text.malformed, "{}: {vector}", text.text);
                assert!(!brief || text.text.lines().count() == 1, "{}", text.text);
            }
            seen += 1;
        }
        for vector in vectors["invalid"].as_array().unwrap() {
            // Damaged headers of other protocols are nobody's; nothing is shown as well-formed.
            if let Some(text) = vector["frame"].as_str().and_then(|hex| packet(&octets(hex), false)) {
                assert!(text.malformed || text.text.contains("wrong"), "{}: {vector}", text.text);
            }
        }
        assert!(seen > 10, "the vectors were found ({seen})");
    }

    #[test]
    fn other_packets_are_not_ours() {
        assert!(packet(&[], false).is_none());
        assert!(packet(&[0; 60], false).is_none());
        // ARP, and a plain TCP segment.
        let mut frame = vec![2; 12];
        frame.extend([8, 6]);
        frame.extend([0; 28]);
        assert!(packet(&frame, false).is_none());
    }
}
