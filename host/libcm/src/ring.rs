//! A client's ring (`BPF_MAP_TYPE_RINGBUF`), read without a call: kernel/bpf/ringbuf.c.
//!
//! Two counters of octets, each in a page of its own, the reader's and the writer's, then the data, mapped twice so that nothing is
//! cut in two.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::abi::EVENT;

/// Of an entry's length: it is being written; it was given up.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER: usize = 8;

#[derive(Debug)]
pub(crate) struct Ring {
    descriptor: OwnedFd,
    page: usize,
    /// Octets of data, a power of two.
    size: usize,
    /// The reader's page, and the writer's with the data.
    reader: *mut libc::c_void,
    writer: *mut libc::c_void,
}

// SAFETY: the memory is the process's, and whoever has the ring alone reads it.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps it.
    ///
    /// # Errors
    /// It is no ring of this size, or it may not be mapped.
    pub fn new(descriptor: OwnedFd, size: u32) -> io::Result<Ring> {
        // SAFETY: it has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let size = size as usize;
        if !size.is_power_of_two() || size < page || size > 1 << 24 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no size of a ring"));
        }
        let fd = descriptor.as_raw_fd();
        let mapped = |length, protection, offset: usize| {
            // SAFETY: a new mapping, of nobody's memory.
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

    /// The next entry, if one is there.
    pub fn next(&mut self) -> Option<[u8; EVENT]> {
        // SAFETY: mapped as long as this lives, and aligned to pages.
        let (read, written) =
            unsafe { (&*self.reader.cast::<AtomicU64>(), &*self.writer.cast::<AtomicU64>()) };
        let mut at = read.load(Ordering::Relaxed);
        let mut seen = false;
        loop {
            let offset = at as usize & (self.size - 1);
            // SAFETY: within the data, of which entries begin at multiples of eight.
            let entry = unsafe { self.writer.cast::<u8>().add(self.page + offset) };
            // SAFETY: as above.
            let length = || unsafe { &*entry.cast::<AtomicU32>() }.load(Ordering::Acquire);
            let length = (at < written.load(Ordering::Acquire)).then(length).filter(|l| l & BUSY == 0);
            let Some(length) = length else {
                if std::mem::replace(&mut seen, true) {
                    return None;
                }
                // Whoever writes the next entry wakes only a reader who has read all before it: either he sees that it is so, or
                // we see the entry.
                fence(Ordering::SeqCst);
                continue;
            };
            let octets = (length & !DISCARDED) as usize;
            let mut event = [0; EVENT];
            if octets == EVENT {
                // SAFETY: the data are mapped twice, so that this is in them.
                unsafe { ptr::copy_nonoverlapping(entry.add(HEADER), event.as_mut_ptr(), EVENT) };
            }
            at += (HEADER + octets.next_multiple_of(8)) as u64;
            // The kernel writes over it from now on.
            read.store(at, Ordering::Release);
            if octets == EVENT && length & DISCARDED == 0 {
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
        // SAFETY: mapped by `new`, used by nobody any more.
        unsafe {
            libc::munmap(self.reader, self.page);
            if !self.writer.is_null() {
                libc::munmap(self.writer, self.page + 2 * self.size);
            }
        }
    }
}
