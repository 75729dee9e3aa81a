//! Address tokens on disk, for the user's next process. A token saves a connection a round trip,
//! and would be lost with the process that received it.
//!
//! Servers accept a token once, so it is moved, never copied: taking one removes it from the file.
//! All of this is soft state: a lock held too long or a full disk costs a round trip. Files not
//! written by this module are left unchanged.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};

/// Environment variable that names the folder; if it is empty, no tokens are kept.
const FOLDER_ENV: &str = "RIVULET_STATE";
/// The file in the folder, and the temporary file that replaces it.
const FILE: &str = "tokens";
const NEW: &str = "tokens.new";
/// First line of the file, with the version of the format.
const HEADER: &str = "rivulet tokens 1";
/// Maximum number of destinations with a token; the oldest are dropped.
const MAX: usize = 1024;
/// Maximum length of a token in bytes: the wire format has one byte for it.
const MAX_TOKEN: usize = 255;
/// Maximum size of the file in bytes; `MAX` tokens of full length fit.
const MAX_FILE: u64 = 1 << 20;
/// Seconds after which a token is no longer used. Servers accept tokens for 24 hours, by their
/// clocks.
const LIFETIME: u64 = 23 * 3600;
/// Attempts to lock the file, and the pause between two attempts.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// Why tokens cannot be kept. Nothing on disk is changed by any of these.
#[derive(Debug, thiserror::Error)]
pub enum RememberError {
    /// The folder or the file cannot be opened or read.
    #[error("{0}: {1}")]
    Io(PathBuf, #[source] io::Error),
    /// The folder belongs to another user, or other users may change it.
    #[error("{0} belongs to another user, or others may change it: want a folder of mode 700 of this user")]
    NotOwn(PathBuf),
    /// The file was not written by this program, is damaged, or other users may read it.
    #[error(
        "{0} is no file of tokens, is damaged or of another version, or others may read it: it is left as it is; \
         remove it to have tokens kept"
    )]
    Foreign(PathBuf),
}

/// An address token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// The client address that it proves.
    pub source: IpAddr,
    /// Time of receipt, seconds since 1970.
    pub earned: u64,
    pub bytes: Vec<u8>,
}

impl Token {
    /// A token received now. `None` if its length is impossible.
    pub fn new(source: IpAddr, bytes: Vec<u8>) -> Option<Token> {
        (1..=MAX_TOKEN).contains(&bytes.len()).then(|| Token { source, earned: now(), bytes })
    }

    /// Whether a server would still accept it from this address.
    pub fn is_good_for(&self, source: IpAddr) -> bool {
        // If the clock was set back, the age is unknown.
        self.source == source && now().checked_sub(self.earned).is_some_and(|age| age < LIFETIME)
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Folder for this user's persistent state: `RIVULET_STATE`, or else `rivulet` in the state folder
/// of the XDG Base Directory Specification. `None` if there is none.
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

/// The token file of a user.
#[derive(Debug)]
pub(crate) struct Store {
    /// Locked for every read or change: the mutex excludes other threads, flock(2) other processes.
    folder: Mutex<OwnedFd>,
    path: PathBuf,
}

impl Store {
    /// Opens the store in a folder, and creates the folder if it is missing.
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

    /// Removes and returns a token. Also `None` if the file stays locked or cannot be changed.
    pub fn take(&self, source: IpAddr, remote: SocketAddr) -> Option<Vec<u8>> {
        let mut taken = None;
        self.change(|entries| {
            let place = entries.iter().position(|(to, token)| *to == remote && token.is_good_for(source))?;
            taken = Some(entries.swap_remove(place).1.bytes);
            Some(())
        })
        .then_some(taken)?
    }

    /// Adds tokens. A new token replaces the old one for its destination.
    pub fn put(&self, tokens: Entries) {
        self.change(|entries| {
            entries.retain(|(remote, _)| !tokens.iter().any(|(other, _)| other == remote));
            entries.extend(tokens);
            Some(())
        });
    }

    /// Replaces the whole file or leaves it as it is. Returns false if nothing changed.
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
        // If this fails, closing the descriptor unlocks it.
        let _ = rustix::fs::flock(&*folder, FlockOperation::Unlock);
        result.unwrap_or_else(|e| {
            tracing::warn!(error = %e, "tokens are not kept");
            false
        })
    }

    fn read(&self, folder: &OwnedFd) -> Result<Entries, RememberError> {
        let failed = |e: io::Error| RememberError::Io(self.path.clone(), e);
        let foreign = || RememberError::Foreign(self.path.clone());
        // O_NONBLOCK: opening a FIFO of this name must not block.
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
        let mut bytes = Vec::new();
        File::from(file).take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
        let text = std::str::from_utf8(&bytes).ok().filter(|text| text.len() as u64 <= MAX_FILE);
        text.and_then(parse).ok_or_else(foreign)
    }

    /// Replaces the file atomically: readers find the old one or the new one. It is not flushed to
    /// disk, because losing it in a power failure costs only round trips.
    fn write(&self, folder: &OwnedFd, mut entries: Entries) -> Result<(), RememberError> {
        let now = now();
        entries.retain(|(_, token)| now.checked_sub(token.earned).is_none_or(|age| age < LIFETIME));
        entries.sort_by_key(|(_, token)| std::cmp::Reverse(token.earned));
        entries.truncate(MAX);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let replace = || -> io::Result<()> {
            let new = rustix::fs::openat(folder, NEW, flags, Mode::RUSR | Mode::WUSR)?;
            // A temporary file left by another process may have other permissions.
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

/// Locks the folder. Gives up after TRIES attempts, because a stopped process may hold the lock
/// forever.
fn lock(folder: &OwnedFd) -> bool {
    (0..TRIES).any(|n| {
        if n > 0 {
            std::thread::sleep(PAUSE);
        }
        rustix::fs::flock(folder, FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}

/// Formats a header, and a line for each token: destination, our address, time of receipt, token in
/// hexadecimal.
fn print(entries: &[(SocketAddr, Token)]) -> String {
    use std::fmt::Write;
    let mut out = format!("{HEADER}\n");
    for (remote, token) in entries {
        // Writing to a String cannot fail.
        let _ = write!(out, "{remote} {} {} ", token.source, token.earned);
        for byte in &token.bytes {
            let _ = write!(out, "{byte:02x}");
        }
        out.push('\n');
    }
    out
}

/// Parses the output of [`print`]; `None` if it is malformed. An empty file, which a power failure
/// may leave, has no tokens.
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
    let bytes = hex.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    let bytes: Vec<u8> = bytes.collect::<Option<_>>()?;
    (1..=MAX_TOKEN).contains(&bytes.len()).then_some((remote, Token { source, earned, bytes }))
}

#[cfg(test)]
mod tests;
