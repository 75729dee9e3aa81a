//! The functions of `include/rivulet.h` that move events between servers.

use std::ffi::{c_int, c_void};

use crate::ends::fail;
use crate::event::{Collector, Event};
use crate::ffi::{attempt, octets, server, take};

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

/// See the header.
///
/// # Safety
/// `input` points to `inlen` entries, `out` has room for `*outlen`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_extract_events(
    fd: c_int,
    input: *const ExtractIn,
    inlen: c_int,
    out: *mut Collection,
    outlen: *mut c_int,
) -> c_int {
    let serving = attempt!(server(fd));
    let mut serving = serving.lock();
    if outlen.is_null() || out.is_null() {
        return fail(libc::EFAULT, &"no room for events");
    }
    // SAFETY: the caller's promise.
    let room = unsafe { *outlen };
    let mut count = 0;
    for i in 0..inlen.min(room).max(0) {
        // SAFETY: the caller's promise.
        let msk = unsafe { (*input.add(i as usize)).msk };
        let event = attempt!(take(&mut serving, msk));
        let Some(sealed) = event.detached.as_ref().and_then(|d| serving.server.extract(d)) else { continue };
        let sealed = Box::leak(sealed.into_boxed_slice());
        let collection = Collection { data: sealed.as_mut_ptr().cast(), length: sealed.len() };
        // SAFETY: count is below the room.
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
/// `events` points to `count` collections.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_install_events(fd: c_int, events: *const Collection, count: c_int) -> c_int {
    let serving = attempt!(server(fd));
    let mut serving = serving.lock();
    let serving = &mut *serving;
    let mut installed = 0;
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's promise.
        let one = unsafe { &*events.add(i) };
        // SAFETY: as above.
        let sealed = unsafe { octets(one.data, one.length) };
        if let Ok(detached) = serving.server.install(sealed) {
            serving.server.resume(&detached, &mut Collector { events: &mut serving.waiting });
            installed += 1;
        }
    }
    let _ = serving.tell();
    installed
}

/// See the header.
///
/// # Safety
/// `events` points to `count` collections made by `msk_extract_events` and not freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_free_collection(events: *mut Collection, count: c_int) {
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
