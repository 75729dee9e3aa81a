//! Any bytes as a picture and as a client's places: what the fuzz target runs, and the test that replays its corpus.

use rivulet_watermark::{MAX_PLACES, Picture, Places};

/// The first byte divides the others: so many of the last ones are places.
pub fn picture(bytes: &[u8]) {
    let Some((split, rest)) = bytes.split_first() else { return };
    let split = rest.len() - usize::from(*split).min(rest.len());
    let (file, junk) = rest.split_at(split);
    let Ok(picture) = Picture::read(file) else { return };
    let mut source = |at: u64, out: &mut [u8]| {
        let bytes = file.get(at as usize..at as usize + out.len()).ok_or("beyond the file")?;
        out.copy_from_slice(bytes);
        Ok::<_, &str>(())
    };
    let places = picture.mark(b"203.0.113.255");
    let mut whole = vec![0; places.len() as usize];
    picture.read_marked(&places, 0, &mut whole, &mut source).expect("a picture that was indexed");
    let mut encoded = Vec::new();
    places.encode(&mut encoded);
    assert!(encoded.len() <= MAX_PLACES);
    assert_eq!(Places::decode(&encoded), Some((places.clone(), &[][..])));
    for offset in [0, places.len() / 3, places.len() - 1] {
        let end = (offset + 1400).min(places.len());
        let mut part = vec![0; (end - offset) as usize];
        picture.read_marked(&places, offset, &mut part, &mut source).expect("a range of it");
        assert_eq!(part, whole[offset as usize..end as usize]);
    }
    if let Some((places, _)) = Places::decode(junk) {
        let mut out = [0; 100];
        let _ = picture.read_marked(&places, 0, &mut out, &mut source);
        let _ = picture.read_marked(&places, places.len().saturating_sub(100), &mut out, &mut source);
    }
}
