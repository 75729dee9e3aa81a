//! What every process of ours that runs for long does.

use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_signal: libc::c_int) {
    STOP.store(true, Ordering::Release);
}

/// SIGTERM and SIGINT are noted from now on, for [`stopped`].
pub(crate) fn stop_on_signals() {
    // SAFETY: the handler only stores to an atomic.
    unsafe {
        let handler = on_signal as extern "C" fn(libc::c_int) as usize;
        libc::signal(libc::SIGTERM, handler);
        libc::signal(libc::SIGINT, handler);
    }
}

/// True once a signal said so.
pub(crate) fn stopped() -> bool {
    STOP.load(Ordering::Acquire)
}

/// The packet path comes before other work of this machine: a replica that waits for a processor for longer
/// than the liveness bound is taken for dead. Without the right to it, it competes like everybody.
pub(crate) fn prefer_this_thread() {
    if rustix::process::setpriority_process(None, -10).is_err() {
        tracing::debug!("no higher priority for the packet path");
    }
}
