//! The headers up to the scan that has the brightness (ITU-T T.81, annex B).

use crate::codes::Table;
use crate::{Error, MAX_FILE};

/// A component of the scan.
#[derive(Clone, Debug)]
pub(crate) struct Component {
    /// Blocks of it in an MCU: across, and down.
    pub across: u32,
    pub down: u32,
    /// Its tables, by index into [`Header::dc`] and [`Header::ac`].
    pub dc: usize,
    pub ac: usize,
}

/// The content of the headers.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub width: u16,
    pub height: u16,
    /// The components in the scan; the first one is the brightness.
    pub components: Vec<Component>,
    /// MCUs in a row, and rows.
    pub columns: u32,
    pub rows: u32,
    /// MCUs of a restart interval; 0 without restarts.
    pub interval: u32,
    pub dc: [Option<Table>; 4],
    pub ac: [Option<Table>; 4],
    /// First entry of the quantization table for brightness.
    pub quantizer: u16,
    /// Offset of the scan's marker SOS.
    pub scan: usize,
    /// Offset of its coded data.
    pub data: usize,
}

/// A component of the frame.
#[derive(Clone, Copy)]
struct Framed {
    id: u8,
    across: u32,
    down: u32,
    quantizer: u8,
}

struct Frame {
    width: u16,
    height: u16,
    components: Vec<Framed>,
}

/// The tables that marker segments have defined so far.
#[derive(Default)]
struct Tables {
    dc: [Option<Table>; 4],
    ac: [Option<Table>; 4],
    quantizers: [Option<u16>; 4],
    interval: u32,
}

/// The content of a marker segment, read from its front.
struct Segment<'a> {
    rest: &'a [u8],
    at: usize,
}

impl Segment<'_> {
    fn bytes(&mut self, count: usize) -> Result<&[u8], Error> {
        let damaged = Error::Damaged { at: self.at, what: "a marker segment is too short" };
        let (now, rest) = self.rest.split_at_checked(count).ok_or(damaged)?;
        self.rest = rest;
        Ok(now)
    }

    fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.bytes(1)?[0])
    }

    fn word(&mut self) -> Result<u16, Error> {
        let bytes = self.bytes(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn damaged<T>(&self, what: &'static str) -> Result<T, Error> {
        Err(Error::Damaged { at: self.at, what })
    }
}

impl Header {
    /// Reads the headers of a whole file.
    pub fn read(file: &[u8]) -> Result<Header, Error> {
        if file.len() > MAX_FILE {
            return Err(Error::TooLong);
        }
        if !file.starts_with(&[0xff, 0xd8]) {
            return Err(Error::NotJpeg);
        }
        let (mut tables, mut frame) = (Tables::default(), None);
        let mut at = 2;
        loop {
            let ended = Error::Damaged { at: file.len(), what: "the file ends before the brightness" };
            let (marker_at, marker) = next_marker(file, at).ok_or(ended)?;
            at = marker_at + 2;
            // Markers without a segment.
            if matches!(marker, 0x01 | 0xd0..=0xd8) {
                continue;
            }
            if marker == 0xd9 {
                return Err(Error::Damaged { at: marker_at, what: "the picture ends before the brightness" });
            }
            let length = file.get(at..at + 2).map(|b| usize::from(u16::from_be_bytes([b[0], b[1]])));
            let content = length.and_then(|length| file.get(at + 2..at + length)).ok_or(ended)?;
            at += content.len() + 2;
            let mut segment = Segment { rest: content, at: marker_at };
            match marker {
                0xc0 | 0xc1 => {
                    if frame.is_some() {
                        return segment.damaged("a second frame");
                    }
                    frame = Some(Frame::read(&mut segment)?);
                }
                0xc2 => return Err(Error::Unsupported("progressive")),
                0xc3 => return Err(Error::Unsupported("lossless")),
                0xc5..=0xc7 | 0xcd..=0xcf | 0xde => return Err(Error::Unsupported("hierarchical")),
                0xc8..=0xcc => return Err(Error::Unsupported("arithmetic coding")),
                0xc4 => tables.read_codes(&mut segment)?,
                0xdb => tables.read_quantizers(&mut segment)?,
                0xdd => tables.interval = segment.word()?.into(),
                0xda => {
                    let Some(frame) = &frame else { return segment.damaged("a scan without a frame") };
                    if let Some(header) = read_scan(&mut segment, frame, &mut tables, marker_at, at)? {
                        return Ok(header);
                    }
                    // The coded data of other components ends at the next marker.
                    while let Some((marker_at, marker)) = next_marker(file, at)
                        && matches!(marker, 0xd0..=0xd7)
                    {
                        at = marker_at + 2;
                    }
                }
                _ => {}
            }
        }
    }
}

/// The next marker: the offset of its last 0xFF, and its second byte. Zeros behind 0xFF are coded data.
fn next_marker(file: &[u8], mut at: usize) -> Option<(usize, u8)> {
    loop {
        at += file.get(at..)?.iter().position(|b| *b == 0xff)?;
        match file.get(at + 1)? {
            0xff => at += 1,
            0 => at += 2,
            marker => return Some((at, *marker)),
        }
    }
}

impl Frame {
    fn read(segment: &mut Segment<'_>) -> Result<Frame, Error> {
        match segment.byte()? {
            8 => {}
            12 => return Err(Error::Unsupported("12 bits a sample")),
            _ => return segment.damaged("neither 8 nor 12 bits a sample"),
        }
        let (height, width) = (segment.word()?, segment.word()?);
        if height == 0 {
            return Err(Error::Unsupported("a height that follows the scan (DNL)"));
        }
        if width == 0 {
            return segment.damaged("a width of 0");
        }
        let count = segment.byte()?;
        if !matches!(count, 1 | 3) {
            return Err(Error::Unsupported("neither grey nor three colours"));
        }
        let mut components = Vec::with_capacity(count.into());
        for _ in 0..count {
            let (id, factors, quantizer) = (segment.byte()?, segment.byte()?, segment.byte()?);
            let (across, down) = (u32::from(factors >> 4), u32::from(factors & 15));
            if !(1..=4).contains(&across) || !(1..=4).contains(&down) {
                return segment.damaged("a sampling factor is not 1 to 4");
            }
            components.push(Framed { id, across, down, quantizer });
        }
        let luma = components[0];
        if components.iter().any(|c| luma.across % c.across != 0 || luma.down % c.down != 0) {
            // A changed block would be spread over others.
            return Err(Error::Unsupported("a colour finer than the brightness"));
        }
        Ok(Frame { width, height, components })
    }
}

impl Tables {
    fn read_codes(&mut self, segment: &mut Segment<'_>) -> Result<(), Error> {
        while !segment.rest.is_empty() {
            let kind = segment.byte()?;
            let mut lengths = [0; 16];
            lengths.copy_from_slice(segment.bytes(16)?);
            let count = lengths.iter().map(|n| usize::from(*n)).sum();
            let Some(table) = Table::new(lengths, segment.bytes(count)?) else {
                return segment.damaged("lengths that no Huffman table has");
            };
            let tables = if kind >> 4 == 0 { &mut self.dc } else { &mut self.ac };
            match tables.get_mut(usize::from(kind & 15)) {
                Some(place) if kind >> 4 < 2 => *place = Some(table),
                _ => return segment.damaged("a Huffman table of an unknown kind"),
            }
        }
        Ok(())
    }

    fn read_quantizers(&mut self, segment: &mut Segment<'_>) -> Result<(), Error> {
        while !segment.rest.is_empty() {
            let kind = segment.byte()?;
            let (first, others) = match kind >> 4 {
                0 => (segment.byte()?.into(), 63),
                _ => (segment.word()?, 126),
            };
            segment.bytes(others)?;
            match self.quantizers.get_mut(usize::from(kind & 15)) {
                Some(place) if first > 0 => *place = Some(first),
                _ => return segment.damaged("a quantization table of an unknown kind"),
            }
        }
        Ok(())
    }
}

/// The header, if the scan has the frame's first component.
fn read_scan(
    segment: &mut Segment<'_>,
    frame: &Frame,
    tables: &mut Tables,
    scan: usize,
    data: usize,
) -> Result<Option<Header>, Error> {
    let count = segment.byte()?;
    let mut components = Vec::new();
    let mut order = Vec::new();
    for _ in 0..count {
        let (id, pair) = (segment.byte()?, segment.byte()?);
        let Some(index) = frame.components.iter().position(|c| c.id == id) else {
            return segment.damaged("a scan of a component that the frame lacks");
        };
        let (dc, ac) = (usize::from(pair >> 4), usize::from(pair & 15));
        let Framed { across, down, .. } = frame.components[index];
        components.push(Component { across, down, dc, ac });
        order.push(index);
    }
    if !order.is_sorted_by(|a, b| a < b) {
        return segment.damaged("components out of order");
    }
    if order.first() != Some(&0) {
        return Ok(None);
    }
    if segment.bytes(3)? != [0, 63, 0] {
        return segment.damaged("a part of the coefficients in a baseline scan");
    }
    for component in &components {
        let has = |tables: &[Option<Table>; 4], id| tables.get(id).is_some_and(Option::is_some);
        if !has(&tables.dc, component.dc) || !has(&tables.ac, component.ac) {
            return segment.damaged("a scan with a Huffman table that is not there");
        }
    }
    let quantizer = tables.quantizers.get(usize::from(frame.components[0].quantizer)).copied().flatten();
    let Some(quantizer) = quantizer else {
        return segment.damaged("a scan with a quantization table that is not there");
    };
    let (width, height) = (u32::from(frame.width), u32::from(frame.height));
    let most = |of: fn(&Framed) -> u32| frame.components.iter().map(of).max().unwrap_or(1);
    let (mut across, mut down) = (most(|c| c.across), most(|c| c.down));
    if let [only] = &mut components[..] {
        // A scan of one component has MCUs of one block (T.81, A.2.2). The first is the finest.
        (across, down, only.across, only.down) = (1, 1, 1, 1);
    } else if components.iter().map(|c| c.across * c.down).sum::<u32>() > 10 {
        return segment.damaged("more than 10 blocks in an MCU");
    }
    Ok(Some(Header {
        width: frame.width,
        height: frame.height,
        components,
        columns: width.div_ceil(8 * across),
        rows: height.div_ceil(8 * down),
        interval: tables.interval,
        dc: std::mem::take(&mut tables.dc),
        ac: std::mem::take(&mut tables.ac),
        quantizer,
        scan,
        data,
    }))
}
