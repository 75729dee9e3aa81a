//! Whether a program uses the C library for its system calls, as far as its file tells.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// elf.h
const INTERPRETER: u32 = 3;
const NOTE: u32 = 4;
/// Program headers looked at, and octets of a note.
const MAX_HEADERS: u16 = 64;
const MAX_NOTE: u64 = 4096;
/// Scripts whose interpreter is a script.
const MAX_SCRIPTS: usize = 4;

/// True for a static program and for one of Go, whose connections a preloaded library does not see. A script
/// is what its interpreter is. What cannot be read is taken for an ordinary program.
pub(super) fn bypasses_libc(program: &Path) -> bool {
    let mut path = find(program);
    for _ in 0..MAX_SCRIPTS {
        let Some(file) = path.as_deref().and_then(|p| File::open(p).ok()) else { return false };
        let mut start = [0; 256];
        let Ok(length) = (&file).read(&mut start) else { return false };
        match start[..length].strip_prefix(b"#!") {
            Some(line) => path = interpreter(line),
            None => return inspect(&file).unwrap_or(false),
        }
    }
    false
}

fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = std::str::from_utf8(line.split(|b| *b == b'\n').next()?).ok()?;
    let mut words = line.split_ascii_whitespace();
    let first = Path::new(words.next()?);
    // `env NAME` stands for NAME.
    if first.file_name()? == "env" { find(Path::new(words.next()?)) } else { Some(first.to_owned()) }
}

/// Where the shell would find it.
fn find(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 || program.is_absolute() {
        return Some(program.to_owned());
    }
    let places = std::env::var_os("PATH")?;
    let runs = |p: &PathBuf| p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&places).map(|place| place.join(program)).find(runs)
}

/// Looks at the program headers of a 64-bit file in this machine's byte order; none for other files.
fn inspect(file: &File) -> Option<bool> {
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    if &head[..5] != b"\x7fELF\x02" {
        return None;
    }
    let long = |b: &[u8]| b.first_chunk().map(|b| u64::from_ne_bytes(*b));
    let short = |b: &[u8]| b.first_chunk().map(|b| u16::from_ne_bytes(*b));
    let (at, size, count) = (long(&head[32..])?, short(&head[54..])?, short(&head[56..])?);
    let mut has_interpreter = false;
    for index in 0..count.min(MAX_HEADERS) {
        let mut header = [0; 56];
        let offset = at.checked_add(u64::from(index) * u64::from(size))?;
        file.read_exact_at(&mut header, offset).ok()?;
        let kind = u32::from_ne_bytes(*header.first_chunk()?);
        has_interpreter |= kind == INTERPRETER;
        if kind == NOTE {
            let mut note = vec![0; long(&header[32..])?.min(MAX_NOTE) as usize];
            file.read_exact_at(&mut note, long(&header[8..])?).ok()?;
            // The note of Go's linker: its name is "Go".
            if note.get(12..16) == Some(b"Go\0\0") {
                return Some(true);
            }
        }
    }
    Some(!has_interpreter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_either_kind() {
        assert!(!bypasses_libc(Path::new("sh")), "found in PATH, dynamically linked");
        assert!(!bypasses_libc(Path::new("/no/such/program")));
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, octets: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, octets).unwrap();
            path
        };
        // A header without program headers is a program without interpreter.
        let mut elf = [0; 64];
        elf[..5].copy_from_slice(b"\x7fELF\x02");
        let fixed = write("static", &elf);
        assert!(bypasses_libc(&fixed));
        let script = write("script", format!("#!{}\nx", fixed.display()).as_bytes());
        assert!(bypasses_libc(&script));
        assert!(!bypasses_libc(&write("env", b"#!/usr/bin/env sh\n")));
        for damaged in [&elf[..20], b"", b"#!", b"#!\xff"] {
            assert!(!bypasses_libc(&write("damaged", damaged)));
        }
        let circle = write("circle", format!("#!{}\n", dir.path().join("circle").display()).as_bytes());
        assert!(!bypasses_libc(&circle));
        for at in 0..64 {
            let mut damaged = elf;
            damaged[at] = 0xff;
            bypasses_libc(&write("damaged", &damaged));
        }
    }
}
