//! Letters of 3 by 5 blocks.

/// Longest text, bytes: an IPv6 address.
pub const MAX_TEXT: usize = 40;
/// Columns and rows of a letter with the space beside and below it.
pub(crate) const CELL: (u32, u32) = (4, 6);
/// Columns and rows of a letter.
pub(crate) const LETTER: (u32, u32) = (3, 5);

/// Five rows of three blocks, each an octal digit.
fn glyph(letter: u8) -> u16 {
    match letter.to_ascii_uppercase() {
        b'0' => 0o75557,
        b'1' => 0o26227,
        b'2' => 0o71747,
        b'3' => 0o71717,
        b'4' => 0o55711,
        b'5' => 0o74717,
        b'6' => 0o74757,
        b'7' => 0o71122,
        b'8' => 0o75757,
        b'9' => 0o75717,
        b'A' => 0o25755,
        b'B' => 0o65656,
        b'C' => 0o34443,
        b'D' => 0o65556,
        b'E' => 0o74647,
        b'F' => 0o74644,
        b'G' => 0o34553,
        b'H' => 0o55755,
        b'I' => 0o72227,
        b'J' => 0o11152,
        b'K' => 0o55655,
        b'L' => 0o44447,
        b'M' => 0o57755,
        b'N' => 0o65555,
        b'O' => 0o25552,
        b'P' => 0o65644,
        b'Q' => 0o25563,
        b'R' => 0o65655,
        b'S' => 0o34216,
        b'T' => 0o72222,
        b'U' => 0o55557,
        b'V' => 0o55552,
        b'W' => 0o55775,
        b'X' => 0o55255,
        b'Y' => 0o55222,
        b'Z' => 0o71247,
        b'.' => 0o00002,
        b':' => 0o02020,
        b'-' => 0o00700,
        b'_' => 0o00007,
        b'/' => 0o11244,
        b'@' => 0o25747,
        b'+' => 0o02720,
        b' ' => 0,
        _ => 0o71202,
    }
}

/// Whether a letter covers the block at this column and row of its cell.
pub(crate) fn covers(letter: u8, column: u32, row: u32) -> bool {
    column < LETTER.0 && row < LETTER.1 && glyph(letter) >> (3 * (4 - row) + 2 - column) & 1 != 0
}
