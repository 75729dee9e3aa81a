//! A suspended download in a file: what `rivulet get --suspend` writes and `--resume` reads.
//!
//! | part | content |
//! |---|---|
//! | 24 bytes | `rivulet download v1` and zeros; another version is refused |
//! | 32 bytes | BLAKE3 of all that follows |
//! | a line | [`Position`] as JSON |
//! | the rest | the connection, as [`rivulet_client::Stack::suspend`] serializes it; nothing if there was none |
//!
//! The file is the user's alone: a reader could continue the connection, and a writer could choose its server. The digest
//! finds damage. The server itself checks the connection's continuation.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

const MAGIC: &[u8; 24] = b"rivulet download v1\0\0\0\0\0";
/// Bytes of [`MAGIC`] that are the same in all versions.
const KIND: usize = "rivulet download v".len();
/// Longest file, bytes: a connection has a receive buffer of at most 16 MiB.
const MAX_FILE: u64 = 32 << 20;

/// How far the download came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Position {
    pub url: String,
    /// Bytes in the `.part` file.
    pub received: u64,
    /// Bytes of the response that follow; `None`: as many as come before the connection ends.
    pub left: Option<u64>,
    /// Bytes of the whole content.
    pub size: Option<u64>,
    /// Entity tag of the content, for a request of the rest if the connection cannot be resumed.
    pub etag: Option<String>,
    /// BLAKE3 of the `.part` file.
    pub digest: String,
}

/// A download that a process left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Suspended {
    pub position: Position,
    pub connection: Vec<u8>,
}

impl Suspended {
    /// Writes the file for its user alone, in place of one with the same name.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut rest = serde_json::to_vec(&self.position)?;
        rest.push(b'\n');
        rest.extend_from_slice(&self.connection);
        let file = [MAGIC, &blake3::hash(&rest).as_bytes()[..], &rest].concat();
        // The rename is atomic, so an earlier file is whole until the new one is.
        let new = beside(path);
        match std::fs::remove_file(&new) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => rivulet_private_file::create(&new, &file),
        }
        .with_context(|| new.display().to_string())?;
        std::fs::rename(&new, path).with_context(|| path.display().to_string())
    }

    /// Reads the file.
    pub fn read(path: &Path) -> anyhow::Result<Suspended> {
        let context = || format!("--resume {}", path.display());
        let file = rivulet_private_file::read(path, MAX_FILE).with_context(context)?;
        Suspended::parse(&file).with_context(context)
    }

    fn parse(file: &[u8]) -> anyhow::Result<Suspended> {
        let Some((magic, rest)) = file.split_first_chunk::<24>() else {
            bail!("not a suspended download");
        };
        if magic[..KIND] != MAGIC[..KIND] {
            bail!("not a suspended download");
        }
        if magic != MAGIC {
            let version = String::from_utf8_lossy(&magic[KIND..]);
            let version = version.trim_end_matches('\0').escape_debug();
            bail!(
                "version {version} of the file, this program reads version 1: resume with the version that suspended"
            );
        }
        let damaged = "damaged or changed: get the file again from the machine that suspended, or start the download over";
        let Some((digest, rest)) = rest.split_first_chunk::<32>() else { bail!(damaged) };
        if blake3::hash(rest) != *digest {
            bail!(damaged);
        }
        let line = rest.iter().position(|byte| *byte == b'\n').context(damaged)?;
        let position: Position = serde_json::from_slice(&rest[..line]).context(damaged)?;
        if position.left.is_some_and(|left| position.received.checked_add(left).is_none()) {
            bail!(damaged);
        }
        Ok(Suspended { position, connection: rest[line + 1..].to_vec() })
    }

    /// Checks that the `.part` file begins with what was received, and cuts what a later process appended.
    pub fn check_part(&self, part: &Path) -> anyhow::Result<()> {
        let Position { received, digest, .. } = &self.position;
        let context = || format!("{}: the part of the download that was received", part.display());
        let there = File::options().read(true).write(true).open(part).with_context(|| {
            format!("{}: copy it here from the machine that suspended, or name its place with -o", context())
        })?;
        let length = there.metadata().with_context(context)?.len();
        if length < *received {
            bail!("{}: it has {length} bytes and not {received}", context());
        }
        if digest_of(&there, *received).with_context(context)? != *digest {
            bail!("{}: it has other content than at the suspension", context());
        }
        there.set_len(*received).with_context(context)
    }
}

/// BLAKE3 of the first bytes of a file.
pub(super) fn digest_of(file: &File, length: u64) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut file.take(length), &mut hasher)?;
    Ok(hasher.finalize().to_hex().to_string())
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn suspended() -> Suspended {
        let position = Position {
            url: "http://a/b".into(),
            received: 3,
            left: Some(9),
            size: Some(12),
            etag: Some("\"x\"".into()),
            digest: blake3::hash(b"abc").to_hex().to_string(),
        };
        Suspended { position, connection: b"any\nbytes".to_vec() }
    }

    #[test]
    fn suspended_download_is_private_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for _ in 0..2 {
            suspended().write(&path).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
            assert_eq!(Suspended::read(&path).unwrap(), suspended());
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(format!("{:#}", Suspended::read(&path).unwrap_err()).contains("chmod 600"));
    }

    #[test]
    fn changed_cut_or_other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        suspended().write(&path).unwrap();
        let file = std::fs::read(&path).unwrap();
        for length in 0..file.len() {
            assert!(Suspended::parse(&file[..length]).is_err(), "{length} bytes");
        }
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 1;
            assert!(Suspended::parse(&changed).is_err(), "byte {at}");
        }
        let mut later = file.clone();
        later[KIND] = b'2';
        assert!(Suspended::parse(&later).unwrap_err().to_string().contains("version 2"));
    }

    #[test]
    fn part_with_other_content_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let part = dir.path().join("b.part");
        let error = |content: &[u8]| {
            std::fs::write(&part, content).unwrap();
            suspended().check_part(&part).unwrap_err().to_string()
        };
        assert!(error(b"ab").contains("2 bytes and not 3"));
        assert!(error(b"abd").contains("other content"));
        std::fs::write(&part, b"abcd").unwrap();
        suspended().check_part(&part).unwrap();
        assert_eq!(std::fs::read(&part).unwrap(), b"abc");
        std::fs::remove_file(&part).unwrap();
        assert!(suspended().check_part(&part).unwrap_err().to_string().contains("copy it here"));
    }
}
