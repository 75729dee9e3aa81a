//! One packet as text: what it is, and whether it is well-formed.

use std::fmt::Write;

use rivulet_packet::heartbeat::{ETHER_TYPE, Heartbeat};
use rivulet_packet::parts::SegmentParts;
use rivulet_packet::{EthHeader, WireError};

use super::printer::{Line, Octets, Printer};

/// A packet of ours.
pub struct Text {
    /// One line, or one for each field.
    pub text: String,
    /// It breaks a rule of the format.
    pub malformed: bool,
}

/// Describes a frame or an IP packet of `length` octets of which `bytes` are the first; none if it is not of ours.
pub fn packet(bytes: &[u8], length: usize, brief: bool) -> Option<Text> {
    let mut p = Printer::new(brief);
    let malformed = match any(&mut p, bytes, length) {
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

fn any(p: &mut Printer, bytes: &[u8], length: usize) -> Result<bool, WireError> {
    if bytes.first().is_some_and(|b| matches!(b >> 4, 4 | 6))
        && let Ok(parts) = SegmentParts::parse_packet(bytes, length)
    {
        return segment(p, &parts, bytes.len()).map(|()| true);
    }
    if let Ok((header, kind)) = EthHeader::parse(bytes)
        && kind == ETHER_TYPE
    {
        return heartbeat(p, &header, &bytes[header.length()..], length > bytes.len());
    }
    match SegmentParts::parse_frame(bytes, length) {
        Ok((header, parts)) => {
            p.line(&header);
            segment(p, &parts, bytes.len()).map(|()| true)
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
            let _ = write!(p.text, "segment");
            Err(e)
        }
    }
}

fn heartbeat(p: &mut Printer, header: &EthHeader, bytes: &[u8], cut: bool) -> Result<bool, WireError> {
    let parsed = Heartbeat::parse(bytes);
    if cut && parsed.as_ref().is_err_and(|e| e.is_truncation()) {
        return Ok(false);
    }
    let _ = write!(p.text, "{header}");
    let beat = parsed?;
    let _ = writeln!(p.text, " {beat}");
    p.detail("incarnation", &format_args!("{:#06x}", beat.incarnation));
    Ok(true)
}

/// A segment of which a frame or packet of `there` octets has the beginning or all.
fn segment(p: &mut Printer, parts: &SegmentParts<'_>, there: usize) -> Result<(), WireError> {
    let _ = if p.brief { write!(p.text, "{parts}") } else { writeln!(p.text, "  {parts}") };
    if let Some(o) = parts.syn_options() {
        p.detail("mss", &o.mss);
    }
    p.detail("ecn", &parts.ecn());
    match parts.whole() {
        Some(whole) => {
            if let Err(e) = whole.verify() {
                p.field("wrong", &e);
            }
        }
        None => p.detail("checksum", &"not checkable"),
    }
    let mut line = Line::default();
    let mut data = None;
    if parts.has_body() {
        p.detail("class", &parts.class());
    }
    let reach = parts.visit(&mut |part| {
        if p.brief {
            line.part(&part);
        } else {
            data = p.part(&part).or(data);
        }
    });
    if p.brief && parts.has_body() {
        let _ = write!(p.text, " {}{line}", parts.class());
    }
    // Octets of data, or of input, in a line of their own behind it.
    if let Some(data) = data.filter(|d| !d.is_empty()) {
        p.field("", &Octets(data));
    }
    reach?;
    if parts.missing() > 0 {
        let comma = if p.brief { ", " } else { "    " };
        let _ = write!(p.text, "{comma}cut after {there} bytes");
    }
    Ok(())
}

/// Errors that other protocols' packets give.
fn is_foreign(error: &WireError) -> bool {
    let name = format!("{error:?}");
    !name.starts_with("Option") && !name.starts_with("Tcp")
        || name.starts_with("TcpTruncated")
        || name.starts_with("TcpDataOffset")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(section: &str) -> Vec<(String, Vec<u8>)> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/wire-vectors.json");
        let vectors: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let octets = |hex: &str| -> Vec<u8> {
            (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
        };
        let rows = vectors[section].as_array().unwrap();
        rows.iter().map(|v| (v.to_string(), octets(v["frame"].as_str().unwrap()))).collect()
    }

    /// Every packet of the wire vectors is recognised; those that a parser must refuse are told as malformed.
    #[test]
    fn wire_vectors_are_described() {
        let packets = vectors("packets");
        for (vector, bytes) in &packets {
            for brief in [false, true] {
                let text = packet(bytes, bytes.len(), brief).unwrap_or_else(|| panic!("not ours: {vector}"));
                assert!(!text.malformed, "{}: {vector}", text.text);
                assert!(!brief || text.text.lines().count() == 1, "{}", text.text);
                assert!(!text.text.contains("cut"), "{}", text.text);
            }
        }
        for (vector, bytes) in vectors("invalid") {
            // Damaged headers of other protocols are nobody's; nothing is shown as well-formed.
            if let Some(text) = packet(&bytes, bytes.len(), false) {
                assert!(text.malformed || text.text.contains("wrong"), "{}: {vector}", text.text);
            }
        }
        assert!(packets.len() > 10, "the vectors were found ({})", packets.len());
    }

    /// Of a packet cut anywhere behind its TCP header all lines but the last ones are those of the whole packet.
    #[test]
    fn beginnings_are_described_as_far_as_they_go() {
        let mut shown = 0;
        for (vector, bytes) in vectors("packets") {
            let whole = packet(&bytes, bytes.len(), false).unwrap().text;
            let whole: Vec<&str> = whole.lines().filter(|l| !l.contains(" wrong ")).collect();
            let mut longest = 0;
            for n in 0..bytes.len() {
                let Some(text) = packet(&bytes[..n], bytes.len(), false) else {
                    assert_eq!(longest, 0, "not ours at {n}: {vector}");
                    continue;
                };
                assert!(!text.malformed, "{}: {vector}", text.text);
                let said = format!("    cut after {n} bytes\n");
                let text = text.text.strip_suffix(&said).expect("that it is cut");
                let lines: Vec<&str> = text.lines().collect();
                assert_eq!(lines.iter().filter(|l| l.ends_with("not checkable")).count(), 1);
                let lines: Vec<&str> = lines.into_iter().filter(|l| !l.ends_with("not checkable")).collect();
                assert!(lines.len() >= longest, "more octets tell no less");
                longest = lines.len();
                for (at, (line, whole)) in lines.iter().zip(&whole).enumerate() {
                    let octets = at + 1 == lines.len() && line.trim_start().starts_with('"');
                    assert!(line == whole || octets, "{line}, of {whole}, cut at {n}: {vector}");
                }
                let brief = packet(&bytes[..n], bytes.len(), true).unwrap().text;
                assert_eq!(brief.lines().count(), 1, "{brief}");
                assert!(brief.ends_with(&format!(", cut after {n} bytes\n")), "{brief}");
                shown += 1;
            }
        }
        assert!(shown > 1000, "{shown}");
    }

    /// A response's fields stand before its data: cut within the data its line is that of the whole one.
    #[test]
    fn a_response_cut_in_its_data_has_the_same_line() {
        let mut seen = 0;
        for (vector, bytes) in vectors("packets") {
            let Ok((_, segment)) = rivulet_packet::Segment::parse_frame(&bytes) else { continue };
            let Ok(response) = segment.response() else { continue };
            let tail = response.data.len() + if segment.option.crc { 4 } else { 0 };
            if response.data.is_empty() {
                continue;
            }
            let whole = packet(&bytes, bytes.len(), true).unwrap().text;
            let whole = whole.trim_end();
            for n in bytes.len() - tail..bytes.len() {
                let text = packet(&bytes[..n], bytes.len(), true).unwrap().text;
                assert_eq!(text, format!("{whole}, cut after {n} bytes\n"), "{vector}");
                seen += 1;
            }
        }
        assert!(seen > 20, "{seen}");
    }

    #[test]
    fn other_packets_are_not_ours() {
        assert!(packet(&[], 0, false).is_none());
        assert!(packet(&[], 1500, false).is_none());
        assert!(packet(&[0; 60], 60, false).is_none());
        // ARP, and a plain TCP segment.
        let mut frame = vec![2; 12];
        frame.extend([8, 6]);
        frame.extend([0; 28]);
        assert!(packet(&frame, frame.len(), false).is_none());
    }
}
