//! Waits for descriptors or a point in time, with microsecond precision.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

const EVENTS: usize = 64;
const NS_PER_S: u64 = 1_000_000_000;

/// Nanoseconds of the monotonic clock.
#[must_use]
pub fn now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a writable timespec; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * NS_PER_S + t.tv_nsec as u64
}

/// Makes timers of the calling thread precise; by default they may fire up to 50 µs late.
pub fn precise_timers() {
    // SAFETY: plain system call on the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Gives the calling thread real-time priority (`SCHED_FIFO`, the lowest of that class).
pub fn realtime() -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: a whole sched_param for the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sleeps until a time of [`now`].
pub fn sleep_until(at: u64) {
    let t = libc::timespec { tv_sec: (at / NS_PER_S) as i64, tv_nsec: (at % NS_PER_S) as i64 };
    // An interruption ends the sleep early; callers must allow for that.
    // SAFETY: `t` is a valid absolute time; no remainder is requested.
    unsafe {
        libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const t, std::ptr::null_mut())
    };
}

/// Creates a descriptor that is readable when one of the signals arrives. It blocks these signals
/// in this thread and in threads that it starts later.
pub fn signal_fd(signals: &[libc::c_int]) -> io::Result<OwnedFd> {
    // SAFETY: all zero is a sigset_t that sigemptyset may initialise.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable; sigaddset rejects invalid numbers.
    unsafe {
        libc::sigemptyset(&raw mut set);
        for s in signals {
            libc::sigaddset(&raw mut set, *s);
        }
    }
    // SAFETY: `set` is initialised; the old mask is not requested.
    let rc = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    if rc != 0 {
        return Err(io::Error::from_raw_os_error(rc));
    }
    // SAFETY: as above.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, so this is the only owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Readiness of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The token given with the descriptor.
    pub token: u64,
    /// Ready to read, including an error that reading returns.
    pub readable: bool,
    /// Ready to write.
    pub writable: bool,
}

/// A set of descriptors to wait on (epoll, level-triggered).
pub struct Poller {
    fd: OwnedFd,
    raw: Box<[libc::epoll_event; EVENTS]>,
    ready: usize,
}

impl Poller {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        // SAFETY: plain system call.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, so this is the only owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let none = libc::epoll_event { events: 0, u64: 0 };
        Ok(Poller { fd, raw: Box::new([none; EVENTS]), ready: 0 })
    }

    fn control(&self, op: libc::c_int, fd: BorrowedFd<'_>, token: u64, write: bool) -> io::Result<()> {
        let events = libc::EPOLLIN | if write { libc::EPOLLOUT } else { 0 };
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: both descriptors are open, `event` is whole.
        if unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd.as_raw_fd(), &raw mut event) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Adds a descriptor for reading, and with `write` also for writing.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, write)
    }

    /// Switches waiting for writability on or off.
    pub fn modify(&self, fd: BorrowedFd<'_>, token: u64, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, write)
    }

    /// Removes a descriptor. Closing it has the same effect, unless it was duplicated.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, false)
    }

    /// Waits for an event or the timeout; without a timeout indefinitely. An interruption counts as
    /// a wait without events.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let time = timeout.map(|t| libc::timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        self.ready = 0;
        // SAFETY: the array holds EVENTS events; the time is null or lives through the call; no signal
        // mask is given.
        let n = unsafe {
            libc::epoll_pwait2(
                self.fd.as_raw_fd(),
                self.raw.as_mut_ptr(),
                EVENTS as i32,
                time,
                std::ptr::null(),
            )
        };
        if n < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        self.ready = n as usize;
        Ok(())
    }

    /// The events of the last wait.
    pub fn events(&self) -> impl Iterator<Item = Event> + '_ {
        let errors = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        self.raw[..self.ready].iter().map(move |e| Event {
            token: e.u64,
            readable: e.events & (libc::EPOLLIN as u32 | errors) != 0,
            writable: e.events & libc::EPOLLOUT as u32 != 0,
        })
    }
}
