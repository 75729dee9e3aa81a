//! The incarnation: the number of an agent's process, larger than that of every earlier process.
//!
//! Records of connections are stored under it (`docs/trods-records.md`). A process with the number
//! of an earlier one would overwrite that one's records without reading them. The second of the
//! start is not sufficient: a process that dies at once may be followed by another in the same
//! second, and a clock may be set back. So the last number is kept in a file beside the socket. An
//! agent that is restarted again and again may get ahead of the clock, so heartbeats do not use
//! this number.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::beside;

/// Number of earlier incarnations that are remembered, and for how many seconds: longer than a
/// record stays in the store unless it is renewed.
const FORMERS: usize = 15;
const LIFETIME: u32 = 2 * rivulet_trods::store::LIFETIME;

/// Path of the file with the last number.
fn place(socket: &Path) -> PathBuf {
    beside(socket, ".incarnation")
}

/// The number of an agent's process, and the numbers of earlier processes that may still have
/// records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Incarnation {
    pub own: u32,
    /// The latest one first.
    pub formers: Vec<u32>,
}

impl From<u32> for Incarnation {
    fn from(own: u32) -> Incarnation {
        Incarnation { own, formers: Vec::new() }
    }
}

/// The number of a process with this socket that starts in this second. If the file cannot be
/// written, the agent starts nevertheless: only another start in the same second would lose
/// records.
pub(super) fn next(socket: &Path, second: u32) -> Incarnation {
    let path = place(socket);
    let mut formers = former(&path).unwrap_or_else(|e| {
        tracing::warn!(path = %path.display(), error = %e, "the former agent's number cannot be read");
        Vec::new()
    });
    let last = formers.first().copied().unwrap_or(0);
    let own = second.max(last.saturating_add(1));
    formers.retain(|former| own.saturating_sub(*former) <= LIFETIME);
    formers.truncate(FORMERS);
    let next = Incarnation { own, formers };
    if let Err(e) = keep(&path, &next) {
        tracing::warn!(path = %path.display(), error = %e, "the number of this agent cannot be written");
    }
    next
}

/// Reads the last number, and those before it.
fn former(path: &Path) -> io::Result<Vec<u32>> {
    match fs::read_to_string(path) {
        Ok(text) => text
            .lines()
            .map(|line| line.trim().parse().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e)))
            .collect(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// Replaces the file in one step, so that it is never incomplete.
fn keep(path: &Path, incarnation: &Incarnation) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let new = path.with_extension("incarnation.new");
    let all = std::iter::once(&incarnation.own).chain(&incarnation.formers);
    fs::write(&new, all.map(|number| format!("{number}\n")).collect::<String>())?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incarnation_exceeds_all_earlier_ones() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let next = |second| next(&socket, second).own;
        assert_eq!(next(100), 100);
        assert_eq!(next(100), 101, "in the same second");
        assert_eq!(next(100), 102);
        assert_eq!(next(90), 103, "its clock was set back");
        assert_eq!(next(200), 200);
        let kept = place(&socket);
        assert!(fs::read_to_string(&kept).unwrap().starts_with("200\n103\n102\n"));
        for cut in ["20x", "-1", "99999999999"] {
            fs::write(&kept, cut).unwrap();
            assert_eq!(next(300), 300, "after {cut:?}");
        }
        fs::write(&kept, u32::MAX.to_string()).unwrap();
        assert_eq!(next(300), u32::MAX);
    }

    #[test]
    fn agent_starts_if_number_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let next = |folder: &str| next(&dir.path().join(folder).join("agent.sock"), 5).own;
        assert_eq!((next("file"), next("folder")), (5, 5));
        assert_eq!(next("folder"), 6, "its folder is made");
    }

    #[test]
    fn earlier_incarnations_are_kept_while_records_live() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let next = |second| next(&socket, second).formers;
        assert_eq!([next(100), next(150), next(150)], [vec![], vec![100], vec![150, 100]]);
        assert_eq!(next(151 + LIFETIME), [151], "that is the last one of a process in the same second");
        for n in 0..40 {
            next(2 * LIFETIME + n);
        }
        assert_eq!(next(2 * LIFETIME + 40), (25..40).rev().map(|n| 2 * LIFETIME + n).collect::<Vec<_>>());
    }
}
