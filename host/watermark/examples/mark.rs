//! Marks a picture: `mark IN.jpg OUT.jpg TEXT [PIECE]`. The output is made in pieces of so many bytes, each by a replica that
//! has nothing but the file and the client's places, as a server does. Prints the sizes, and the corners of the blocks under the mark.

use std::io::Write;
use std::process::ExitCode;

use rivulet_watermark::{Picture, Places};

fn main() -> ExitCode {
    match mark() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mark: {error}");
            ExitCode::FAILURE
        }
    }
}

fn mark() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, text, piece @ ..] = &arguments[..] else {
        return Err("usage: mark IN.jpg OUT.jpg TEXT [PIECE]".into());
    };
    let piece: u64 = match piece {
        [] => 1400,
        [text, ..] => text.parse().ok().filter(|n| *n > 0).ok_or("PIECE: a number of bytes above 0")?,
    };
    let file = std::fs::read(input).map_err(|e| format!("{input}: {e}"))?;
    let picture = Picture::read(&file).map_err(|e| format!("{input}: {e}"))?;
    let mut continuation = Vec::new();
    picture.mark(text.as_bytes()).encode(&mut continuation);
    let mut out =
        std::io::BufWriter::new(std::fs::File::create(output).map_err(|e| format!("{output}: {e}"))?);
    let mut at = 0;
    loop {
        let (places, _) = Places::decode(&continuation).ok_or("malformed places")?;
        let mut bytes = vec![0; piece.min(places.len() - at) as usize];
        picture.read_marked(&places, at, &mut bytes, |from, bytes| {
            let from = from as usize;
            file.get(from..from + bytes.len()).map(|now| bytes.copy_from_slice(now)).ok_or("beyond the file")
        })?;
        out.write_all(&bytes)?;
        at += bytes.len() as u64;
        if at == places.len() {
            break;
        }
    }
    out.flush()?;
    let (width, height) = picture.dimensions();
    let blocks = (0..height / 8).flat_map(|row| (0..width / 8).map(move |column| (8 * column, 8 * row)));
    let covered = blocks.filter(|(x, y)| picture.covers(text.as_bytes(), (*x).into(), (*y).into()));
    let covered: Vec<String> = covered.map(|(x, y)| format!("[{x},{y}]")).collect();
    println!(
        "{{\"original\":{},\"marked\":{at},\"index\":{},\"continuation\":{},\"blocks\":[{}]}}",
        file.len(),
        picture.memory(),
        continuation.len(),
        covered.join(",")
    );
    Ok(())
}
