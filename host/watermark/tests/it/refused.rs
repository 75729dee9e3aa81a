use proptest::prelude::*;
use rivulet_watermark::{Error, Picture, Places};

use crate::random::{Recipe, recipes};
use crate::source;

fn recipe() -> Recipe {
    Recipe {
        width: 100,
        height: 60,
        factors: vec![(2, 1), (1, 1), (1, 1)],
        interval: 5,
        is_split: false,
        categories: 11,
        quantizer: 4,
        seed: 3,
    }
}

/// Offset of a marker's second byte.
fn marker(file: &[u8], marker: u8) -> usize {
    file.windows(2).position(|pair| pair == [0xff, marker]).unwrap() + 1
}

#[test]
fn other_processes_are_refused_by_name() {
    for (sof, name) in [
        (0xc2, "progressive"),
        (0xc3, "lossless"),
        (0xc9, "arithmetic coding"),
        (0xca, "arithmetic coding"),
        (0xc5, "hierarchical"),
    ] {
        let mut file = recipe().file();
        let at = marker(&file, 0xc0);
        file[at] = sof;
        assert_eq!(
            Picture::read(&file).unwrap_err().to_string(),
            format!("{name}: only baseline pictures are marked")
        );
    }
    // Fields of the frame: precision, height, components and a sampling factor.
    let with = |offset: usize, bytes: &[u8]| {
        let mut file = recipe().file();
        let at = marker(&file, 0xc0) + 3 + offset;
        file[at..at + bytes.len()].copy_from_slice(bytes);
        Picture::read(&file).unwrap_err().to_string()
    };
    assert!(with(0, &[12]).starts_with("12 bits a sample"));
    assert!(with(1, &[0, 0]).starts_with("a height that follows"));
    assert!(with(5, &[4]).starts_with("neither grey nor three colours"));
    assert!(with(10, &[0x12]).starts_with("a colour finer than the brightness"));
    assert_eq!(with(1, &[0, 39]), "100 by 39 pixels: a letter of the mark needs 24 by 40");
    assert_eq!(Picture::read(b"GIF89a").unwrap_err(), Error::NotJpeg);
    assert_eq!(Picture::read(&vec![0; rivulet_watermark::MAX_FILE + 1]).unwrap_err(), Error::TooLong);
}

#[test]
fn damaged_data_is_refused_with_its_place() {
    let file = recipe().file();
    let scan = marker(&file, 0xda);
    let text = |file: &[u8]| Picture::read(file).unwrap_err().to_string();
    assert!(text(&file[..scan]).contains("the file ends before the brightness"));
    assert!(
        text(&file[..file.len() / 2]).contains("ends before the picture")
            || text(&file[..file.len() / 2]).contains("restart")
    );
    let mut without = file.clone();
    let at = scan + marker(&file[scan..], 0xd2);
    without[at] = 0xd6;
    assert!(text(&without).contains("a restart marker is missing"), "{}", text(&without));
    let mut other = file.clone();
    let dht = marker(&file, 0xc4);
    other[dht + 4] = 200;
    assert!(text(&other).contains("too short") || text(&other).contains("Huffman"), "{}", text(&other));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Damaged files and places end in errors, or in some bytes.
    #[test]
    fn damage_never_panics(
        recipe in recipes(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        in_head in any::<bool>(),
        junk in prop::collection::vec(any::<u8>(), 0..150),
    ) {
        let mut file = recipe.file();
        let most = if in_head { 250.min(file.len()) } else { file.len() };
        for (at, byte) in &damage {
            file[at.index(most)] = *byte;
        }
        let Ok(picture) = Picture::read(&file) else { return Ok(()) };
        let mut encoded = Vec::new();
        picture.mark(b"1.2.3.4").encode(&mut encoded);
        for (at, byte) in &damage {
            if !in_head {
                let at = at.index(encoded.len());
                encoded[at] = *byte;
            }
        }
        for encoded in [&encoded, &junk] {
            let Some((places, _)) = Places::decode(encoded) else { continue };
            for offset in [0, 300, places.len() / 2, places.len().saturating_sub(200)] {
                let mut out = [0; 200];
                let _ = picture.read_marked(&places, offset, &mut out, source(&file));
            }
        }
    }
}
