//! A client's event ring (`BPF_MAP_TYPE_RINGBUF`), read without system calls; layout as in
//! kernel/bpf/ringbuf.c: two byte counters, the reader's and the writer's, each in its own page,
//! then the data. The data are mapped twice in a row, so that no entry is split.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::abi::EVENT;

/// Flags in an entry's length: the entry is still being written; the entry was discarded.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER: usize = 8;

#[derive(Debug)]
pub(crate) struct Ring {
    descriptor: OwnedFd,
    page: usize,
    /// Bytes of data, a power of two.
    size: usize,
    /// The reader's page, and the writer's page followed by the data.
    reader: *mut libc::c_void,
    writer: *mut libc::c_void,
}

// SAFETY: the mapping belongs to the process, and only the owner of the ring reads it.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring.
    ///
    /// # Errors
    /// The size is invalid, or the ring cannot be mapped.
    pub fn new(descriptor: OwnedFd, size: u32) -> io::Result<Ring> {
        // SAFETY: it has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let size = size as usize;
        if !size.is_power_of_two() || size < page || size > 1 << 24 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a valid size of a ring"));
        }
        let fd = descriptor.as_raw_fd();
        let mapped = |length, protection, offset: usize| {
            // SAFETY: a new mapping, at an address that the kernel chooses.
            let at = unsafe {
                libc::mmap(ptr::null_mut(), length, protection, libc::MAP_SHARED, fd, offset as libc::off_t)
            };
            if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at) }
        };
        let reader = mapped(page, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        let mut ring = Ring { descriptor, page, size, reader, writer: ptr::null_mut() };
        ring.writer = mapped(page + 2 * size, libc::PROT_READ, page)?;
        Ok(ring)
    }

    /// Returns the next event, if any.
    pub fn next(&mut self) -> Option<[u8; EVENT]> {
        // SAFETY: mapped while `self` lives, and page-aligned.
        let (read, written) =
            unsafe { (&*self.reader.cast::<AtomicU64>(), &*self.writer.cast::<AtomicU64>()) };
        let mut at = read.load(Ordering::Relaxed);
        let mut seen = false;
        loop {
            let offset = at as usize & (self.size - 1);
            // SAFETY: the offset is within the data, and entries are aligned to eight bytes.
            let entry = unsafe { self.writer.cast::<u8>().add(self.page + offset) };
            // SAFETY: as above.
            let length = || unsafe { &*entry.cast::<AtomicU32>() }.load(Ordering::Acquire);
            let length = (at < written.load(Ordering::Acquire)).then(length).filter(|l| l & BUSY == 0);
            let Some(length) = length else {
                if std::mem::replace(&mut seen, true) {
                    return None;
                }
                // The writer wakes only a reader that has read all earlier entries. After this
                // fence either the writer sees our position, or we see its entry.
                fence(Ordering::SeqCst);
                continue;
            };
            let bytes = (length & !DISCARDED) as usize;
            let mut event = [0; EVENT];
            if bytes == EVENT {
                // SAFETY: the data are mapped twice, so the entry lies within the mapping.
                unsafe { ptr::copy_nonoverlapping(entry.add(HEADER), event.as_mut_ptr(), EVENT) };
            }
            at += (HEADER + bytes.next_multiple_of(8)) as u64;
            // From here on the kernel may overwrite the entry.
            read.store(at, Ordering::Release);
            if bytes == EVENT && length & DISCARDED == 0 {
                return Some(event);
            }
        }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it, and `self` was the only user.
        unsafe {
            libc::munmap(self.reader, self.page);
            if !self.writer.is_null() {
                libc::munmap(self.writer, self.page + 2 * self.size);
            }
        }
    }
}
