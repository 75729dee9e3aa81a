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
    // SAFETY: plain system calls; 0 means the calling thread.
    let refused = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -10) } != 0;
    if refused {
        tracing::debug!("no higher priority for the packet path");
    }
}

/// Different at every start: heartbeats of a former process are told from ours.
pub(crate) fn incarnation() -> u16 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mixed = (now.as_nanos() as u64 ^ u64::from(std::process::id())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 48) as u16).max(1)
}
