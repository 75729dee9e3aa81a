//! Reads of a download: how long each waits, and what ends it.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use super::args::GetArgs;
use crate::process::stopped;

/// Interval at which a wait for data looks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// Reads until a time.
pub(super) type ReadUntil<'a> = dyn Fn(&mut [u8], Instant) -> io::Result<usize> + 'a;

/// Reads a stream with a limit to each wait, and ends on a signal if the download can be suspended.
pub(super) struct Patient<'a> {
    read: &'a ReadUntil<'a>,
    /// Longest wait until the server has answered.
    pub wait: Duration,
    /// Whether it has. Bytes alone do not show it: a resumed connection has those that had come before.
    pub has_answered: &'a dyn Fn() -> bool,
    /// Longest wait for further ones.
    pub stall: Duration,
    /// Signals end a read, with `Interrupted`.
    suspends: bool,
}

impl<'a> Patient<'a> {
    pub fn new(read: &'a ReadUntil<'a>, args: &GetArgs) -> Patient<'a> {
        let stall = Duration::from_secs(args.stall_timeout);
        Patient { read, wait: stall, has_answered: &|| true, stall, suspends: args.suspend.is_some() }
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let end = Instant::now() + self.wait;
        loop {
            if self.suspends && stopped() {
                let text = "interrupted before the response began, so there is nothing to suspend";
                return Err(io::Error::new(io::ErrorKind::Interrupted, text));
            }
            let now = Instant::now();
            let until = if self.suspends { end.min(now + SIGNAL_INTERVAL) } else { end };
            match (self.read)(into, until) {
                Err(e) if e.kind() == io::ErrorKind::TimedOut && until < end => {}
                Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                    let text = format!("nothing came for {} s", self.wait.as_secs());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                result => {
                    if (self.has_answered)() {
                        self.wait = self.stall;
                    }
                    return result;
                }
            }
        }
    }
}
