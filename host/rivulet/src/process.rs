//! What every long-running process of the `rivulet` command does: signals, descriptors, readiness,
//! priority.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

/// How long a process may take before it reports readiness to systemd, which waits that long: a
/// controller may be unreachable for longer.
pub(crate) const STARTING: Duration = Duration::from_secs(20);

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_signal: libc::c_int) {
    STOP.store(true, Ordering::Release);
}

/// From now on SIGTERM and SIGINT only set the flag that [`stopped`] returns.
pub(crate) fn stop_on_signals() {
    // SAFETY: the handler only stores to an atomic.
    unsafe {
        let handler = on_signal as extern "C" fn(libc::c_int) as usize;
        libc::signal(libc::SIGTERM, handler);
        libc::signal(libc::SIGINT, handler);
    }
}

/// Whether a signal asked the process to end.
pub(crate) fn stopped() -> bool {
    STOP.load(Ordering::Acquire)
}

/// Raises the limit of open files as far as permitted: each client and each connection needs up to
/// two descriptors, and thousands may come.
pub(crate) fn raise_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::debug!("no more descriptors: {e}");
    }
}

/// Keeps traffic secrets out of core dumps, and out of reach of other processes of the same user.
pub(crate) fn hide_memory() {
    if let Err(e) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!("a core dump of this process would have secrets: {e}");
    }
}

/// Reports readiness to systemd (`Type=notify`, sd_notify(3)). Without systemd it does nothing.
pub(crate) fn tell_ready() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let told = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &to));
    if let Err(e) = told {
        tracing::warn!("readiness cannot be reported to systemd: {e}");
    }
}

/// Gives the packet path priority over other work of this machine: a replica that waits for a
/// processor for longer than the liveness bound is excluded. Without the privilege it competes like
/// any process.
pub(crate) fn prefer_this_thread() {
    if rustix::process::setpriority_process(None, -10).is_err() {
        tracing::debug!("no higher priority for the packet path");
    }
}

/// If this process has real-time scheduling (from its unit file), threads of equal priority
/// alternate every 100 ms. This thread gets a higher priority than the others, because it sends
/// heartbeats while they are busy.
pub(crate) fn before_other_threads() {
    let mut param = libc::sched_param { sched_priority: 0 };
    // SAFETY: a complete sched_param of the calling thread.
    let known = unsafe { libc::sched_getparam(0, &raw mut param) } == 0;
    if !known || param.sched_priority == 0 {
        return;
    }
    param.sched_priority += 1;
    // SAFETY: as above.
    if unsafe { libc::sched_setparam(0, &raw const param) } != 0 {
        let error = std::io::Error::last_os_error();
        tracing::warn!(%error, "heartbeats may wait for other threads: this thread gets no higher priority");
    }
}
