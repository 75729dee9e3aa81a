//! What every process of ours that runs for long does.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// systemd waits for a process to serve, this long at most: a controller may be away for longer than a start may take.
pub(crate) const STARTING: Duration = Duration::from_secs(20);

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

/// Tells systemd that this process serves (`Type=notify`, sd_notify(3)). Where nobody wants to know, nothing happens.
pub(crate) fn tell_ready() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let told = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &to));
    if let Err(e) = told {
        tracing::warn!("systemd cannot be told that this process serves: {e}");
    }
}

/// The packet path comes before other work of this machine: a replica that waits for a processor for longer
/// than the liveness bound is taken for dead. Without the right to it, it competes like everybody.
pub(crate) fn prefer_this_thread() {
    if rustix::process::setpriority_process(None, -10).is_err() {
        tracing::debug!("no higher priority for the packet path");
    }
}
