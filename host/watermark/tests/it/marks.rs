use proptest::prelude::*;
use rivulet_watermark::{Picture, ReadError};

use crate::random::{Recipe, recipes};
use crate::{marked, reference, source};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Only the brightness of the blocks under letters differs, and each such block does.
    #[test]
    fn only_covered_blocks_change(recipe in recipes(), text in "[0-9a-f:.]{0,40}") {
        check_blocks(&recipe, &text)?;
    }

    /// Each range has the bytes that it has in the whole, at any replica.
    #[test]
    fn ranges_are_those_of_the_whole(recipe in recipes(), piece in 1usize..3000, at in any::<prop::sample::Index>()) {
        let file = recipe.file();
        let (one, other) = (Picture::read(&file).unwrap(), Picture::read(&file).unwrap());
        let text = b"198.51.100.203";
        let whole = marked(&one, &file, text, 1 << 30);
        prop_assert_eq!(&marked(&other, &file, text, piece.max(whole.len() / 300)), &whole);
        let start = at.index(whole.len());
        let mut out = vec![0; piece.min(whole.len() - start)];
        other.read_marked(&one.mark(text), start as u64, &mut out, source(&file)).unwrap();
        prop_assert_eq!(&out[..], &whole[start..start + out.len()]);
    }
}

/// The blocks that `text` covers change by the mark's step, all others not at all.
fn check_blocks(recipe: &Recipe, text: &str) -> Result<(), TestCaseError> {
    let file = recipe.file();
    let picture = Picture::read(&file).unwrap();
    let out = marked(&picture, &file, text.as_bytes(), 1 << 30);
    let ((before, tail), (after, same_tail)) = (reference::decode(&file), reference::decode(&out));
    prop_assert_eq!((before.len(), tail), (after.len(), same_tail));
    for (place @ (component, column, row), coefficients) in before {
        let is_covered = component == 0 && picture.covers(text.as_bytes(), 8 * column, 8 * row);
        let now = &after[&place];
        prop_assert_eq!(coefficients[1..] == now[1..], true, "{:?}", place);
        let change = (now[0] - coefficients[0]).abs() * i32::from(recipe.quantizer);
        let want = (320 / i32::from(recipe.quantizer)).max(1) * i32::from(recipe.quantizer);
        prop_assert_eq!(change, if is_covered { want } else { 0 }, "{:?}", place);
    }
    Ok(())
}

/// In such a picture the block behind the last row of letters begins the next row.
#[test]
fn blocks_below_a_mark_of_full_width_stay() {
    for factors in [vec![(1, 1)], vec![(2, 2), (1, 1), (1, 1)], vec![(1, 2), (1, 1), (1, 1)]] {
        for height in 40..=64 {
            let narrow = Recipe { width: 24, height, factors: factors.clone(), quantizer: 1, ..recipe() };
            for interval in [0, 1, 5] {
                check_blocks(&Recipe { interval, ..narrow.clone() }, "c8").unwrap();
            }
        }
    }
}

fn recipe() -> Recipe {
    Recipe {
        width: 640,
        height: 480,
        factors: vec![(2, 2), (1, 1), (1, 1)],
        interval: 0,
        is_split: false,
        categories: 11,
        quantizer: 4,
        seed: 9,
    }
}

#[test]
fn large_picture_has_a_small_index_and_few_reads() {
    let big = Recipe { width: 4000, height: 3000, ..recipe() };
    let file = big.file();
    let picture = Picture::read(&file).unwrap();
    let places = picture.mark(b"203.0.113.7");
    assert!(picture.memory() < file.len() / 20, "{} of {}", picture.memory(), file.len());
    let (mut asked, mut last) = (0, 0);
    let mut out = [0; 1400];
    for offset in (0..places.len() - 1400).step_by(77_777) {
        let read = |at: u64, out: &mut [u8]| {
            assert!(asked == 0 || at >= last, "ascending");
            (asked, last) = (asked + out.len(), at);
            source(&file)(at, out)
        };
        picture.read_marked(&places, offset, &mut out, read).unwrap();
        assert!(asked < 1400 + 4096 + 2048, "{asked} bytes at {offset}");
        asked = 0;
    }
}

#[test]
fn wrong_ranges_and_places_are_errors() {
    let (file, other) = (recipe().file(), Recipe { interval: 3, height: 48, ..recipe() }.file());
    let (picture, other) = (Picture::read(&file).unwrap(), Picture::read(&other).unwrap());
    let places = picture.mark(b"10.0.0.1");
    let mut out = [0; 100];
    let end = places.len();
    for offset in [end - 99, end, u64::MAX - 50, u64::MAX] {
        let read = picture.read_marked(&places, offset, &mut out, source(&file));
        assert_eq!(read, Err(ReadError::Beyond));
    }
    assert_eq!(picture.read_marked(&places, end - 100, &mut out, source(&file)), Ok(()));
    assert_eq!(other.read_marked(&places, 0, &mut out, source(&file)), Err(ReadError::Places));
    let failing = |_: u64, _: &mut [u8]| Err("the disk");
    assert_eq!(picture.read_marked(&places, 0, &mut out, failing), Err(ReadError::Original("the disk")));
    assert!(picture.read_marked(&places, end, &mut [], failing).is_ok());
    // A text that is too long is cut.
    let long = [b'8'; 100];
    assert_eq!(picture.mark(&long).text(), &long[..rivulet_watermark::MAX_TEXT]);
}
