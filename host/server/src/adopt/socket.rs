//! A connection that the kernel's TCP has from now on, as an application holds it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rivulet_pktio::repair::{set_timestamp, unacknowledged};
use rivulet_plain::{KERNEL_SPAN, next_kernel_value};
use rustix::net::sockopt::set_socket_linger;

use super::flows::Ended;

/// The longest time that reading or writing waits: meanwhile nobody looks at the clock.
pub const MAX_PATIENCE: Duration = Duration::from_secs(600);
/// The clock begins anew in the next slot after half of what it has, so that the other half is left for what takes long.
const ANEW: Duration = Duration::from_millis(KERNEL_SPAN as u64 / 2);
/// Between two looks at what is not acknowledged.
const LOOK: Duration = Duration::from_millis(20);

/// The clock of a socket's TSval, which must not leave its kind: a packet that echoes it then says that it is the kernel's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    value: u32,
    since: Instant,
}

impl Clock {
    pub fn new(value: u32) -> Clock {
        Clock { value, since: Instant::now() }
    }

    /// The value from which it is to go on, if it is time for that.
    fn next(&self, now: Instant) -> Option<Clock> {
        let old = now.saturating_duration_since(self.since) >= ANEW;
        old.then(|| Clock { value: next_kernel_value(self.value), since: now })
    }
}

/// A place among those that may be held at a time; who lets it go says so.
#[derive(Debug)]
pub(super) struct Place {
    held: Arc<AtomicUsize>,
    ended: Option<(Ended, Sender<Ended>)>,
}

impl Place {
    /// Takes one, if fewer than `limit` are held.
    pub fn take(held: &Arc<AtomicUsize>, limit: usize) -> Option<Place> {
        let more = |n| (n < limit).then_some(n + 1);
        held.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Place { held: held.clone(), ended: None })
    }

    /// What is said, and to whom, when it is let go.
    pub fn tells(mut self, ended: (Ended, Sender<Ended>)) -> Place {
        self.ended = Some(ended);
        self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::AcqRel);
        if let Some((ended, tell)) = self.ended.take() {
            // A server that is gone has nothing to forget.
            let _ = tell.send(ended);
        }
    }
}

/// A connection that was begun without state and that the kernel's TCP has taken over. Reading and writing wait, a minute at most
/// unless [`set_patience`](Self::set_patience) is called, and are for one thread.
///
/// Who drops it while something is unacknowledged resets the connection; [`finish`](Self::finish) waits.
#[derive(Debug)]
pub struct Adopted {
    // Closed before its place is let go.
    stream: TcpStream,
    clock: Option<Clock>,
    peer: SocketAddr,
    _place: Place,
}

impl Adopted {
    pub(super) fn new(
        stream: TcpStream,
        clock: Option<Clock>,
        peer: SocketAddr,
        place: Place,
    ) -> io::Result<Adopted> {
        stream.set_nodelay(true)?;
        let adopted = Adopted { stream, clock, peer, _place: place };
        adopted.set_patience(Duration::from_secs(60))?;
        Ok(adopted)
    }

    /// The client's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Another handle of the socket, to end it by ([`TcpStream::shutdown`]) from another thread.
    ///
    /// # Errors
    /// The system's.
    pub fn handle(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }

    /// How long reading and writing wait, at most [`MAX_PATIENCE`].
    ///
    /// # Errors
    /// A time of zero, or the system's.
    pub fn set_patience(&self, longest: Duration) -> io::Result<()> {
        let longest = Some(longest.min(MAX_PATIENCE));
        self.stream.set_read_timeout(longest)?;
        self.stream.set_write_timeout(longest)
    }

    /// Ends our direction.
    ///
    /// # Errors
    /// The system's.
    pub fn shut(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// Ends our direction and waits until the client has acknowledged everything, or `goes_on`, which is given the number of bytes that it
    /// has not, returns false. It is called fifty times a second.
    pub fn finish(mut self, mut goes_on: impl FnMut(u32) -> bool) {
        // What has ended already is not ended again.
        let _ = self.shut();
        while let Ok(left) = unacknowledged(&self.stream)
            && left > 0
            && self.look().is_ok()
            && goes_on(left)
        {
            std::thread::sleep(LOOK);
        }
    }

    /// Has the clock begin anew, if it is time for that.
    fn look(&mut self) -> io::Result<()> {
        if let Some(next) = self.clock.and_then(|clock| clock.next(Instant::now())) {
            set_timestamp(&self.stream, next.value).map_err(io::Error::other)?;
            self.clock = Some(next);
        }
        Ok(())
    }
}

impl Read for Adopted {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.look()?;
        self.stream.read(room)
    }
}

impl Write for Adopted {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.look()?;
        self.stream.write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        // What the kernel sends when nobody looks at the clock any more has left its kind one day.
        if unacknowledged(&self.stream).map_or(true, |octets| octets > 0) {
            // A socket that refuses this is gone.
            let _ = set_socket_linger(&self.stream, Some(Duration::ZERO));
        }
    }
}

#[cfg(test)]
mod tests {
    use rivulet_plain::{Stamp, kernel_value};

    use super::*;

    #[test]
    fn a_clock_never_leaves_its_kind() {
        let mut clock = Clock::new(kernel_value(0));
        let mut now = clock.since;
        for minute in 0..60 * 24 * 30 {
            now += Duration::from_secs(60);
            // As late as somebody who waited as long as he may, and then for long.
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
        let place = Place::take(&held, 1).unwrap();
        let mut lefts = Vec::new();
        Adopted::new(stream, None, peer, place).unwrap().finish(|left| {
            lefts.push(left);
            lefts.len() < 3
        });
        assert!(lefts.len() == 3 && lefts.iter().all(|left| *left > 0), "{lefts:?}");
        assert_eq!(held.load(Ordering::Relaxed), 0, "its place is free");
        drop(client);
    }

    #[test]
    fn places_are_bounded_and_come_back() {
        let held = Arc::new(AtomicUsize::new(0));
        let mut places: Vec<Place> = (0..4096).map_while(|_| Place::take(&held, 4096)).collect();
        assert_eq!(places.len(), 4096);
        assert!(Place::take(&held, 4096).is_none(), "one too many");
        let (tell, told) = std::sync::mpsc::channel();
        let flow = (SocketAddr::new([10, 0, 0, 1].into(), 1), SocketAddr::new([10, 9, 0, 1].into(), 80));
        drop(places.pop().map(|place| place.tells(((flow, 7), tell))));
        assert_eq!(told.try_recv(), Ok((flow, 7)));
        assert!(Place::take(&held, 4096).is_some());
        drop(places);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }
}
