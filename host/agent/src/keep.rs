//! Saves the last update in a file, for an agent that starts while no controller answers.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use prost::Message;

use crate::proto::Update;

/// Longest file to read, in bytes: the longest update.
const MAX: u64 = crate::upstream::MAX_MESSAGE as u64;

/// Reads the file that [`save`] wrote; `None` if it does not exist. Refuses a file that other users
/// can read, because it holds keys.
pub(crate) fn load(path: &Path) -> io::Result<Option<Update>> {
    let bytes = match rivulet_private_file::read(path, MAX) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    Update::decode(&*bytes).map(Some).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Replaces the file atomically, readable only by its owner.
pub(crate) fn save(path: &Path, update: &Update) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    // A file that a killed process left may have other permissions.
    let _ = fs::remove_file(&new);
    rivulet_private_file::create(&new, &update.encode_to_vec())?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn saved_update_is_readable_by_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept");
        assert_eq!(load(&path).unwrap(), None);
        for version in [3, 4] {
            let update = Update { version, services: vec![] };
            save(&path, &update).unwrap();
            assert_eq!(load(&path).unwrap(), Some(update));
        }
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        mode(0o640);
        assert_eq!(load(&path).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        mode(0o600);
        fs::write(&path, b"\xff\xff\xff").unwrap();
        assert_eq!(load(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
