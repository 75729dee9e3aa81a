//! The functions of `include/rivulet.h` that move events between servers.

use std::ffi::{c_int, c_void};

use crate::ends::{Serving, fail};
use crate::event::{Collector, Event};
use crate::ffi::{array, attempt, bytes, server, take};

/// `extract_mskdesc_in`
#[repr(C)]
pub struct ExtractIn {
    msk: *mut Event,
}

/// `msk_collection`
#[repr(C)]
pub struct Collection {
    data: *mut c_void,
    length: usize,
}

/// Takes minisockets back from C: all of them, or none if one cannot be taken.
#[expect(clippy::vec_box, reason = "they go back to C as pointers if one cannot be taken")]
fn take_all(serving: &mut Serving, input: &[ExtractIn]) -> Result<Vec<Box<Event>>, i32> {
    let mut taken = Vec::new();
    for one in input {
        match take(serving, one.msk) {
            Ok(event) => taken.push(event),
            Err(code) => {
                serving.out.extend(taken.into_iter().map(Box::into_raw));
                return Err(code);
            }
        }
    }
    Ok(taken)
}

/// See the header.
///
/// # Safety
/// `input` is null or points to `inlen` entries. `outlen` is null or writable, `out` null or with room for `*outlen`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_extract_events(
    fd: c_int,
    input: *const ExtractIn,
    inlen: c_int,
    out: *mut Collection,
    outlen: *mut c_int,
) -> c_int {
    if outlen.is_null() {
        return fail(libc::EFAULT, &"there is no room for events");
    }
    // SAFETY: the caller's promise. Until events are extracted, and after each error below, the
    // count is 0.
    let room = unsafe { outlen.replace(0) }.max(0);
    if out.is_null() {
        return fail(libc::EFAULT, &"there is no room for events");
    }
    let serving = attempt!(server(fd));
    let mut serving = serving.lock();
    // SAFETY: the caller's promise: there are at least so many entries.
    let input = attempt!(unsafe { array(input, inlen.min(room)) });
    let mut count = 0;
    for event in attempt!(take_all(&mut serving, input)) {
        let Some(sealed) = event.detached.as_ref().and_then(|d| serving.server.extract(d)) else { continue };
        let sealed = Box::leak(sealed.into_boxed_slice());
        let collection = Collection { data: sealed.as_mut_ptr().cast(), length: sealed.len() };
        // SAFETY: `count` is below the number of entries, and so within the room.
        unsafe { out.add(count as usize).write(collection) };
        count += 1;
    }
    // SAFETY: the caller's promise.
    unsafe { *outlen = count };
    0
}

/// See the header.
///
/// # Safety
/// `events` is null or points to `count` collections, each with as many bytes as its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_install_events(fd: c_int, events: *const Collection, count: c_int) -> c_int {
    let serving = attempt!(server(fd));
    let mut serving = serving.lock();
    let serving = &mut *serving;
    let mut installed = 0;
    // SAFETY: the caller's promise.
    for one in attempt!(unsafe { array(events, count) }) {
        // SAFETY: as above.
        let Ok(sealed) = (unsafe { bytes(one.data, one.length, isize::MAX as usize) }) else { continue };
        if let Ok(detached) = serving.server.install(sealed) {
            serving.server.resume(&detached, &mut Collector { events: &mut serving.waiting });
            installed += 1;
        }
    }
    let _ = serving.update_readiness();
    installed
}

/// See the header.
///
/// # Safety
/// `events` is null or points to `count` collections made by `msk_extract_events` and not freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_free_collection(events: *mut Collection, count: c_int) {
    if events.is_null() {
        return;
    }
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's promise: a leaked box of this length.
        unsafe {
            let one = &mut *events.add(i);
            if !one.data.is_null() {
                let slice = std::ptr::slice_from_raw_parts_mut(one.data.cast::<u8>(), one.length);
                drop(Box::from_raw(slice));
            }
            (one.data, one.length) = (std::ptr::null_mut(), 0);
        }
    }
}
