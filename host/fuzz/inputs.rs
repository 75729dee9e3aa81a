//! The corpora of the fuzz targets, for tests of crates beside this folder that replay them.

use std::path::Path;

/// What was kept of a target, in an order that stays.
///
/// # Panics
///
/// If there is nothing.
pub fn inputs(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(!paths.is_empty(), "no corpus for {target}");
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Runs every input of a target.
pub fn replay(target: &str, run: impl Fn(&[u8])) {
    inputs(target).iter().for_each(|input| run(input));
}
