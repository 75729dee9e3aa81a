//! Capture files: pcap (draft-ietf-opsawg-pcap) and the packet blocks of pcapng (draft-ietf-opsawg-pcapng).

use std::io::{self, BufReader, ErrorKind, Read};

use anyhow::{Context, bail};

/// Longest record taken, octets.
const MAX_RECORD: usize = 256 << 10;
/// LINKTYPE_ETHERNET and LINKTYPE_RAW.
const LINKS: [u32; 2] = [1, 101];

/// A captured packet.
#[derive(Debug, PartialEq, Eq)]
pub struct Record {
    /// Microseconds since 1970.
    pub micros: u64,
    /// From the link header on.
    pub data: Vec<u8>,
    /// Octets that the packet had; more than there are in `data` if the capture holds only its beginning.
    pub length: usize,
}

/// A capture being read.
pub struct Capture<R> {
    input: BufReader<R>,
    big_endian: bool,
    kind: Kind,
}

enum Kind {
    /// Time units of a second.
    Pcap { units: u64 },
    /// Time units of a second, an interface each.
    Pcapng { interfaces: Vec<u64> },
}

impl<R: Read> Capture<R> {
    /// Reads the file's header.
    pub fn open(input: R) -> anyhow::Result<Self> {
        let mut input = BufReader::new(input);
        let magic: [u8; 4] = exactly(&mut input)?.context("an empty file")?;
        let (big_endian, units) = match magic {
            [0xa1, 0xb2, 0xc3, 0xd4] => (true, 1_000_000),
            [0xd4, 0xc3, 0xb2, 0xa1] => (false, 1_000_000),
            [0xa1, 0xb2, 0x3c, 0x4d] => (true, 1_000_000_000),
            [0x4d, 0x3c, 0xb2, 0xa1] => (false, 1_000_000_000),
            [0x0a, 0x0d, 0x0d, 0x0a] => return Self::open_ng(input),
            _ => bail!("neither pcap nor pcapng"),
        };
        let header: [u8; 20] = exactly(&mut input)?.context("the header is cut short")?;
        let capture = Capture { input, big_endian, kind: Kind::Pcap { units } };
        capture.check_link(capture.u32(&header, 16) & 0x0fff_ffff)?;
        Ok(capture)
    }

    fn open_ng(mut input: BufReader<R>) -> anyhow::Result<Self> {
        let head: [u8; 8] = exactly(&mut input)?.context("the header is cut short")?;
        let big_endian = match head[4..] {
            [0x1a, 0x2b, 0x3c, 0x4d] => true,
            [0x4d, 0x3c, 0x2b, 0x1a] => false,
            _ => bail!("a broken pcapng header"),
        };
        let mut capture = Capture { input, big_endian, kind: Kind::Pcapng { interfaces: Vec::new() } };
        let length = capture.u32(&head, 0) as usize;
        capture.rest_of_block(length, 12)?;
        Ok(capture)
    }

    /// The next packet, none at the end. A last record that is cut short counts as the end.
    pub fn next(&mut self) -> anyhow::Result<Option<Record>> {
        match self.kind {
            Kind::Pcap { units } => {
                let Some(head) = exactly::<16>(&mut self.input)? else { return Ok(None) };
                let length = self.u32(&head, 8) as usize;
                let micros = u64::from(self.u32(&head, 0)) * 1_000_000
                    + u64::from(self.u32(&head, 4)) * 1_000_000 / units;
                let sent = self.u32(&head, 12) as usize;
                Ok(self.take(length)?.map(|data| Record { micros, data, length: sent.max(length) }))
            }
            Kind::Pcapng { .. } => self.next_ng(),
        }
    }

    fn next_ng(&mut self) -> anyhow::Result<Option<Record>> {
        loop {
            let Some(head) = exactly::<8>(&mut self.input)? else { return Ok(None) };
            let (kind, length) = (self.u32(&head, 0), self.u32(&head, 4) as usize);
            if kind == 0x0a0d_0d0a {
                bail!("several sections in one file are not supported");
            }
            let Some(body) = self.rest_of_block(length, 8)? else { return Ok(None) };
            match kind {
                1 if body.len() >= 8 => {
                    self.check_link(self.u32(&body, 0) & 0xffff)?;
                    let units = self.resolution(&body[8..]);
                    if let Kind::Pcapng { interfaces } = &mut self.kind {
                        interfaces.push(units);
                    }
                }
                6 if body.len() >= 20 => {
                    let Kind::Pcapng { interfaces } = &self.kind else { return Ok(None) };
                    let units = interfaces.get(self.u32(&body, 0) as usize).copied().unwrap_or(1_000_000);
                    let time = u64::from(self.u32(&body, 4)) << 32 | u64::from(self.u32(&body, 8));
                    let length = self.u32(&body, 12) as usize;
                    let data = body.get(20..20 + length.min(MAX_RECORD)).context("a broken packet block")?;
                    let micros = (u128::from(time) * 1_000_000 / u128::from(units)) as u64;
                    let sent = self.u32(&body, 16) as usize;
                    return Ok(Some(Record { micros, data: data.to_vec(), length: sent.max(length) }));
                }
                _ => {}
            }
        }
    }

    /// Time units of a second from an interface's options (`if_tsresol`).
    fn resolution(&self, mut options: &[u8]) -> u64 {
        while options.len() >= 4 {
            let (code, length) = (self.u16(options, 0), usize::from(self.u16(options, 2)));
            let Some(value) = options.get(4..4 + length) else { break };
            if let (9, [v]) = (code, value) {
                let (base, exponent) = if v & 0x80 != 0 { (2u64, v & 0x7f) } else { (10, *v) };
                return base.checked_pow(exponent.into()).unwrap_or(1_000_000);
            }
            options = options.get(4 + length.next_multiple_of(4)..).unwrap_or_default();
        }
        1_000_000
    }

    /// The body of a block of `length` octets, `head` of which were read; the trailing length is dropped.
    fn rest_of_block(&mut self, length: usize, head: usize) -> anyhow::Result<Option<Vec<u8>>> {
        if length < head + 4 || !length.is_multiple_of(4) {
            bail!("a block of {length} octets");
        }
        let Some(mut body) = self.take(length - head)? else { return Ok(None) };
        body.truncate(body.len() - 4);
        Ok(Some(body))
    }

    fn take(&mut self, length: usize) -> anyhow::Result<Option<Vec<u8>>> {
        if length > MAX_RECORD {
            bail!("a record of {length} octets");
        }
        let mut data = vec![0; length];
        match self.input.read_exact(&mut data) {
            Ok(()) => Ok(Some(data)),
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn check_link(&self, link: u32) -> anyhow::Result<()> {
        if !LINKS.contains(&link) {
            bail!("link type {link}: only Ethernet (1) and raw IP (101) are decoded");
        }
        Ok(())
    }

    fn u32(&self, bytes: &[u8], at: usize) -> u32 {
        let word = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        if self.big_endian { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
    }

    fn u16(&self, bytes: &[u8], at: usize) -> u16 {
        let pair = [bytes[at], bytes[at + 1]];
        if self.big_endian { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) }
    }
}

/// N octets; none if the input ends before or within them.
fn exactly<const N: usize>(input: &mut impl Read) -> io::Result<Option<[u8; N]>> {
    let mut out = [0; N];
    match input.read_exact(&mut out) {
        Ok(()) => Ok(Some(out)),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pcap() -> Vec<u8> {
        let mut f = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
        f.extend([7, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3]);
        f
    }

    fn pcapng() -> Vec<u8> {
        let mut f = vec![0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0];
        f.extend([0xff; 8]);
        f.extend([28, 0, 0, 0]);
        // An interface whose time is in nanoseconds.
        f.extend([
            1, 0, 0, 0, 32, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0,
        ]);
        f.extend([6, 0, 0, 0, 36, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x88, 0x13, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0]);
        f.extend([1, 2, 3, 0, 36, 0, 0, 0]);
        f
    }

    #[test]
    fn both_formats() {
        let file = pcap();
        let mut capture = Capture::open(&file[..]).unwrap();
        assert_eq!(
            capture.next().unwrap(),
            Some(Record { micros: 7_000_005, data: vec![1, 2, 3], length: 3 })
        );
        assert_eq!(capture.next().unwrap(), None);
        let file = pcapng();
        let mut capture = Capture::open(&file[..]).unwrap();
        assert_eq!(capture.next().unwrap(), Some(Record { micros: 5, data: vec![1, 2, 3], length: 3 }));
        assert_eq!(capture.next().unwrap(), None);
    }

    proptest! {
        #[test]
        fn damage_is_survived(at in 0usize..200, value: u8, cut in 0usize..200, ng: bool) {
            let mut file = if ng { pcapng() } else { pcap() };
            let n = file.len();
            file[at % n] = value;
            file.truncate(n - cut % n);
            if let Ok(mut capture) = Capture::open(&file[..]) {
                while let Ok(Some(_)) = capture.next() {}
            }
        }
    }
}
