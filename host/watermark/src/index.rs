//! The index of a picture: what all clients' marks of it have in common.

use crate::Error;
use crate::bits::{Bad, Bit, BitReader};
use crate::copied::Copied;
use crate::font::MAX_TEXT;
use crate::header::Header;
use crate::layout::Layout;
use crate::recode::{Coder, Stretch};

/// Longest stretch, bytes: a replica decodes it for each packet of it.
pub(crate) const MAX_STRETCH: usize = 64 << 10;

/// A picture that can be marked. Memory: about 1 % of the file, and the coded data under the mark.
#[derive(Clone, Debug)]
pub struct Picture {
    dimensions: (u16, u16),
    /// Bytes of the file.
    pub(crate) size: u32,
    /// Offset at which `inserted` goes.
    pub(crate) scan: u32,
    /// Definition of the Huffman table with codes added for the mark; empty if it has all codes.
    pub(crate) inserted: Box<[u8]>,
    pub(crate) coder: Coder,
    pub(crate) stretches: Box<[Stretch]>,
    /// What follows each stretch.
    pub(crate) gaps: Box<[Gap]>,
}

/// What follows a stretch.
#[derive(Clone, Debug)]
pub(crate) struct Gap {
    /// The bits up to the next stretch, or to the end of their restart interval.
    pub copied: Copied,
    /// Offset of the marker at the interval's end, if that is before the next stretch; from there on the bytes
    /// are the file's.
    pub marker: Option<u32>,
}

impl Picture {
    /// Reads a whole file. Time is in proportion to its length.
    ///
    /// # Errors
    /// It cannot be marked.
    pub fn read(file: &[u8]) -> Result<Picture, Error> {
        let header = Header::read(file)?;
        let too_small = Error::TooSmall(header.width, header.height);
        let layout =
            Layout::new(u32::from(header.width) / 8, u32::from(header.height) / 8).ok_or(too_small)?;
        let luma = header.components[0].clone();
        let table = header.dc[luma.dc].as_ref().ok_or(Error::FullTable)?;
        let full = table.with_all_categories().ok_or(Error::FullTable)?;
        let inserted = if full == *table { Vec::new() } else { full.segment(luma.dc as u8) };
        let all = header.columns * header.rows;
        let ranges = stretches(&header, layout);
        let coder = Coder {
            components: header.components,
            dc: header.dc,
            ac: header.ac,
            codes: full.codes(),
            quantizer: header.quantizer,
            columns: header.columns,
            interval: header.interval,
            layout,
        };
        let (stretches, gaps) = Pass::new(file, header.data, &coder).run(&ranges, all)?;
        Ok(Picture {
            dimensions: (header.width, header.height),
            size: file.len() as u32,
            scan: header.scan as u32,
            inserted: inserted.into(),
            coder,
            stretches: stretches.into(),
            gaps: gaps.into(),
        })
    }

    /// Whether `text` covers the pixel at column `x` of row `y`.
    #[must_use]
    pub fn covers(&self, text: &[u8], x: u32, y: u32) -> bool {
        self.coder.layout.covers(&text[..text.len().min(MAX_TEXT)], x / 8, y / 8)
    }

    /// Width and height in pixels.
    #[must_use]
    pub fn dimensions(&self) -> (u16, u16) {
        self.dimensions
    }

    /// Bytes of memory that it takes, its Huffman tables left out.
    #[must_use]
    pub fn memory(&self) -> usize {
        let stretches: usize = self.stretches.iter().map(|s| size_of::<Stretch>() + s.input.len()).sum();
        size_of::<Picture>() + stretches + self.gaps.iter().map(|gap| gap.copied.memory()).sum::<usize>()
    }
}

/// The MCUs to be coded again, row by row: first ones and numbers.
fn stretches(header: &Header, layout: Layout) -> Vec<(u32, u32)> {
    let luma = &header.components[0];
    let first_column = layout.left / luma.across;
    let behind = (layout.left + layout.width()).div_ceil(luma.across);
    let rows = layout.top / luma.down..(layout.top + layout.height()).div_ceil(luma.down);
    let all = header.columns * header.rows;
    let last = rows.end - 1;
    let range = |row: u32| {
        let first = row * header.columns + first_column;
        let next = if row < last { first + header.columns } else { all };
        // The block behind the last one has a DC difference to it. In a picture as wide as the mark it is the first of
        // the next row, whose own stretch codes it; behind the last row no stretch does.
        let end = (row * header.columns + behind + 1).min(next);
        (first, end - first)
    };
    rows.map(range).collect()
}

/// The pass over the coded data.
struct Pass<'a> {
    file: &'a [u8],
    reader: BitReader<'a>,
    coder: &'a Coder,
    predictor: i32,
    stretches: Vec<Stretch>,
    gaps: Vec<Gap>,
    /// Where the last stretch ended, until the end of what follows it is known.
    open: Option<Bit>,
}

impl<'a> Pass<'a> {
    fn new(file: &'a [u8], data: usize, coder: &'a Coder) -> Pass<'a> {
        let reader = BitReader::new(file, Bit { byte: data as u32, bit: 0 });
        Pass { file, reader, coder, predictor: 0, stretches: Vec::new(), gaps: Vec::new(), open: None }
    }

    fn run(mut self, ranges: &[(u32, u32)], all: u32) -> Result<(Vec<Stretch>, Vec<Gap>), Error> {
        let mut ranges = ranges.iter().copied().peekable();
        // The MCU behind the stretch under way.
        let mut ends = None;
        for mcu in 0..all {
            if ends == Some(mcu) {
                ends = None;
                self.end_stretch()?;
            }
            if self.coder.restarts_at(mcu) {
                self.restart(mcu)?;
            }
            if let Some((first, count)) = ranges.next_if(|(first, _)| *first == mcu) {
                ends = Some(mcu + count);
                self.begin_stretch(first, count);
            }
            let read = self.coder.skip_mcu(&mut self.reader, &mut self.predictor);
            read.map_err(|bad| self.damaged(bad))?;
        }
        if ends.is_some() {
            self.end_stretch()?;
        }
        let end = self.reader.place();
        let marker = self.reader.marker().map_or(self.file.len(), |(at, _)| at);
        self.close(end, Some(marker as u32));
        Ok((self.stretches, self.gaps))
    }

    fn damaged(&self, bad: Bad) -> Error {
        let what = match bad {
            Bad::End => "the coded data ends before the picture does",
            Bad::Code => "the coded data has a code or a value that is not allowed",
        };
        Error::Damaged { at: self.reader.place().byte as usize, what }
    }

    fn begin_stretch(&mut self, first: u32, count: u32) {
        let start = self.reader.place();
        self.close(start, None);
        self.stretches.push(Stretch {
            first,
            count,
            start,
            predictor: self.predictor,
            input: Box::default(),
        });
    }

    fn end_stretch(&mut self) -> Result<(), Error> {
        let end = self.reader.place();
        let Some(stretch) = self.stretches.last_mut() else { return Ok(()) };
        // With a last byte's stuffed zero.
        let behind = (end.byte as usize + 2).min(self.file.len());
        let input = &self.file[stretch.start.byte as usize..behind];
        if input.len() > MAX_STRETCH {
            return Err(Error::TooDense);
        }
        stretch.input = input.into();
        self.open = Some(end);
        Ok(())
    }

    /// Passes over the restart marker before an MCU.
    fn restart(&mut self, mcu: u32) -> Result<(), Error> {
        let end = self.reader.place();
        let found = self.reader.marker();
        let Some((at, _)) = found.filter(|(_, marker)| *marker == self.coder.restart_marker(mcu)) else {
            return Err(Error::Damaged { at: end.byte as usize, what: "a restart marker is missing" });
        };
        self.close(end, Some(at as u32));
        self.predictor = 0;
        Ok(())
    }

    /// Ends what follows the last stretch, if that is not done.
    fn close(&mut self, end: Bit, marker: Option<u32>) {
        if let Some(start) = self.open.take() {
            self.gaps.push(Gap { copied: Copied::new(self.file, start, end), marker });
        }
    }
}
