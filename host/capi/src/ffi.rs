//! The server functions of `include/rivulet.h`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_server::EventKind;

use crate::answer::Answering;
use crate::ends::{End, Serving, error, fail, get, remove};
use crate::event::{Collector, Event};
use crate::state::Source;

/// As in the header.
const MAX_UCONT: usize = 900;
const MAX_SEND: usize = 900;
const MAX_FILES: usize = 4;
/// Largest number of events that C has not taken; further ones are dropped, as by a full network
/// queue.
const MAX_WAITING: usize = 4096;

/// `tiovec`
#[repr(C)]
pub struct TIoVec {
    base: *const c_void,
    length: usize,
}

/// `fiovec`
#[repr(C)]
pub struct FIoVec {
    path: *const c_char,
    offset: u64,
    length: u64,
}

/// `mskdesc`
#[repr(C)]
pub struct MskDesc {
    msk: *mut Event,
    data: *const c_void,
    length: usize,
}

/// # Safety
/// `text` is null or a NUL-terminated string.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, i32> {
    if text.is_null() {
        return Err(fail(libc::EINVAL, &"the string is null"));
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|e| fail(libc::EINVAL, &e))
}

/// Bytes from C. Fails if there are more than `max`, or if `data` is null and `length` is not 0.
///
/// # Safety
/// `data` is null, or points to `length` bytes if these are at most `max`. `max` is at most `isize::MAX`.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, length: usize, max: usize) -> Result<&'a [u8], i32> {
    match length {
        0 => Ok(&[]),
        // Check the length before making a slice: a wrong length such as -1 must not become one.
        _ if length > max => Err(fail(libc::EMSGSIZE, &format_args!("{length} bytes, {max} are allowed"))),
        _ if data.is_null() => Err(fail(libc::EINVAL, &"data is null")),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) }),
    }
}

/// An array from C. Fails if the count is negative, or if `items` is null and the count is not 0.
///
/// # Safety
/// `items` is null or points to `count` items.
pub(crate) unsafe fn array<'a, T>(items: *const T, count: c_int) -> Result<&'a [T], i32> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Err(_) => Err(fail(libc::EINVAL, &"the count is negative")),
        Ok(_) if items.is_null() => Err(fail(libc::EINVAL, &"the array is null")),
        // SAFETY: the caller's promise.
        Ok(count) => Ok(unsafe { std::slice::from_raw_parts(items, count) }),
    }
}

/// A minisocket that C only reads.
///
/// # Safety
/// `msk` is null or a live minisocket.
unsafe fn event<'a>(msk: *const Event) -> Result<&'a Event, i32> {
    // SAFETY: the caller's promise.
    unsafe { msk.as_ref() }.ok_or_else(|| fail(libc::EINVAL, &"the minisocket is null"))
}

pub(crate) fn server(fd: c_int) -> Result<Arc<Mutex<Serving>>, i32> {
    match get(fd) {
        Some(End::Server(serving)) => Ok(serving),
        _ => Err(fail(libc::EBADF, &"not a descriptor of msk_listen")),
    }
}

/// Takes a minisocket back from C. Fails if it does not belong to this descriptor.
pub(crate) fn take(serving: &mut Serving, msk: *mut Event) -> Result<Box<Event>, i32> {
    match serving.out.iter().position(|out| std::ptr::eq(*out, msk)) {
        Some(i) => {
            serving.out.swap_remove(i);
            // SAFETY: `out` has it, so it is a box that C got and did not return yet.
            Ok(unsafe { Box::from_raw(msk) })
        }
        None => Err(fail(libc::EINVAL, &"not a minisocket of this descriptor, or already answered")),
    }
}

/// The value, or an early return with the error code.
macro_rules! attempt {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(code) => return code.into(),
        }
    };
}

pub(crate) use attempt;

/// See the header.
///
/// # Safety
/// `list` has room for `max` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_events(
    fd: c_int,
    list: *mut *mut Event,
    max: c_int,
    timeout_ms: c_int,
) -> c_int {
    let serving = attempt!(server(fd));
    let mut serving = serving.lock();
    let serving = &mut *serving;
    if list.is_null() || max <= 0 {
        return fail(libc::EINVAL, &"there is no room for events");
    }
    serving.out.retain(|&msk| {
        // SAFETY: a box that C got and did not return yet.
        let kept = unsafe { (*msk).kept };
        if !kept {
            // SAFETY: as above; it leaves the list now.
            drop(unsafe { Box::from_raw(msk) });
        }
        kept
    });
    let until = u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
    while serving.waiting.is_empty() {
        let left = until.map(|at| at.saturating_duration_since(Instant::now()));
        let longest = left.unwrap_or(Duration::from_millis(100)).min(Duration::from_millis(100));
        serving.server.turn(&mut Collector { events: &mut serving.waiting }, longest);
        serving.apply_updates();
        if left.is_some_and(|left| left.is_zero()) {
            break;
        }
    }
    serving.waiting.truncate(MAX_WAITING);
    let count = serving.waiting.len().min(max as usize);
    for (i, event) in serving.waiting.drain(..count).enumerate() {
        let msk = Box::into_raw(event);
        serving.out.push(msk);
        // SAFETY: i is below max.
        unsafe { *list.add(i) = msk };
    }
    // It can fail only for lack of memory, and the next call updates it again.
    let _ = serving.update_readiness();
    count as c_int
}

/// See the header.
///
/// # Safety
/// `msk` is null or a live minisocket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_kind(msk: *const Event) -> c_int {
    // SAFETY: the caller's promise.
    match attempt!(unsafe { event(msk) }).kind {
        EventKind::Open => 1,
        EventKind::Request => 2,
        EventKind::Close => 3,
    }
}

/// See the header.
///
/// # Safety
/// `msk` is null or a live minisocket, the others are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_input(msk: *const Event, length: *mut usize, offset: *mut u64) -> *const c_void {
    // SAFETY: the caller's promise.
    unsafe {
        let event = event(msk).ok();
        if !length.is_null() {
            *length = event.map_or(0, |event| event.input.len());
        }
        if !offset.is_null() {
            *offset = event.map_or(0, |event| event.offset);
        }
        event.map_or(std::ptr::null(), |event| event.input.as_ptr().cast())
    }
}

/// See the header.
///
/// # Safety
/// `msk` is null or a live minisocket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_is_last_input(msk: *const Event) -> c_int {
    // SAFETY: the caller's promise.
    c_int::from(attempt!(unsafe { event(msk) }).last)
}

/// See the header.
///
/// # Safety
/// `msk` is null or a live minisocket, `length` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_ucont(msk: *const Event, length: *mut usize) -> *const c_void {
    // SAFETY: the caller's promise.
    unsafe {
        let user = event(msk).ok().and_then(|event| event.ahead.as_ref()).map(|ahead| &ahead.user);
        if !length.is_null() {
            *length = user.map_or(0, Vec::len);
        }
        user.map_or(std::ptr::null(), |user| user.as_ptr().cast())
    }
}

/// See the header.
///
/// # Safety
/// `msk` is null or a live minisocket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_packets(msk: *const Event) -> c_int {
    // SAFETY: the caller's promise.
    attempt!(unsafe { event(msk) }).packets as c_int
}

/// See the header.
///
/// # Safety
/// `msk` is null or a live minisocket, `address` has room for `*length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_peer(
    msk: *const Event,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
) -> c_int {
    if address.is_null() || length.is_null() {
        return fail(libc::EFAULT, &"there is no room for the address");
    }
    // SAFETY: the caller's promise.
    let peer = attempt!(unsafe { event(msk) }).peer;
    let mut raw = [0u8; 28];
    raw[2..4].copy_from_slice(&peer.port().to_be_bytes());
    let (family, size) = match peer.ip() {
        IpAddr::V4(ip) => {
            raw[4..8].copy_from_slice(&ip.octets());
            (libc::AF_INET, 16)
        }
        IpAddr::V6(ip) => {
            raw[8..24].copy_from_slice(&ip.octets());
            (libc::AF_INET6, 28)
        }
    };
    raw[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
    // SAFETY: the caller's promise; no more than there is room for.
    unsafe {
        let room = (*length as usize).min(size);
        std::ptr::copy_nonoverlapping(raw.as_ptr(), address.cast(), room);
        *length = size as libc::socklen_t;
    }
    0
}

/// Runs `f` on a minisocket that stays with C.
fn with(fd: c_int, msk: *mut Event, f: impl FnOnce(&mut Event) -> c_int) -> c_int {
    let serving = attempt!(server(fd));
    let mut serving = serving.lock();
    let event = attempt!(take(&mut serving, msk));
    let msk = Box::into_raw(event);
    serving.out.push(msk);
    // SAFETY: a box that C holds. The lock excludes other threads in `with` and `take`; the header
    // forbids reading a minisocket in one thread while another changes it.
    f(unsafe { &mut *msk })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn msk_consume(fd: c_int, msk: *mut Event, length: usize) -> c_int {
    with(fd, msk, |event| {
        if length > event.input.len() {
            return fail(libc::EINVAL, &"more than the input's length");
        }
        event.consumed = length;
        0
    })
}

/// See the header.
///
/// # Safety
/// `buf` is null or points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_setucont(
    fd: c_int,
    msk: *mut Event,
    pkt: c_int,
    buf: *const c_char,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let user = attempt!(unsafe { bytes(buf.cast(), length, MAX_UCONT) });
    with(fd, msk, |event| {
        if pkt < 0 || pkt as usize >= event.packets {
            return fail(libc::EINVAL, &"there is no such response packet");
        }
        event.user = user.to_vec();
        event.carrier = pkt as usize;
        0
    })
}

/// Answers with these sources and ends the minisocket.
fn answer(serving: &mut Serving, msk: *mut Event, sources: &[Source]) -> c_int {
    let event = attempt!(take(serving, msk));
    let Some(detached) = &event.detached else { return 0 };
    let mut answering = Answering { event: &event, sources, done: false };
    serving.server.resume(detached, &mut answering);
    let _ = serving.update_readiness();
    if answering.done {
        0
    } else {
        fail(libc::ECANCELED, &"the client abandoned the request, or a key has expired")
    }
}

/// The single source of `msk_send` and its variants.
///
/// # Safety
/// As `bytes`.
unsafe fn inline(data: *const c_void, length: usize, last: bool) -> Result<Vec<Source>, i32> {
    // SAFETY: the caller's promise.
    let data = unsafe { bytes(data, length, MAX_SEND) }?;
    Ok(vec![Source::Inline { data: data.to_vec(), last }])
}

/// See the header.
///
/// # Safety
/// `data` is null or points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_send(fd: c_int, msk: *mut Event, data: *const c_char, length: usize) -> c_int {
    // SAFETY: the caller's promise.
    let sources = attempt!(unsafe { inline(data.cast(), length, false) });
    let serving = attempt!(server(fd));
    answer(&mut serving.lock(), msk, &sources)
}

/// See the header.
///
/// # Safety
/// `data` is null or points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_sendlast(
    fd: c_int,
    msk: *mut Event,
    data: *const c_char,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let sources = attempt!(unsafe { inline(data.cast(), length, true) });
    let serving = attempt!(server(fd));
    answer(&mut serving.lock(), msk, &sources)
}

/// See the header.
///
/// # Safety
/// `pieces` is null or points to `count` pieces, each as long as its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_sendv(fd: c_int, msk: *mut Event, pieces: *const TIoVec, count: c_int) -> c_int {
    let mut data = Vec::new();
    // SAFETY: the caller's promise.
    for piece in attempt!(unsafe { array(pieces, count) }) {
        // SAFETY: as above.
        data.extend_from_slice(attempt!(unsafe { bytes(piece.base, piece.length, MAX_SEND - data.len()) }));
    }
    let sources = [Source::Inline { data, last: false }];
    let serving = attempt!(server(fd));
    answer(&mut serving.lock(), msk, &sources)
}

/// See the header.
///
/// # Safety
/// `pieces` is null or points to `count` pieces, each with a terminated path or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_sendfilev(
    fd: c_int,
    msk: *mut Event,
    pieces: *const FIoVec,
    count: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let pieces = attempt!(unsafe { array(pieces, count) });
    if pieces.len() > MAX_FILES {
        return fail(libc::EMSGSIZE, &"at most 4 pieces are allowed");
    }
    let mut sources = Vec::new();
    for piece in pieces {
        // SAFETY: as above.
        let path = attempt!(unsafe { text(piece.path) });
        if path.len() > 200 {
            return fail(libc::ENAMETOOLONG, &"the path is longer than 200 bytes");
        }
        match std::fs::metadata(path) {
            Ok(meta) if piece.offset.checked_add(piece.length).is_some_and(|end| end <= meta.len()) => {}
            Ok(_) => return fail(libc::EINVAL, &"the piece extends beyond the end of the file"),
            Err(e) => return fail(e.raw_os_error().unwrap_or(libc::EIO), &e),
        }
        sources.push(Source::File { offset: piece.offset, length: piece.length, path: path.to_owned() });
    }
    let serving = attempt!(server(fd));
    answer(&mut serving.lock(), msk, &sources)
}

/// See the header.
///
/// # Safety
/// `answers` is null or points to `count` answers, each with as many bytes of data as its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_sendbulk(fd: c_int, answers: *const MskDesc, count: c_int) -> c_int {
    let serving = attempt!(server(fd));
    let mut serving = serving.lock();
    let mut sent = 0;
    // SAFETY: the caller's promise.
    for one in attempt!(unsafe { array(answers, count) }) {
        // SAFETY: as above.
        let Ok(sources) = (unsafe { inline(one.data, one.length, false) }) else { continue };
        sent += c_int::from(answer(&mut serving, one.msk, &sources) == 0);
    }
    sent
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn msk_drop(fd: c_int, msk: *mut Event) -> c_int {
    let serving = attempt!(server(fd));
    drop(attempt!(take(&mut serving.lock(), msk)));
    0
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn msk_detach(fd: c_int, msk: *mut Event) -> c_int {
    with(fd, msk, |event| {
        event.kept = true;
        0
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn msk_close(fd: c_int) -> c_int {
    match remove(fd) {
        Some(End::Server(serving)) => {
            for msk in serving.lock().out.drain(..) {
                // SAFETY: a box that C got and did not return yet.
                drop(unsafe { Box::from_raw(msk) });
            }
            0
        }
        Some(End::Client(_)) => 0,
        None => fail(libc::EBADF, &"not a descriptor of this library"),
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn msk_error() -> *const c_char {
    error()
}
