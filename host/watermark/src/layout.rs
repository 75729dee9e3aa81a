//! Where the letters stand, in blocks of brightness.

use crate::font::{CELL, LETTER, MAX_TEXT, covers};

/// Blocks left free above the mark and to its left.
const MARGIN: u32 = 2;
/// Most letters in a line.
const LINE: u32 = 16;

/// The area of a picture that marks are in, the same for all texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// First column and row.
    pub left: u32,
    pub top: u32,
    /// Letters in a line, and lines.
    letters: u32,
    lines: u32,
}

impl Layout {
    /// The area in a picture of so many whole blocks; `None` if it has no room for a letter.
    pub fn new(columns: u32, rows: u32) -> Option<Layout> {
        let margin = |all: u32, letter: u32| MARGIN.min(all.checked_sub(letter)? / 2).into();
        let (left, top): (Option<u32>, Option<u32>) = (margin(columns, LETTER.0), margin(rows, LETTER.1));
        let (left, top) = (left?, top?);
        let fit = |all: u32, before: u32, cell: u32| (all - before + 1) / cell;
        let letters = fit(columns, left, CELL.0).min(LINE);
        let lines = fit(rows, top, CELL.1).min((MAX_TEXT as u32).div_ceil(letters)).min(4);
        Some(Layout { left, top, letters, lines })
    }

    /// Columns that letters can cover.
    pub fn width(&self) -> u32 {
        self.letters * CELL.0 - 1
    }

    /// Rows that letters can cover.
    pub fn height(&self) -> u32 {
        self.lines * CELL.1 - 1
    }

    /// Whether `text` covers the block at this column and row of the picture.
    pub fn covers(&self, text: &[u8], column: u32, row: u32) -> bool {
        let (Some(x), Some(y)) = (column.checked_sub(self.left), row.checked_sub(self.top)) else {
            return false;
        };
        let (letter, line) = (x / CELL.0, y / CELL.1);
        if letter >= self.letters || line >= self.lines {
            return false;
        }
        let letter = text.get((line * self.letters + letter) as usize);
        letter.is_some_and(|letter| covers(*letter, x % CELL.0, y % CELL.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_wrap_and_stay_inside() {
        assert_eq!(Layout::new(2, 5), None);
        assert_eq!(Layout::new(3, 4), None);
        for (columns, rows) in [(3, 5), (4, 6), (9, 11), (80, 60), (8191, 8191)] {
            let layout = Layout::new(columns, rows).unwrap();
            assert!(layout.left + layout.width() <= columns && layout.top + layout.height() <= rows);
            let mut covered = 0;
            for row in 0..rows.min(100) {
                covered += (0..columns.min(100)).filter(|c| layout.covers(b"1", *c, row)).count();
            }
            assert_eq!(covered, 8, "{columns} by {rows}");
        }
        let narrow = Layout::new(9, 20).unwrap();
        assert!(narrow.covers(b"8.-", 2, 8 + 2), "the third letter begins the second line");
    }
}
