//! Signals when events arrive (O_ASYNC): the kernel sends none for a ring, so a thread waits for them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr;
use std::thread::{Builder, JoinHandle};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

const RING: u64 = 0;
const STOP: u64 = 1;
/// It calls epoll and kill.
const STACK: usize = 64 << 10;

/// Sends a signal to the process when events arrive in a ring that had none, until it is dropped.
#[derive(Debug)]
pub(crate) struct Sigio {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Sigio {
    /// # Errors
    /// It is no signal; the system's.
    pub fn start(ring: BorrowedFd<'_>, signal: libc::c_int) -> io::Result<Sigio> {
        // No real one of the system's library's own either: those lie between.
        if !(1..32).contains(&signal) && !(libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&signal) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        // Of each arrival it is told once, whether anybody has read the event or not.
        epoll::add(&epoll, ring, EventData::new_u64(RING), EventFlags::IN | EventFlags::ET)?;
        epoll::add(&epoll, &stop, EventData::new_u64(STOP), EventFlags::IN)?;
        // The program's handlers run in its own threads.
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
            // SAFETY: it has no preconditions; which handler runs is the program's choice.
            unsafe { libc::kill(libc::getpid(), signal) };
        }
    }
}

/// Blocks all signals in this thread, and those that it makes; what was blocked before.
fn block() -> io::Result<libc::sigset_t> {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the first call fills the set, the second the other one.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        match libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) {
            0 => Ok(before.assume_init()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

fn restore(before: &libc::sigset_t) {
    // SAFETY: a set that the system made.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const *before, ptr::null_mut()) };
}
