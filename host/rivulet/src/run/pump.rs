//! Moves octets between a program's end of the pair and its connection.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rivulet_client::Stream;

use super::opening::{Counted, Failures};

const BLOCK: usize = 256 << 10;
const STACK_SIZE: usize = 512 << 10;
/// How long the program may stay silent before the SYN leaves without data, as for protocols in which the
/// server speaks first.
const SILENCE: Duration = Duration::from_millis(5);

/// Starts both directions; the connection is closed when the program has closed its end.
pub(super) fn start(stream: Stream, end: UnixStream, counted: Counted, failures: Failures) {
    let stream = Arc::new(stream);
    let counted = Arc::new(counted);
    let Ok(upward) = end.try_clone() else { return };
    let (of_up, of_down) = (stream.clone(), stream);
    let (count_up, count_down) = (counted.clone(), counted);
    let spawn = |name: &str, f: Box<dyn FnOnce() + Send>| {
        if let Err(e) = std::thread::Builder::new().name(name.into()).stack_size(STACK_SIZE).spawn(f) {
            tracing::warn!(error = %e, "no thread for a connection");
        }
    };
    spawn("up", Box::new(move || up(&of_up, &upward, &count_up)));
    spawn("down", Box::new(move || down(&of_down, &end, &count_down, &failures)));
}

/// From the program to the server.
fn up(stream: &Stream, end: &UnixStream, counted: &Counted) {
    if !readable_within(end, SILENCE) {
        stream.open_silently();
    }
    let mut block = vec![0; BLOCK];
    loop {
        match (&*end).read(&mut block) {
            Ok(0) => break,
            Ok(n) => {
                counted.0.moved();
                if (&*stream).write_all(&block[..n]).is_err() {
                    // The other direction says why.
                    break;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    stream.finish();
    wait_closed(end);
    stream.abort();
}

/// From the server to the program.
fn down(stream: &Stream, end: &UnixStream, counted: &Counted, failures: &Failures) {
    let mut block = vec![0; BLOCK];
    loop {
        match (&*stream).read(&mut block) {
            Ok(0) => break,
            Ok(n) => {
                counted.0.moved();
                if (&*end).write_all(&block[..n]).is_err() {
                    // The program has closed.
                    stream.abort();
                    break;
                }
            }
            Err(e) => {
                if e.kind() != io::ErrorKind::ConnectionAborted {
                    tracing::warn!(peer = %stream.peer_addr(), error = %e, "connection");
                    // Noted before the program sees the end, and asks.
                    failures.note(&e);
                }
                // Nobody takes what the program still writes: that must not wait for ever.
                let _ = end.shutdown(Shutdown::Both);
                return;
            }
        }
    }
    let _ = end.shutdown(Shutdown::Write);
}

fn readable_within(end: &UnixStream, time: Duration) -> bool {
    let mut entry = libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, as the count says.
    unsafe { libc::poll(&raw mut entry, 1, time.as_millis() as i32) > 0 }
}

/// Waits until the program has closed its end, not merely finished writing.
fn wait_closed(end: &UnixStream) {
    loop {
        let mut entry = libc::pollfd { fd: end.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one entry, as the count says.
        let got = unsafe { libc::poll(&raw mut entry, 1, -1) };
        if got > 0 || got < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}
