//! Copies bytes between a program's end of the socket pair and its connection.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rivulet_client::Stream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::account::{Counted, Failures};

const BLOCK: usize = 256 << 10;
const STACK_SIZE: usize = 512 << 10;
/// Time without data from the program after which the SYN is sent without data, for protocols in
/// which the server sends first.
const SILENCE: Duration = Duration::from_millis(5);
/// Time without progress for which the data that a program wrote before it closed is still
/// delivered.
const LINGER: Duration = Duration::from_secs(60);

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

/// Copies from the program to the server.
fn up(stream: &Stream, end: &UnixStream, counted: &Counted) {
    if !readable_within(end, SILENCE) {
        stream.open_silently();
    }
    let mut block = vec![0; BLOCK];
    loop {
        match (&*end).read(&mut block) {
            Ok(0) => break,
            Ok(n) => {
                counted.moved();
                if (&*stream).write_all(&block[..n]).is_err() {
                    // The thread of the other direction records the error.
                    break;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    // If a program closes right after the last answer, its close need not be acknowledged.
    let enough = usize::from(is_closed(end));
    if enough == 0 {
        // The program closed without sending any data.
        stream.open_silently();
    }
    stream.finish();
    wait_closed(end);
    if stream.unconsumed() > enough {
        linger(stream, counted);
    }
    stream.abort();
}

/// Delivers written data after the program has closed, as TCP does.
fn linger(stream: &Stream, counted: &Counted) {
    let mut left = stream.unconsumed();
    let mut moved = Instant::now();
    while left > 0 && moved.elapsed() < LINGER {
        if stream.settle(Duration::from_secs(1)).unwrap_or(true) {
            return;
        }
        let now = stream.unconsumed();
        if now != left {
            counted.moved();
            (left, moved) = (now, Instant::now());
        }
    }
}

/// Copies from the server to the program.
fn down(stream: &Stream, end: &UnixStream, counted: &Counted, failures: &Failures) {
    let mut block = vec![0; BLOCK];
    let mut wanted = true;
    loop {
        match (&*stream).read(&mut block) {
            Ok(0) => break,
            Ok(n) => {
                counted.moved();
                // A program that reads no more (shutdown of this direction, or close) may still
                // send: received data is dropped, and the other direction ends the connection.
                wanted = wanted && (&*end).write_all(&block[..n]).is_ok();
            }
            Err(e) => {
                if e.kind() != io::ErrorKind::ConnectionAborted {
                    tracing::warn!(peer = %stream.peer_addr(), error = %e, "connection");
                    // The failure is recorded before the program sees the end of the stream and
                    // queries the error.
                    failures.note(&e);
                }
                // Nothing reads further data of the program, and its writes must not block forever.
                let _ = end.shutdown(Shutdown::Both);
                return;
            }
        }
    }
    let _ = end.shutdown(Shutdown::Write);
}

fn readable_within(end: &UnixStream, time: Duration) -> bool {
    let time = Timespec { tv_sec: 0, tv_nsec: time.as_nanos() as i64 };
    poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&time)).is_ok_and(|ready| ready > 0)
}

/// Waits until the program has closed its end, not merely shut down its sending direction.
fn wait_closed(end: &UnixStream) {
    while hung_up(end, None) == Err(Errno::INTR) {}
}

/// Whether the program has closed its end.
pub(super) fn is_closed(end: &impl AsFd) -> bool {
    hung_up(end, Some(&Timespec::default())).unwrap_or(true)
}

fn hung_up(end: &impl AsFd, time: Option<&Timespec>) -> Result<bool, Errno> {
    poll(&mut [PollFd::new(end, PollFlags::empty())], time).map(|ready| ready > 0)
}
