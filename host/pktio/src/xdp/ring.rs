//! The rings that a process shares with the kernel: one side moves `producer`, the other `consumer`.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::XdpRingOffset;

/// `struct xdp_desc`: a frame in the shared memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Desc {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) options: u32,
}

/// One mapped ring of `T`; we are its producer or its consumer, never both.
pub(super) struct Ring<T> {
    map: NonNull<u8>,
    map_len: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    /// Our own index, ahead of the shared one until it is published.
    local: u32,
}

// SAFETY: the mapping belongs to this object; the kernel is the only other party and follows the ring
// protocol (acquire and release on the indices).
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `size` entries (a power of two) that was set up on the socket.
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        offsets: &XdpRingOffset,
        page_offset: u64,
        size: u32,
    ) -> io::Result<Self> {
        let map_len = offsets.desc as usize + size as usize * size_of::<T>();
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a fresh mapping of the socket's ring.
        let map = unsafe { mmap(std::ptr::null_mut(), map_len, access, kind, fd, page_offset)? };
        let base = map.cast::<u8>();
        // SAFETY: the kernel's offsets lie in the ring that was just mapped, aligned for their types, and a
        // mapping is never null.
        unsafe {
            Ok(Ring {
                map: NonNull::new_unchecked(base),
                map_len,
                producer: NonNull::new_unchecked(base.add(offsets.producer as usize).cast()),
                consumer: NonNull::new_unchecked(base.add(offsets.consumer as usize).cast()),
                entries: NonNull::new_unchecked(base.add(offsets.desc as usize).cast()),
                size,
                local: 0,
            })
        }
    }

    fn shared(&self, index: NonNull<AtomicU32>) -> u32 {
        // SAFETY: points into the mapping, which lives as long as `self`.
        unsafe { index.as_ref() }.load(Ordering::Acquire)
    }

    fn set_shared(&self, index: NonNull<AtomicU32>) {
        // SAFETY: as in `shared`.
        unsafe { index.as_ref() }.store(self.local, Ordering::Release);
    }

    fn slot(&self, index: u32) -> *mut T {
        // SAFETY: the masked index is below `size`, which the mapping holds.
        unsafe { self.entries.as_ptr().add((index & (self.size - 1)) as usize) }
    }

    /// As producer: adds an entry; false if the ring is full. Not seen before [`publish_producer`].
    ///
    /// [`publish_producer`]: Self::publish_producer
    pub(super) fn produce(&mut self, entry: T) -> bool {
        if self.local.wrapping_sub(self.shared(self.consumer)) >= self.size {
            return false;
        }
        // SAFETY: the slot is ours: the consumer is past it.
        unsafe { self.slot(self.local).write(entry) };
        self.local = self.local.wrapping_add(1);
        true
    }

    /// As producer: lets the kernel see what was added.
    pub(super) fn publish_producer(&self) {
        self.set_shared(self.producer);
    }

    /// As producer: entries that the kernel has not taken.
    pub(super) fn outstanding(&self) -> u32 {
        self.local.wrapping_sub(self.shared(self.consumer))
    }

    /// As consumer: takes an entry.
    pub(super) fn consume(&mut self) -> Option<T> {
        if self.shared(self.producer) == self.local {
            return None;
        }
        // SAFETY: the producer is past the slot and has written it; `T` is plain data.
        let entry = unsafe { self.slot(self.local).read() };
        self.local = self.local.wrapping_add(1);
        Some(entry)
    }

    /// As consumer: lets the kernel reuse what was taken.
    pub(super) fn publish_consumer(&self) {
        self.set_shared(self.consumer);
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`.
        let _ = unsafe { munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}
