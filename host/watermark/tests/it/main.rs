//! Marked pictures against the originals, coefficient by coefficient, and files that must be refused.

#![allow(missing_docs, reason = "tests")]

mod corpus;
mod decoders;
mod marks;
mod random;
mod reference;
mod refused;

/// All bytes of a picture under a text, in pieces of so many bytes.
fn marked(picture: &rivulet_watermark::Picture, file: &[u8], text: &[u8], piece: usize) -> Vec<u8> {
    let mut encoded = Vec::new();
    picture.mark(text).encode(&mut encoded);
    assert!(encoded.len() <= rivulet_watermark::MAX_PLACES);
    encoded.push(7);
    let (places, rest) = rivulet_watermark::Places::decode(&encoded).unwrap();
    assert_eq!((rest, places.text()), (&[7][..], text));
    let mut all = vec![0; places.len() as usize];
    for (index, out) in all.chunks_mut(piece).enumerate() {
        picture.read_marked(&places, (index * piece) as u64, out, source(file)).unwrap();
    }
    all
}

/// Reads the original.
fn source(file: &[u8]) -> impl FnMut(u64, &mut [u8]) -> Result<(), &'static str> {
    |at, out| {
        let bytes = file.get(at as usize..at as usize + out.len()).ok_or("beyond the file")?;
        out.copy_from_slice(bytes);
        Ok(())
    }
}
