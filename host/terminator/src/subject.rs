//! The subject of a client's certificate as text: in the form of RFC 4514 and printable ASCII, so
//! that it can be the value of a header field.

use std::fmt::Write;

use webpki::EndEntityCert;

/// Attributes with a short name (RFC 4514 section 3, and the two that authorities of clients'
/// certificates use most), by their OIDs in DER.
const NAMES: [(&[u8], &str); 11] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 5], "serialNumber"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 9], "STREET"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1], "UID"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], "DC"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1], "emailAddress"),
];
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 6;
/// DER types of strings in UTF-8: UTF8String, PrintableString, IA5String.
const TEXT: [u8; 3] = [0x0c, 0x13, 0x16];
/// Characters that must be escaped.
const SPECIAL: &[u8] = b"\"+,;<>\\=#";

/// The subject of a verified certificate; `None` if it cannot be parsed.
pub(crate) fn name_of(certificate: &[u8]) -> Option<String> {
    let der = certificate.into();
    let certificate = EndEntityCert::try_from(&der).ok()?;
    text(certificate.subject())
}

/// The text of a sequence of relative distinguished names, the last one first.
fn text(mut names: &[u8]) -> Option<String> {
    let mut parts = Vec::new();
    while !names.is_empty() {
        let mut set = take(&mut names, SET)?;
        let mut part = String::new();
        while !set.is_empty() {
            let mut pair = take(&mut set, SEQUENCE)?;
            let oid = take(&mut pair, OID)?;
            if !part.is_empty() {
                part.push('+');
            }
            push_attribute(&mut part, oid, pair)?;
        }
        parts.push(part);
    }
    parts.reverse();
    Some(parts.join(","))
}

/// Appends `NAME=value`. A value that is not text is written as `#` and its DER in hexadecimal
/// digits.
fn push_attribute(out: &mut String, oid: &[u8], value: &[u8]) -> Option<()> {
    match NAMES.iter().find(|(known, _)| *known == oid) {
        Some((_, name)) => out.push_str(name),
        None => push_dotted(out, oid)?,
    }
    out.push('=');
    let mut rest = value;
    let kind = *value.first()?;
    let content = take(&mut rest, kind)?;
    if !rest.is_empty() {
        return None;
    }
    if !TEXT.contains(&kind) {
        out.push('#');
        value.iter().for_each(|byte| push_hex(out, byte));
        return Some(());
    }
    for (n, byte) in content.iter().enumerate() {
        let is_edge = n == 0 || n + 1 == content.len();
        match byte {
            b' ' if is_edge => out.push_str("\\20"),
            b' '..=b'~' if !SPECIAL.contains(byte) => out.push(char::from(*byte)),
            _ => {
                out.push('\\');
                push_hex(out, byte);
            }
        }
    }
    Some(())
}

fn push_hex(out: &mut String, byte: &u8) {
    // Writing to a String does not fail.
    let _ = write!(out, "{byte:02X}");
}

/// An OID in dotted numbers.
fn push_dotted(out: &mut String, oid: &[u8]) -> Option<()> {
    let (mut number, mut is_first) = (0u64, true);
    for byte in oid {
        number = number.checked_mul(128)? | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            let _ = match is_first {
                true => write!(out, "{}.{}", (number / 40).min(2), number - 40 * (number / 40).min(2)),
                false => write!(out, ".{number}"),
            };
            (number, is_first) = (0, false);
        }
    }
    (!is_first && oid.last().is_some_and(|byte| byte & 0x80 == 0)).then_some(())
}

/// Takes the content of the first DER value, which must be of this type; `from` then begins after
/// it.
fn take<'a>(from: &mut &'a [u8], kind: u8) -> Option<&'a [u8]> {
    let (&[found, length], rest) = from.split_first_chunk()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        0x81 => {
            let (&[length], rest) = rest.split_first_chunk()?;
            (usize::from(length), rest)
        }
        0x82 => {
            let (length, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        _ => return None,
    };
    let (content, rest) = (rest.get(..length)?, rest.get(length..)?);
    *from = rest;
    (found == kind).then_some(content)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn der(kind: u8, content: &[u8]) -> Vec<u8> {
        [&[kind, 0x82, (content.len() >> 8) as u8, content.len() as u8], content].concat()
    }

    fn name(oid: &[u8], kind: u8, value: &[u8]) -> Vec<u8> {
        der(SET, &der(SEQUENCE, &[der(OID, oid), der(kind, value)].concat()))
    }

    #[test]
    fn subject_is_written_as_in_rfc_4514() {
        let subject = [
            name(&[0x55, 4, 6], 0x13, b"CH"),
            name(&[0x55, 4, 10], 0x0c, "M\u{fc}ller, Inc.".as_bytes()),
            name(&[0x2b, 6, 1, 4, 1, 0x8b, 0x3a, 1], 0x0c, b"x"),
            name(&[0x55, 4, 3], 0x0c, b" alice\r\nX-Admin: 1 "),
            name(&[0x55, 4, 3], 0x1e, &[0, 0x41]),
        ];
        assert_eq!(
            text(&subject.concat()).unwrap(),
            "CN=#1E8200020041,CN=\\20alice\\0D\\0AX-Admin: 1\\20,1.3.6.1.4.1.1466.1=x,O=M\\C3\\BCller\\2C Inc.,C=CH"
        );
        let pair = |oid: &[u8]| der(SEQUENCE, &[der(OID, oid), der(0x0c, b"v")].concat());
        let both = der(SET, &[pair(&[0x55, 4, 3]), pair(&[0x55, 4, 11])].concat());
        assert_eq!(text(&both).unwrap(), "CN=v+OU=v");
        assert_eq!(text(&[]).unwrap(), "");
    }

    proptest! {
        #[test]
        fn any_subject_is_printable_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for text in [text(&bytes), text(&name(&[0x55, 4, 3], 0x0c, &bytes))].into_iter().flatten() {
                prop_assert!(text.bytes().all(|b| (b' '..=b'~').contains(&b)));
            }
            let _ = name_of(&bytes);
        }
    }
}
