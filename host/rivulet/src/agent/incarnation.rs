//! The number of an agent's process, above those of all before it.
//!
//! Records of connections are kept under it (`docs/trods-records.md`): with that of a process before it, a process would write over
//! what that one had protected, and would not read it. The second of the start is not enough: a process that died at once is
//! followed by another within the second, and a clock may be set back. So the last number is kept in a file beside the socket.
//! One that cannot start again and again may run ahead of the clock, which is why heartbeats do not begin with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::beside;

/// Where the last number is kept.
fn place(socket: &Path) -> PathBuf {
    beside(socket, ".incarnation")
}

/// The number of a process that starts in this second and has this socket. Where the last one cannot be kept, what a process in
/// the same second would lose is too little to do without this one.
pub(super) fn next(socket: &Path, second: u32) -> u32 {
    let path = place(socket);
    let last = last(&path).unwrap_or_else(|e| {
        tracing::warn!(path = %path.display(), error = %e, "the number of the agent before this one is not known");
        0
    });
    let next = second.max(last.saturating_add(1));
    if let Err(e) = keep(&path, next) {
        tracing::warn!(path = %path.display(), error = %e, "the number of this agent is not kept");
    }
    next
}

fn last(path: &Path) -> io::Result<u32> {
    match fs::read_to_string(path) {
        Ok(text) => text.trim().parse().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(e) => Err(e),
    }
}

/// So that the file is always whole.
fn keep(path: &Path, number: u32) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let new = path.with_extension("incarnation.new");
    fs::write(&new, format!("{number}\n"))?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_process_has_the_number_of_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let next = |second| next(&socket, second);
        assert_eq!(next(100), 100);
        assert_eq!(next(100), 101, "in the same second");
        assert_eq!(next(100), 102);
        assert_eq!(next(90), 103, "its clock was set back");
        assert_eq!(next(200), 200);
        let kept = place(&socket);
        assert_eq!(fs::read_to_string(&kept).unwrap(), "200\n");
        for cut in ["", "20x", "-1", "99999999999"] {
            fs::write(&kept, cut).unwrap();
            assert_eq!(next(300), 300, "after {cut:?}");
        }
        fs::write(&kept, u32::MAX.to_string()).unwrap();
        assert_eq!(next(300), u32::MAX);
    }

    #[test]
    fn where_nothing_can_be_kept_it_starts() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(next(&dir.path().join("file").join("agent.sock"), 5), 5);
        assert_eq!(next(&dir.path().join("folder").join("agent.sock"), 5), 5);
        assert_eq!(next(&dir.path().join("folder").join("agent.sock"), 5), 6, "its folder is made");
    }
}
