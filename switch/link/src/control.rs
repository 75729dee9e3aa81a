//! Changes settings and reads counters of a running wire over a Unix socket.
//!
//! A request is one line. The answer is one or more lines, the last of which is `ok` or `error: …`:
//!
//! | request | answer |
//! |---|---|
//! | `set [a-to-b\|b-to-a] key=value …` | both directions unless one is named; all or nothing |
//! | `show` | a line a direction: its settings |
//! | `stats` | a line a direction: its counters |

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rivulet_private_file::{SocketType, listen_at};

use crate::wire::{DIRECTIONS, Direction, Wire};

/// First token of the connections in the wire's poll set.
pub(crate) const TOKEN_BASE: u64 = 16;

/// Largest number of connections at a time; further ones are closed at once.
const MAX_CLIENTS: usize = 16;

/// Longest request line.
const MAX_LINE: usize = 4096;

/// Timeout of [`request`].
const TIMEOUT: Duration = Duration::from_secs(5);

struct Client {
    stream: UnixStream,
    line: Vec<u8>,
}

/// The listening socket; dropping it removes the socket file.
pub struct ControlServer {
    listener: UnixListener,
    path: PathBuf,
    clients: BTreeMap<u64, Client>,
    next_token: u64,
}

impl ControlServer {
    /// Listens at `path`, for this user and root. Replaces a socket without a listener; any other
    /// file is an error.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let is_socket = path.symlink_metadata().is_ok_and(|m| m.file_type().is_socket());
        if is_socket && UnixStream::connect(path).is_err() {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::from(listen_at(path, SocketType::STREAM)?);
        listener.set_nonblocking(true)?;
        Ok(ControlServer { listener, path: path.into(), clients: BTreeMap::new(), next_token: TOKEN_BASE })
    }

    /// Accepts new connections and returns each with its token for polling.
    pub(crate) fn accept(&mut self) -> Vec<(u64, BorrowedFd<'_>)> {
        let mut new = Vec::new();
        while let Ok((stream, _)) = self.listener.accept() {
            if self.clients.len() >= MAX_CLIENTS || stream.set_nonblocking(true).is_err() {
                continue;
            }
            self.clients.insert(self.next_token, Client { stream, line: Vec::new() });
            new.push(self.next_token);
            self.next_token += 1;
        }
        let clients = &self.clients;
        new.into_iter().filter_map(|t| Some((t, clients.get(&t)?.stream.as_fd()))).collect()
    }

    /// Reads from a connection and answers each complete line. Closes a connection that has ended,
    /// sends too long a line, or does not read its answer.
    pub(crate) fn serve(&mut self, token: u64, wire: &mut Wire) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        if !client.serve(wire) {
            self.clients.remove(&token);
        }
    }
}

impl Client {
    fn serve(&mut self, wire: &mut Wire) -> bool {
        let mut chunk = [0; 1024];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return false,
                Ok(n) => self.line.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
            while let Some(end) = self.line.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.line.drain(..=end).collect();
                let reply = answer(&String::from_utf8_lossy(&line), wire);
                if self.stream.write_all(reply.as_bytes()).is_err() {
                    return false;
                }
            }
            if self.line.len() > MAX_LINE {
                return false;
            }
        }
        true
    }
}

impl AsFd for ControlServer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // The file may already have been removed.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Settings of both directions, one line each.
fn show(wire: &Wire) -> String {
    DIRECTIONS.iter().fold(String::new(), |mut text, d| {
        let _ = writeln!(text, "{d} {}", wire.settings(*d));
        text
    })
}

/// Counters of both directions, one line each, as `key=value`.
pub fn stats(wire: &mut Wire) -> String {
    let drops = wire.receive_drops();
    let mut text = String::new();
    for (d, kernel) in DIRECTIONS.iter().zip(drops) {
        let c = wire.counters(*d);
        let s = c.shaper;
        let _ = writeln!(
            text,
            "{d} offered={} offered_bytes={} delivered={} queue_drops={} flight_drops={} lost={} duplicated={} \
             reordered={} over_threshold={} ce_marked={} refused={} kernel_drops={kernel}",
            s.offered,
            s.offered_bytes,
            s.delivered,
            s.queue_drops,
            s.flight_drops,
            s.lost,
            s.duplicated,
            s.reordered,
            s.marked,
            c.ce_marked,
            c.refused,
        );
    }
    text
}

/// Answers one request line.
fn answer(line: &str, wire: &mut Wire) -> String {
    let line = line.trim();
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    match verb {
        "show" => show(wire) + "ok\n",
        "stats" => stats(wire) + "ok\n",
        "set" => match set(rest, wire) {
            Ok(()) => "ok\n".into(),
            Err(e) => format!("error: {e}\n"),
        },
        _ => format!("error: unknown request {verb:?} (set show stats)\n"),
    }
}

fn set(rest: &str, wire: &mut Wire) -> Result<(), crate::SettingError> {
    let named = DIRECTIONS.iter().find_map(|d| Some((*d, rest.trim_start().strip_prefix(&d.to_string())?)));
    let (directions, text): (&[Direction], &str) = match &named {
        Some((d, text)) => (std::slice::from_ref(d), text),
        None => (&DIRECTIONS, rest),
    };
    let mut changed = Vec::with_capacity(directions.len());
    for d in directions {
        let mut settings = wire.settings(*d).clone();
        settings.apply_all(text)?;
        changed.push((*d, settings));
    }
    for (d, settings) in changed {
        wire.set(d, settings);
    }
    Ok(())
}

/// Sends one request to a running wire and returns the answer without the final `ok`. An `error:`
/// answer becomes an error of kind `InvalidInput`.
pub fn request(path: &Path, line: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("{}\n", line.replace('\n', " ")).as_bytes())?;
    let mut reply = String::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if line == "ok" {
            return Ok(reply);
        }
        if let Some(error) = line.strip_prefix("error: ") {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error.to_string()));
        }
        reply.push_str(&line);
        reply.push('\n');
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn control_socket_is_for_its_owner_alone() {
        let path = std::env::temp_dir().join(format!("rivulet-wire-{}.sock", std::process::id()));
        let server = ControlServer::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        drop(server);
        assert!(!path.exists());
    }
}
