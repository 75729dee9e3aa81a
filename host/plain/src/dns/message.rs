//! Finds names, records and EDNS options in a message (RFC 1035 section 4, RFC 6891). All lengths are checked.

/// Bytes of a header.
pub(super) const HEADER: usize = 12;
/// Bytes of a record's type, class, TTL and length.
pub(super) const FIXED: usize = 10;
/// Type number of the OPT record (EDNS).
pub(super) const TYPE_OPT: u16 = 41;

/// EDNS options for the connection to the client, which must not be passed to the back end: cookies
/// (RFC 7873), and the TCP keep-alive time (RFC 7828), which a datagram must not have.
const HOP: [u16; 2] = [10, 11];

pub(super) fn word(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*message.get(at..)?.first_chunk()?))
}

/// End of the name that begins at `at`; `None` if it has pointers.
pub(super) fn plain_name(message: &[u8], mut at: usize) -> Option<usize> {
    let start = at;
    loop {
        match *message.get(at)? {
            0 => return (at - start < 255).then_some(at + 1),
            length @ 1..=63 => at += 1 + usize::from(length),
            _ => return None,
        }
    }
}

/// End of the name that begins at `at`; a pointer ends a name.
fn any_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length @ 1..=63 => at += 1 + usize::from(length),
            0xc0.. => return Some(at + 2),
            _ => return None,
        }
    }
}

/// Finds the OPT record of a message: where it begins (at its name) and ends, and the upper bits of
/// the response code. An error if the message cannot be parsed to its end.
pub(super) fn find_opt(message: &[u8]) -> Result<Option<(usize, usize, u8)>, ()> {
    let read = || {
        let mut at = HEADER;
        for _ in 0..word(message, 4)? {
            at = any_name(message, at)? + 4;
        }
        // The number of records is bounded by the message: at most three times 65,535 records of
        // eleven bytes.
        let records = (6..HEADER).step_by(2).map(|n| word(message, n).map(u32::from)).sum::<Option<u32>>()?;
        let mut found = None;
        for _ in 0..records {
            let fixed = any_name(message, at)?;
            let end = fixed + FIXED + usize::from(word(message, fixed + 8)?);
            if word(message, fixed)? == TYPE_OPT {
                found = Some((at, end, *message.get(fixed + 4)?));
            }
            at = end;
        }
        (at == message.len()).then_some(found)
    };
    read().ok_or(())
}

/// The options of an OPT record.
#[derive(Clone, Copy)]
pub(super) struct Options<'a>(pub(super) &'a [u8]);

pub(super) struct EdnsOption<'a> {
    /// The whole option, with its code and length.
    pub(super) bytes: &'a [u8],
    pub(super) whole: bool,
}

impl EdnsOption<'_> {
    pub(super) fn is_of_hop(&self) -> bool {
        word(self.bytes, 0).is_some_and(|code| HOP.contains(&code))
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = EdnsOption<'a>;

    fn next(&mut self) -> Option<EdnsOption<'a>> {
        if self.0.is_empty() {
            return None;
        }
        let length = word(self.0, 2).map(|length| 4 + usize::from(length));
        let whole = length.and_then(|length| self.0.split_at_checked(length));
        let (bytes, rest) = whole.unwrap_or((self.0, &[]));
        self.0 = rest;
        Some(EdnsOption { bytes, whole: whole.is_some() })
    }
}
