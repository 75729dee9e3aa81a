//! Options of TCP and IP, which a Unix socket lacks. A sample TCP socket decides which options can
//! be set and what they return. Values that the program set are remembered and returned, but have
//! no effect.

use std::collections::VecDeque;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{c_int, c_void, socklen_t};

use crate::bounded_lock::BoundedLock;
use crate::fd::id_of_socket;
use crate::pending::tcp_state;
use crate::real::{real, set_errno};

/// Largest number of remembered options; the oldest are dropped.
const MAX: usize = 4096;
/// Longest remembered value in bytes.
const LONGEST: usize = 16;
/// Answer to `TCP_MAXSEG`: the approximate payload of the stack's segments.
const SEGMENT: c_int = 1400;

struct Entry {
    id: u64,
    level: c_int,
    name: c_int,
    value: Value,
}

#[derive(Clone, Copy)]
struct Value {
    bytes: [u8; LONGEST],
    length: socklen_t,
}

static SET: BoundedLock<VecDeque<Entry>> = BoundedLock::new(VecDeque::new());

/// Socket-level options that must survive `connect`; a Unix socket implements some of them.
const OF_SOCKETS: [c_int; 8] = [
    libc::SO_RCVTIMEO,
    libc::SO_SNDTIMEO,
    libc::SO_RCVLOWAT,
    libc::SO_KEEPALIVE,
    libc::SO_LINGER,
    libc::SO_OOBINLINE,
    libc::SO_PRIORITY,
    libc::SO_REUSEADDR,
];

/// IP and TCP options that programs set before `connect` and may read after it.
const OF_TCP: [(c_int, c_int); 12] = [
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
];

/// Options whose answer would reveal that the descriptor is not a TCP socket.
pub fn suspect(level: c_int, name: c_int) -> bool {
    level != libc::SOL_SOCKET || matches!(name, libc::SO_DOMAIN | libc::SO_PROTOCOL)
}

/// An unconnected TCP socket of the peer's family.
fn sample(peer: &SocketAddr) -> Option<OwnedFd> {
    let family = if peer.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: a plain system call; the result has no other owner.
    unsafe {
        let fd = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

fn read(fd: c_int, level: c_int, name: c_int) -> Option<Value> {
    let mut value = Value { bytes: [0; LONGEST], length: LONGEST as socklen_t };
    // SAFETY: value and length fit together.
    let got = unsafe {
        (real().getsockopt)(fd, level, name, value.bytes.as_mut_ptr().cast(), &raw mut value.length)
    };
    (got == 0).then_some(value)
}

fn write(fd: c_int, level: c_int, name: c_int, value: &Value) -> bool {
    // SAFETY: value and length fit together.
    unsafe { (real().setsockopt)(fd, level, name, value.bytes.as_ptr().cast(), value.length) == 0 }
}

fn remember(id: u64, level: c_int, name: c_int, value: Value) {
    SET.with(|set| {
        set.retain(|e| (e.id, e.level, e.name) != (id, level, name));
        if set.len() == MAX {
            set.pop_front();
        }
        set.push_back(Entry { id, level, name, value });
    });
}

fn remembered(id: u64, level: c_int, name: c_int) -> Option<Value> {
    SET.with(|set| set.iter().find(|e| (e.id, e.level, e.name) == (id, level, name)).map(|e| e.value))
        .flatten()
}

/// getsockopt(2) of a [`suspect`] option on a descriptor of the stack.
///
/// # Safety
/// As getsockopt(2).
pub unsafe fn get(
    fd: c_int,
    peer: &SocketAddr,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let Some(sample) = sample(peer) else { return set_errno(libc::ENOBUFS) };
    if let Some(value) = id_of_socket(fd).and_then(|id| remembered(id, level, name)) {
        write(sample.as_raw_fd(), level, name, &value);
    }
    // SAFETY: the caller's arguments, for another socket.
    let got = unsafe { (real().getsockopt)(sample.as_raw_fd(), level, name, value, len) };
    if got != 0 || level != libc::IPPROTO_TCP {
        return got;
    }
    // SAFETY: the kernel has just written `*len` bytes at `value`.
    unsafe {
        if name == libc::TCP_INFO && *len > 0 {
            value.cast::<u8>().write(tcp_state(fd));
        }
        if name == libc::TCP_MAXSEG && *len as usize >= size_of::<c_int>() {
            value.cast::<c_int>().write_unaligned(SEGMENT);
        }
    }
    got
}

/// setsockopt(2) of a [`suspect`] option on a descriptor of the stack.
///
/// # Safety
/// As setsockopt(2).
pub unsafe fn set(
    fd: c_int,
    peer: &SocketAddr,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let Some(sample) = sample(peer) else { return set_errno(libc::ENOBUFS) };
    // Options that need a kernel connection, such as kernel TLS (`TCP_ULP`), fail here, so that a
    // program does not believe that they are on. SAFETY: the caller's arguments, for another
    // socket.
    let done = unsafe { (real().setsockopt)(sample.as_raw_fd(), level, name, value, len) };
    if done == 0
        && let Some(id) = id_of_socket(fd)
        && let Some(bytes) = usize::try_from(len).ok().filter(|len| *len <= LONGEST && !value.is_null())
    {
        let mut kept = Value { bytes: [0; LONGEST], length: len };
        // SAFETY: the caller's promise: `value` has `len` readable bytes, even if the kernel read
        // fewer.
        unsafe { std::ptr::copy_nonoverlapping(value.cast(), kept.bytes.as_mut_ptr(), bytes) };
        remember(id, level, name, kept);
    }
    done
}

/// Copies the options set on a socket before `connect` to the descriptor that replaces it,
/// connection `id`.
pub fn carry(from: c_int, to: c_int, id: u64, peer: &SocketAddr) {
    for name in OF_SOCKETS {
        if let Some(value) = read(from, libc::SOL_SOCKET, name) {
            write(to, libc::SOL_SOCKET, name, &value);
        }
    }
    let Some(sample) = sample(peer) else { return };
    for (level, name) in OF_TCP {
        let value = match id_of_socket(from) {
            Some(before) => remembered(before, level, name),
            None => read(from, level, name).filter(|value| {
                read(sample.as_raw_fd(), level, name).is_some_and(|usual| usual.bytes != value.bytes)
            }),
        };
        if let Some(value) = value {
            remember(id, level, name, value);
        }
    }
}
