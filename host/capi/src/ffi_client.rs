//! The client functions of `include/rivulet.h`.

use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::ends::{End, add, fail, get};
use crate::ffi::{array, attempt, text};

/// See the header.
///
/// # Safety
/// `address` is a terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_connect(address: *const c_char, port: u16) -> c_int {
    // SAFETY: the caller's promise.
    let address = attempt!(unsafe { text(address) });
    let Ok(ip) = address.parse::<IpAddr>() else { return fail(libc::EINVAL, &"not an address") };
    // SAFETY: a plain system call; the descriptor only represents the connection.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return fail(libc::EMFILE, &std::io::Error::last_os_error());
    }
    // SAFETY: it was just opened, and this is its only owner.
    let fd = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
    match Client::connect(SocketAddr::new(ip, port)) {
        Ok(client) => add(fd, End::Client(Arc::new(client))),
        Err(e) => fail(libc::EHOSTUNREACH, &e),
    }
}

fn client(fd: c_int) -> Result<Arc<Client>, i32> {
    match get(fd) {
        Some(End::Client(client)) => Ok(client),
        _ => Err(fail(libc::EBADF, &"not a descriptor of msk_connect")),
    }
}

/// See the header. The paper reserves a region by `reserve`; here every region has 2^48 bytes.
///
/// # Safety
/// `request` is null or points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_request(
    fd: c_int,
    request: *const c_char,
    length: c_int,
    _reserve: c_int,
) -> c_int {
    let client = attempt!(client(fd));
    // SAFETY: the caller's promise.
    let request = attempt!(unsafe { array(request.cast::<u8>(), length) });
    match client.request(request) {
        Ok(id) => id.into(),
        Err(e) if e.kind() == std::io::ErrorKind::QuotaExceeded => fail(libc::EDQUOT, &e),
        Err(e) => fail(e.raw_os_error().unwrap_or(libc::EIO), &e),
    }
}

/// See the header.
///
/// # Safety
/// `data` is null or points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_write(fd: c_int, data: *const c_char, length: c_int) -> c_int {
    let client = attempt!(client(fd));
    // SAFETY: the caller's promise.
    let data = attempt!(unsafe { array(data.cast::<u8>(), length) });
    match client.write(data) {
        Ok(()) => data.len() as c_int,
        Err(e) => fail(e.raw_os_error().unwrap_or(libc::EPIPE), &e),
    }
}

/// See the header.
///
/// # Safety
/// `data` is null or has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_read(
    fd: c_int,
    stream: c_int,
    data: *mut c_void,
    length: usize,
    timeout_ms: c_int,
) -> isize {
    let client = match client(fd) {
        Ok(client) => client,
        Err(code) => return code as isize,
    };
    if length == 0 {
        return 0;
    }
    // 0 would mean the end of the stream.
    if data.is_null() || length > isize::MAX as usize {
        return fail(libc::EINVAL, &"the buffer is null or too large") as isize;
    }
    let Ok(stream) = u16::try_from(stream) else {
        return fail(libc::EINVAL, &"not a stream number of msk_request") as isize;
    };
    // SAFETY: the caller's promise.
    let into = unsafe { std::slice::from_raw_parts_mut(data.cast::<u8>(), length) };
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    match client.read(stream, into, timeout) {
        Ok(n) => n as isize,
        Err(e) if e.kind() == std::io::ErrorKind::TimedOut => fail(libc::EAGAIN, &"nothing yet") as isize,
        Err(e) => fail(e.raw_os_error().unwrap_or(libc::ECONNRESET), &e) as isize,
    }
}
