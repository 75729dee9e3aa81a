//! Address tokens on disk, for the user's next process: a token spares a connection a round trip, and would die with the process that
//! earned it.
//!
//! A token is good once, so it is moved, never copied: whoever takes one out of the file has it alone. All of it is soft. A file
//! that is locked for long, or full disk, costs a round trip; what is not ours is left as it is.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};

/// Environment variable with the folder; empty: nothing is kept.
const FOLDER_ENV: &str = "RIVULET_STATE";
/// The file in it, and what it is written to before it takes its name.
const FILE: &str = "tokens";
const NEW: &str = "tokens.new";
/// First line; another one is another version's.
const HEADER: &str = "rivulet tokens 1";
/// Destinations whose token is kept; beyond that the oldest go.
const MAX: usize = 1024;
/// Octets of a token at most: its length takes one octet on the wire.
const MAX_TOKEN: usize = 255;
/// Octets of a file with as many of them as may be.
const MAX_FILE: u64 = 1 << 20;
/// A token that is older than this is not tried: servers take them for 24 hours, by their own clock.
const LIFETIME: u64 = 23 * 3600;
/// How often, and how long after one another, a file that is locked is tried.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// Why tokens are not kept. None of these changes anything on disk.
#[derive(Debug, thiserror::Error)]
pub enum RememberError {
    /// The folder or the file cannot be had.
    #[error("{0}: {1}")]
    Io(PathBuf, #[source] io::Error),
    /// Others could change what is kept, or it is theirs.
    #[error("{0} belongs to another user, or others may change it: want a folder of mode 700 of this user")]
    NotOwn(PathBuf),
    /// It was not written by this program, or is damaged.
    #[error(
        "{0} is no file of tokens, is damaged or of another version, or others may read it: it is left as it is; \
         remove it to have tokens kept"
    )]
    Foreign(PathBuf),
}

/// A token, and what it is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// The address that it proves.
    pub source: IpAddr,
    /// Seconds since 1970.
    pub earned: u64,
    pub octets: Vec<u8>,
}

impl Token {
    /// One that has just come. None: no token is as long.
    pub fn new(source: IpAddr, octets: Vec<u8>) -> Option<Token> {
        (1..=MAX_TOKEN).contains(&octets.len()).then(|| Token { source, earned: now(), octets })
    }

    /// Whether a server may still take it from this address.
    pub fn is_good_for(&self, source: IpAddr) -> bool {
        // A clock that was set back tells nothing.
        self.source == source && now().checked_sub(self.earned).is_some_and(|age| age < LIFETIME)
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Where this user's programs keep what outlives them: `RIVULET_STATE`, else the folder `rivulet` where the XDG Base Directory
/// Specification has state. None: nowhere.
#[must_use]
pub fn state_folder() -> Option<PathBuf> {
    let path = |name| std::env::var_os(name).map(PathBuf::from);
    if let Some(folder) = path(FOLDER_ENV) {
        return Some(folder).filter(|folder| !folder.as_os_str().is_empty());
    }
    let base = path("XDG_STATE_HOME").filter(|base| base.is_absolute());
    let home = || path("HOME").filter(|home| home.is_absolute()).map(|home| home.join(".local/state"));
    Some(base.or_else(home)?.join("rivulet"))
}

type Entries = Vec<(SocketAddr, Token)>;

/// The file of a user.
#[derive(Debug)]
pub(crate) struct Store {
    /// Locked by whoever reads or changes the file: among threads by this, among processes by flock(2).
    folder: Mutex<OwnedFd>,
    path: PathBuf,
}

impl Store {
    /// That of this folder, which is made if it is not there.
    pub fn open(folder: &Path) -> Result<Store, RememberError> {
        let failed = |e: io::Error| RememberError::Io(folder.into(), e);
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(folder, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
        let of = rustix::fs::fstat(&opened).map_err(|e| failed(e.into()))?;
        if of.st_uid != rustix::process::geteuid().as_raw() || of.st_mode & 0o022 != 0 {
            return Err(RememberError::NotOwn(folder.into()));
        }
        let store = Store { folder: Mutex::new(opened), path: folder.join(FILE) };
        store.read(&store.folder.lock())?;
        Ok(store)
    }

    /// Takes a token out for good. None also if the file is in use for long, or cannot be changed.
    pub fn take(&self, source: IpAddr, remote: SocketAddr) -> Option<Vec<u8>> {
        let mut taken = None;
        self.change(|entries| {
            let place = entries.iter().position(|(to, token)| *to == remote && token.is_good_for(source))?;
            taken = Some(entries.swap_remove(place).1.octets);
            Some(())
        })
        .then_some(taken)?
    }

    /// Adds these. For a destination that has one the new one stands.
    pub fn put(&self, tokens: Entries) {
        self.change(|entries| {
            entries.retain(|(remote, _)| !tokens.iter().any(|(other, _)| other == remote));
            entries.extend(tokens);
            Some(())
        });
    }

    /// Changes the file, all of it or nothing. False: it is as before.
    fn change(&self, change: impl FnOnce(&mut Entries) -> Option<()>) -> bool {
        let folder = self.folder.lock();
        if !lock(&folder) {
            tracing::debug!(file = %self.path.display(), "tokens are in use");
            return false;
        }
        let result = self.read(&folder).and_then(|mut entries| match change(&mut entries) {
            Some(()) => self.write(&folder, entries).map(|()| true),
            None => Ok(false),
        });
        // It goes with the descriptor else.
        let _ = rustix::fs::flock(&*folder, FlockOperation::Unlock);
        result.unwrap_or_else(|e| {
            tracing::warn!(error = %e, "tokens are not kept");
            false
        })
    }

    fn read(&self, folder: &OwnedFd) -> Result<Entries, RememberError> {
        let failed = |e: io::Error| RememberError::Io(self.path.clone(), e);
        let foreign = || RememberError::Foreign(self.path.clone());
        // A pipe of this name must not be waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(folder, FILE, flags, Mode::empty()) {
            Ok(file) => file,
            Err(rustix::io::Errno::NOENT) => return Ok(Vec::new()),
            Err(rustix::io::Errno::LOOP) => return Err(foreign()),
            Err(e) => return Err(failed(e.into())),
        };
        let of = rustix::fs::fstat(&file).map_err(|e| failed(e.into()))?;
        let own = of.st_uid == rustix::process::geteuid().as_raw() && of.st_mode & 0o077 == 0;
        if !own || FileType::from_raw_mode(of.st_mode) != FileType::RegularFile {
            return Err(foreign());
        }
        let mut octets = Vec::new();
        File::from(file).take(MAX_FILE + 1).read_to_end(&mut octets).map_err(failed)?;
        let text = std::str::from_utf8(&octets).ok().filter(|text| text.len() as u64 <= MAX_FILE);
        text.and_then(parse).ok_or_else(foreign)
    }

    /// The file is replaced at once: whoever reads it finds the old one or the new one. It is not flushed to the disk: what a power
    /// failure takes is a round trip.
    fn write(&self, folder: &OwnedFd, mut entries: Entries) -> Result<(), RememberError> {
        let now = now();
        entries.retain(|(_, token)| now.checked_sub(token.earned).is_none_or(|age| age < LIFETIME));
        entries.sort_by_key(|(_, token)| std::cmp::Reverse(token.earned));
        entries.truncate(MAX);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let replace = || -> io::Result<()> {
            let new = rustix::fs::openat(folder, NEW, flags, Mode::RUSR | Mode::WUSR)?;
            // One that was left there may have other rights.
            rustix::fs::fchmod(&new, Mode::RUSR | Mode::WUSR)?;
            File::from(new).write_all(print(&entries).as_bytes())?;
            Ok(rustix::fs::renameat(folder, NEW, folder, FILE)?)
        };
        replace().map_err(|e| {
            let _ = rustix::fs::unlinkat(folder, NEW, AtFlags::empty());
            RememberError::Io(self.path.clone(), e)
        })
    }
}

/// A process that was stopped may hold the lock for ever: nobody waits for it for long.
fn lock(folder: &OwnedFd) -> bool {
    (0..TRIES).any(|n| {
        if n > 0 {
            std::thread::sleep(PAUSE);
        }
        rustix::fs::flock(folder, FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}

/// Header, then a line a token: destination, our address, when it was earned, and the octets in hexadecimal.
fn print(entries: &[(SocketAddr, Token)]) -> String {
    use std::fmt::Write;
    let mut out = format!("{HEADER}\n");
    for (remote, token) in entries {
        // Writing to a String does not fail.
        let _ = write!(out, "{remote} {} {} ", token.source, token.earned);
        for octet in &token.octets {
            let _ = write!(out, "{octet:02x}");
        }
        out.push('\n');
    }
    out
}

/// None: it is not what [`print`] makes. An empty file has no tokens: a power failure may leave one.
fn parse(text: &str) -> Option<Entries> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let body = text.strip_prefix(HEADER)?.strip_prefix('\n')?;
    if !body.is_empty() && !body.ends_with('\n') {
        return None;
    }
    let entries: Entries = body.lines().map(line).collect::<Option<_>>()?;
    (entries.len() <= MAX).then_some(entries)
}

fn line(line: &str) -> Option<(SocketAddr, Token)> {
    let mut words = line.split(' ');
    let (remote, source) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let (earned, hex) = (words.next()?.parse().ok()?, words.next()?);
    if words.next().is_some() || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let octets = hex.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    let octets: Vec<u8> = octets.collect::<Option<_>>()?;
    (1..=MAX_TOKEN).contains(&octets.len()).then_some((remote, Token { source, earned, octets }))
}

#[cfg(test)]
mod tests;
