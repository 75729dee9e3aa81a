//! Marked pictures in decoders of others: Pillow (libjpeg-turbo), ffmpeg, Go.

use std::path::{Path, PathBuf};
use std::process::Command;

use rivulet_watermark::Picture;

use crate::marked;
use crate::random::Recipe;

/// The Python environment of the repository, which has Pillow.
fn python() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    path.exists().then_some(path)
}

fn run(command: &mut Command) -> String {
    let out = command.output().unwrap();
    assert!(
        out.status.success(),
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn three_decoders_see_the_mark_and_no_other_change() {
    let Some(python) = python() else {
        eprintln!("skipped: no .venv (make setup)");
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoders/decoders.py");
    let folder = tempfile::tempdir().unwrap();
    run(Command::new(&python).arg(&script).arg("make").arg(folder.path()));
    // What Pillow does not write: colours of half the height, of a quarter of the width, and a scan for each component.
    for (name, luma, is_split) in [("440", (1, 2), false), ("411", (4, 1), false), ("split", (2, 2), true)] {
        let recipe = Recipe {
            width: 203,
            height: 121,
            factors: vec![luma, (1, 1), (1, 1)],
            interval: 3,
            is_split,
            categories: 6,
            quantizer: 1,
            seed: 77,
        };
        std::fs::write(folder.path().join(name).with_extension("jpg"), recipe.file()).unwrap();
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let file = std::fs::read(&path).unwrap();
        let picture = Picture::read(&file).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let text = b"198.51.100.23";
        std::fs::write(path.with_extension("marked.jpg"), marked(&picture, &file, text, 1400)).unwrap();
        let (width, height) = picture.dimensions();
        let corners = (0..height / 8).flat_map(|row| (0..width / 8).map(move |column| (8 * column, 8 * row)));
        let covered: Vec<String> = corners
            .filter(|(x, y)| picture.covers(text, (*x).into(), (*y).into()))
            .map(|(x, y)| format!("[{x},{y}]"))
            .collect();
        std::fs::write(path.with_extension("json"), format!("[{}]", covered.join(","))).unwrap();
        names.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
    }
    let counts = run(Command::new(&python).arg(&script).arg("compare").arg(folder.path()).args(&names));
    eprintln!("{counts}");
    assert!(counts.contains(&format!("\"pillow\": {}", names.len())), "{counts}");
}
