//! One stretch of coded data under the mark, decoded and coded again.

use crate::bits::{Bad, Bit, BitReader, BitWriter};
use crate::codes::{CATEGORIES, Table, categorize, extend};
use crate::header::Component;
use crate::layout::Layout;

/// How much the mark changes the brightness, of 256 steps.
const STEPS: i32 = 40;
/// DC coefficients that baseline can have.
pub(crate) const DC_RANGE: std::ops::RangeInclusive<i32> = -1024..=1023;

/// The tables for reading and writing MCUs.
#[derive(Clone, Debug)]
pub(crate) struct Coder {
    pub components: Vec<Component>,
    pub dc: [Option<Table>; 4],
    pub ac: [Option<Table>; 4],
    /// The codes for brightness, with those added for the mark.
    pub codes: [(u16, u8); CATEGORIES],
    pub quantizer: u16,
    pub columns: u32,
    pub interval: u32,
    pub layout: Layout,
}

/// MCUs of one row that letters can cover, and the MCUs behind them, which have DC differences that follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub first: u32,
    pub count: u32,
    /// Where it begins in the file.
    pub start: Bit,
    /// DC predictor of brightness.
    pub predictor: i32,
    /// The bytes of the file from `start` to its end.
    pub input: Box<[u8]>,
}

/// A DC coefficient under the mark: lighter, or darker where it is light already.
fn changed(dc: i32, quantizer: u16) -> i32 {
    let quantizer = i32::from(quantizer);
    // A DC coefficient is eight times the mean of its block.
    let change = (8 * STEPS / quantizer).max(1);
    if dc * quantizer < 8 * 64 { dc + change } else { dc - change }
}

impl Coder {
    /// Whether an MCU begins a restart interval that is not the first.
    pub fn restarts_at(&self, mcu: u32) -> bool {
        self.interval > 0 && mcu > 0 && mcu.is_multiple_of(self.interval)
    }

    /// The second byte of the restart marker before an MCU.
    pub fn restart_marker(&self, mcu: u32) -> u8 {
        0xd0 + ((mcu / self.interval - 1) % 8) as u8
    }

    fn tables(&self, component: &Component) -> Result<(&Table, &Table), Bad> {
        match (self.dc.get(component.dc), self.ac.get(component.ac)) {
            (Some(Some(dc)), Some(Some(ac))) => Ok((dc, ac)),
            _ => Err(Bad::Code),
        }
    }

    /// The brightness under a text of a block with DC coefficient `dc`: block `index` of an MCU.
    fn marked(&self, text: &[u8], mcu: u32, index: u32, dc: i32) -> i32 {
        let luma = &self.components[0];
        let column = mcu % self.columns * luma.across + index % luma.across;
        let row = mcu / self.columns * luma.down + index / luma.across;
        if self.layout.covers(text, column, row) { changed(dc, self.quantizer) } else { dc }
    }

    /// Reads an MCU and updates the DC predictor of brightness. `on_bits` gets all bits but the DC differences of
    /// brightness; `on_dc` gets the index of a block of brightness, and its coefficient.
    fn mcu<S>(
        &self,
        reader: &mut BitReader<'_>,
        predictor: &mut i32,
        state: &mut S,
        on_bits: impl Fn(&mut S, u32, u32),
        on_dc: impl Fn(&mut S, u32, i32),
    ) -> Result<(), Bad> {
        for (number, component) in self.components.iter().enumerate() {
            let (dc, ac) = self.tables(component)?;
            for index in 0..component.across * component.down {
                if number == 0 {
                    let (size, _) = dc.read(reader)?;
                    if usize::from(size) >= CATEGORIES {
                        return Err(Bad::Code);
                    }
                    *predictor += extend(reader.take(size.into())?, size);
                    if !DC_RANGE.contains(predictor) {
                        return Err(Bad::Code);
                    }
                    on_dc(state, index, *predictor);
                } else {
                    let size = self.copy(dc, reader, state, &on_bits)?;
                    if usize::from(size) >= CATEGORIES {
                        return Err(Bad::Code);
                    }
                    on_bits(state, reader.take(size.into())?, size.into());
                }
                let mut coefficient = 1;
                while coefficient < 64 {
                    let symbol = self.copy(ac, reader, state, &on_bits)?;
                    let (run, size) = (symbol >> 4, symbol & 15);
                    if size == 0 && run < 15 {
                        break;
                    }
                    coefficient += run + 1;
                    if coefficient > 64 {
                        return Err(Bad::Code);
                    }
                    if size > 0 {
                        on_bits(state, reader.take(size.into())?, size.into());
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads a symbol and passes its code on.
    fn copy<S>(
        &self,
        table: &Table,
        reader: &mut BitReader<'_>,
        state: &mut S,
        on_bits: impl Fn(&mut S, u32, u32),
    ) -> Result<u8, Bad> {
        let bits = u32::from(reader.peek());
        let (symbol, length) = table.read(reader)?;
        on_bits(state, bits >> (16 - length), length);
        Ok(symbol)
    }

    /// Passes over an MCU.
    pub fn skip_mcu(&self, reader: &mut BitReader<'_>, predictor: &mut i32) -> Result<(), Bad> {
        self.mcu(reader, predictor, &mut (), |(), _, _| {}, |(), _, _| {})
    }

    /// Writes a stretch as it is under `text`.
    pub fn recode(&self, stretch: &Stretch, text: &[u8], writer: &mut BitWriter<'_, '_>) -> Result<(), Bad> {
        let mut reader = BitReader::new(&stretch.input, Bit { byte: 0, bit: stretch.start.bit });
        let mut predictor = stretch.predictor;
        // The block before may be under the mark too.
        let luma = &self.components[0];
        let before = stretch.first.checked_sub(1).filter(|_| !self.restarts_at(stretch.first));
        let mut written =
            before.map_or(0, |mcu| self.marked(text, mcu, luma.across * luma.down - 1, predictor));
        for mcu in stretch.first..stretch.first + stretch.count {
            if mcu > stretch.first && self.restarts_at(mcu) {
                reader.marker().ok_or(Bad::End)?;
                writer.pad();
                writer.window.push(0xff);
                writer.window.push(self.restart_marker(mcu));
                (predictor, written) = (0, 0);
            }
            let mut state = (&mut *writer, &mut written);
            self.mcu(
                &mut reader,
                &mut predictor,
                &mut state,
                |(writer, _), bits, count| writer.put(bits, count),
                |(writer, written), index, dc| {
                    let dc = self.marked(text, mcu, index, dc);
                    let (size, bits) = categorize(dc - **written);
                    let (code, length) = self.codes[usize::from(size)];
                    writer.put(code.into(), length.into());
                    writer.put(bits, size.into());
                    **written = dc;
                },
            )?;
        }
        Ok(())
    }
}
