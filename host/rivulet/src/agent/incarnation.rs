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

/// Number of earlier incarnations that are remembered, and the seconds for which they are: longer
/// than a record that nobody renews stays in the store.
const FORMERS: usize = 15;
const LIFETIME: u32 = 2 * rivulet_trods::store::LIFETIME;

/// Path of the file with the last number.
fn place(socket: &Path) -> PathBuf {
    beside(socket, ".incarnation")
}

/// The number of an agent's process, and the numbers of earlier ones that may still have records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Incarnation {
    pub own: u32,
    /// The latest first.
    pub formers: Vec<u32>,
}

impl From<u32> for Incarnation {
    fn from(own: u32) -> Incarnation {
        Incarnation { own, formers: Vec::new() }
    }
}

/// The number of a process that starts in this second and has this socket. Where the last one cannot be kept, what a process in
/// the same second would lose is too little to do without this one.
pub(super) fn next(socket: &Path, second: u32) -> Incarnation {
    let path = place(socket);
    let mut formers = former(&path).unwrap_or_else(|e| {
        tracing::warn!(path = %path.display(), error = %e, "the number of the agent before this one is not known");
        Vec::new()
    });
    let last = formers.first().copied().unwrap_or(0);
    let own = second.max(last.saturating_add(1));
    formers.retain(|former| own.saturating_sub(*former) <= LIFETIME);
    formers.truncate(FORMERS);
    let next = Incarnation { own, formers };
    if let Err(e) = keep(&path, &next) {
        tracing::warn!(path = %path.display(), error = %e, "the number of this agent is not kept");
    }
    next
}

/// The last number, and those before it.
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

/// So that the file is always whole.
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
    fn no_process_has_the_number_of_one_before() {
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
    fn where_nothing_can_be_kept_it_starts() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let next = |folder: &str| next(&dir.path().join(folder).join("agent.sock"), 5).own;
        assert_eq!((next("file"), next("folder")), (5, 5));
        assert_eq!(next("folder"), 6, "its folder is made");
    }

    #[test]
    fn numbers_of_before_are_kept_while_their_records_may_be_stored() {
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
