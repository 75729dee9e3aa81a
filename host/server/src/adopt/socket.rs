//! A connection taken over by the kernel's TCP, as an application holds it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rivulet_pktio::repair::{set_timestamp, unacknowledged};
use rivulet_plain::{KERNEL_SPAN, next_kernel_value};
use rustix::net::sockopt::set_socket_linger;

use super::flows::ClosedFlow;

/// Longest timeout of a read or write, because the timestamp clock is not checked meanwhile.
pub const MAX_PATIENCE: Duration = Duration::from_secs(600);
/// The clock restarts in the next slot after half of its range, which leaves the other half for
/// long operations.
const CLOCK_RESTART: Duration = Duration::from_millis(KERNEL_SPAN as u64 / 2);
/// Interval between two checks for unacknowledged data.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The clock of a socket's TSval. It must stay within the range of kernel values, by which echoes
/// are recognised.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    value: u32,
    since: Instant,
}

impl Clock {
    pub fn new(value: u32) -> Clock {
        Clock { value, since: Instant::now() }
    }

    /// The value at which to restart, if it is time for that.
    fn next(&self, now: Instant) -> Option<Clock> {
        let old = now.saturating_duration_since(self.since) >= CLOCK_RESTART;
        old.then(|| Clock { value: next_kernel_value(self.value), since: now })
    }
}

/// A permit for one adopted connection, of a limited number. Dropping it reports the end of the
/// connection.
#[derive(Debug)]
pub(super) struct Permit {
    held: Arc<AtomicUsize>,
    ended: Option<(ClosedFlow, Sender<ClosedFlow>)>,
}

impl Permit {
    /// Takes a permit if fewer than `limit` are in use.
    pub fn take(held: &Arc<AtomicUsize>, limit: usize) -> Option<Permit> {
        let more = |n| (n < limit).then_some(n + 1);
        held.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Permit { held: held.clone(), ended: None })
    }

    /// Sets the message and its channel for the drop.
    pub fn report_close(mut self, ended: (ClosedFlow, Sender<ClosedFlow>)) -> Permit {
        self.ended = Some(ended);
        self
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::AcqRel);
        if let Some((ended, sender)) = self.ended.take() {
            // The send fails if the server was dropped.
            let _ = sender.send(ended);
        }
    }
}

/// A connection that began without state and was taken over by the kernel's TCP. Reads and writes
/// block, a minute at most unless [`set_patience`](Self::set_patience) is called, and are for one
/// thread.
///
/// Dropping it with unacknowledged data resets the connection; [`finish`](Self::finish) waits.
#[derive(Debug)]
pub struct Adopted {
    // Declared first, so that it is closed before the permit is returned.
    stream: TcpStream,
    clock: Option<Clock>,
    peer: SocketAddr,
    _permit: Permit,
}

impl Adopted {
    pub(super) fn new(
        stream: TcpStream,
        clock: Option<Clock>,
        peer: SocketAddr,
        permit: Permit,
    ) -> io::Result<Adopted> {
        stream.set_nodelay(true)?;
        let adopted = Adopted { stream, clock, peer, _permit: permit };
        adopted.set_patience(Duration::from_secs(60))?;
        Ok(adopted)
    }

    /// The client's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// A second handle of the socket, to shut it down ([`TcpStream::shutdown`]) from another
    /// thread.
    ///
    /// # Errors
    /// A system call fails.
    pub fn handle(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }

    /// Sets the timeout of reads and writes, at most [`MAX_PATIENCE`].
    ///
    /// # Errors
    /// A timeout of zero, or the system's.
    pub fn set_patience(&self, longest: Duration) -> io::Result<()> {
        let longest = Some(longest.min(MAX_PATIENCE));
        self.stream.set_read_timeout(longest)?;
        self.stream.set_write_timeout(longest)
    }

    /// Shuts down our direction.
    ///
    /// # Errors
    /// A system call fails.
    pub fn shut(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// Shuts down our direction and waits until the client has acknowledged everything, or until
    /// `goes_on` returns false. It is called fifty times a second with the number of unacknowledged
    /// bytes.
    pub fn finish(mut self, mut goes_on: impl FnMut(u32) -> bool) {
        // Fails if the connection was shut down before.
        let _ = self.shut();
        while let Ok(left) = unacknowledged(&self.stream)
            && left > 0
            && self.restart_clock_if_due().is_ok()
            && goes_on(left)
        {
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Restarts the clock if it is time.
    fn restart_clock_if_due(&mut self) -> io::Result<()> {
        if let Some(next) = self.clock.and_then(|clock| clock.next(Instant::now())) {
            set_timestamp(&self.stream, next.value).map_err(io::Error::other)?;
            self.clock = Some(next);
        }
        Ok(())
    }
}

impl Read for Adopted {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.restart_clock_if_due()?;
        self.stream.read(room)
    }
}

impl Write for Adopted {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.restart_clock_if_due()?;
        self.stream.write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        // Without these checks, the clock of a kernel's retransmissions would leave its range some
        // day.
        if unacknowledged(&self.stream).map_or(true, |bytes| bytes > 0) {
            // Fails if the socket is closed.
            let _ = set_socket_linger(&self.stream, Some(Duration::ZERO));
        }
    }
}

#[cfg(test)]
mod tests {
    use rivulet_plain::{Stamp, kernel_value};

    use super::*;

    #[test]
    fn clock_stays_in_the_kernel_range() {
        let mut clock = Clock::new(kernel_value(0));
        let mut now = clock.since;
        for minute in 0..60 * 24 * 30 {
            now += Duration::from_secs(60);
            // Calls it as rarely as possible: after two waits of maximum length.
            if minute % 30 == 0
                && let Some(next) = clock.next(now)
            {
                clock = next;
            }
            let age = now.duration_since(clock.since).as_millis();
            assert_eq!(Stamp::parse(clock.value.wrapping_add(age as u32)), Stamp::Kernel, "minute {minute}");
        }
    }

    #[test]
    fn untaken_last_answer_is_given_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, peer) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 1 << 16]).is_ok() {}
        stream.set_nonblocking(false).unwrap();
        let held = Arc::new(AtomicUsize::new(0));
        let permit = Permit::take(&held, 1).unwrap();
        let mut lefts = Vec::new();
        Adopted::new(stream, None, peer, permit).unwrap().finish(|left| {
            lefts.push(left);
            lefts.len() < 3
        });
        assert!(lefts.len() == 3 && lefts.iter().all(|left| *left > 0), "{lefts:?}");
        assert_eq!(held.load(Ordering::Relaxed), 0, "its permit is free");
        drop(client);
    }

    #[test]
    fn permits_are_bounded_and_returned() {
        let held = Arc::new(AtomicUsize::new(0));
        let mut permits: Vec<Permit> = (0..4096).map_while(|_| Permit::take(&held, 4096)).collect();
        assert_eq!(permits.len(), 4096);
        assert!(Permit::take(&held, 4096).is_none(), "one too many");
        let (sender, receiver) = std::sync::mpsc::channel();
        let flow = (SocketAddr::new([10, 0, 0, 1].into(), 1), SocketAddr::new([10, 9, 0, 1].into(), 80));
        drop(permits.pop().map(|permit| permit.report_close(((flow, 7), sender))));
        assert_eq!(receiver.try_recv(), Ok((flow, 7)));
        assert!(Permit::take(&held, 4096).is_some());
        drop(permits);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }
}
