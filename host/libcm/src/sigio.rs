//! Signals when events arrive (O_ASYNC). The kernel sends none for a ring, so a thread waits for
//! them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr;
use std::thread::{Builder, JoinHandle};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

const RING: u64 = 0;
const STOP: u64 = 1;
/// The thread only calls epoll and kill.
const STACK: usize = 64 << 10;

/// Sends a signal to the process whenever events arrive in a ring, until it is dropped.
#[derive(Debug)]
pub(crate) struct Sigio {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Sigio {
    /// # Errors
    /// The number is no valid signal; the system's error.
    pub fn start(ring: BorrowedFd<'_>, signal: libc::c_int) -> io::Result<Sigio> {
        // Excludes the real-time signals that the C library reserves, between 32 and SIGRTMIN.
        if !(1..32).contains(&signal) && !(libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&signal) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        // Edge-triggered: one wake-up for each arrival, even while events are unread.
        epoll::add(&epoll, ring, EventData::new_u64(RING), EventFlags::IN | EventFlags::ET)?;
        epoll::add(&epoll, &stop, EventData::new_u64(STOP), EventFlags::IN)?;
        // Block all signals in the new thread, so that the program's handlers run in the program's
        // threads.
        let before = block()?;
        let thread = Builder::new().name("sigio".into()).stack_size(STACK).spawn(move || run(&epoll, signal));
        restore(&before);
        Ok(Sigio { stop, thread: Some(thread?) })
    }
}

impl Drop for Sigio {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(epoll: &OwnedFd, signal: libc::c_int) {
    let mut events = Vec::with_capacity(2);
    loop {
        events.clear();
        match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        if events.iter().any(|event| event.data.u64() == STOP) {
            return;
        }
        if !events.is_empty() {
            // SAFETY: no preconditions; the program chose the handler.
            unsafe { libc::kill(libc::getpid(), signal) };
        }
    }
}

/// Blocks all signals in this thread, for the threads that it starts. Returns the previous mask.
fn block() -> io::Result<libc::sigset_t> {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the first call fills `all`, the second one fills `before`.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        match libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) {
            0 => Ok(before.assume_init()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

fn restore(before: &libc::sigset_t) {
    // SAFETY: `before` is a mask that the system returned.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const *before, ptr::null_mut()) };
}
