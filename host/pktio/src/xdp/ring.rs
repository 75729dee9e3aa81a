//! The rings shared with the kernel: one side moves `producer`, the other `consumer`.

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

/// One mapped ring of `T`. This side is its producer or its consumer, never both.
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

// SAFETY: the mapping belongs to this object and not to a thread. The kernel is the only other party, and it follows the
// ring protocol (acquire and release on the indices).
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `size` entries (a power of two) that was set up on the socket. Fails with
    /// EINVAL for invalid offsets.
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        offsets: &XdpRingOffset,
        page_offset: u64,
        size: u32,
    ) -> io::Result<Self> {
        let aligned = |offset: u64, align: usize| offset.is_multiple_of(align as u64);
        let index = |offset: u64| aligned(offset, align_of::<AtomicU32>()) && offset + 4 <= offsets.desc;
        let entries = aligned(offsets.desc, align_of::<T>());
        if !(size.is_power_of_two() && entries && index(offsets.producer) && index(offsets.consumer)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let map_len = offsets.desc as usize + size as usize * size_of::<T>();
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a fresh mapping of the socket's ring.
        let map = unsafe { mmap(std::ptr::null_mut(), map_len, access, kind, fd, page_offset)? };
        // SAFETY: a mapping is never null and begins at a page's beginning; the offsets were checked above.
        Ok(unsafe { Self::over(NonNull::new_unchecked(map.cast()), map_len, offsets, size) })
    }

    /// # Safety
    /// The offsets lie in `map_len` bytes at `map` with `size` entries behind the last, all aligned for their types, and
    /// `size` is a power of two. The memory is mapped, and unmapped when the ring is dropped.
    unsafe fn over(map: NonNull<u8>, map_len: usize, offsets: &XdpRingOffset, size: u32) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Ring {
                map,
                map_len,
                producer: map.add(offsets.producer as usize).cast(),
                consumer: map.add(offsets.consumer as usize).cast(),
                entries: map.add(offsets.desc as usize).cast(),
                size,
                local: 0,
            }
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
        // SAFETY: `size` is a power of two, so the masked index is below it, and the mapping holds `size` entries.
        unsafe { self.entries.as_ptr().add((index & (self.size - 1)) as usize) }
    }

    /// As producer: adds an entry; false if the ring is full. Not seen before [`publish_producer`].
    ///
    /// [`publish_producer`]: Self::publish_producer
    pub(super) fn produce(&mut self, entry: T) -> bool {
        if self.local.wrapping_sub(self.shared(self.consumer)) >= self.size {
            return false;
        }
        // SAFETY: the slot is ours: the consumer is past it (acquired), and it is not published before it is written.
        unsafe { self.slot(self.local).write(entry) };
        self.local = self.local.wrapping_add(1);
        true
    }

    /// As producer: publishes the added entries to the kernel.
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
        // SAFETY: the producer is past the slot and has written it (acquired); every pattern of bits is a `T`, an address
        // or a `Desc`.
        let entry = unsafe { self.slot(self.local).read() };
        self.local = self.local.wrapping_add(1);
        Some(entry)
    }

    /// As consumer: returns the consumed entries to the kernel.
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

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;
    use std::mem::ManuallyDrop;

    use super::*;

    const OFFSETS: XdpRingOffset = XdpRingOffset { producer: 0, consumer: 64, desc: 128, flags: Some(68) };
    const SIZE: u32 = 8;

    /// Memory of one ring, not a mapping, so rings over it must not be dropped.
    struct Memory(Box<[UnsafeCell<u64>]>);

    // SAFETY: only rings access it, by the protocol under test.
    unsafe impl Sync for Memory {}

    impl Memory {
        fn ring(&self) -> ManuallyDrop<Ring<u64>> {
            let map = NonNull::from(&*self.0).cast();
            // SAFETY: 128 bytes and eight entries, aligned for u64.
            ManuallyDrop::new(unsafe { Ring::over(map, size_of_val(&*self.0), &OFFSETS, SIZE) })
        }
    }

    /// Also run under Miri, which detects races and uninitialised reads: see CONTRIBUTING.md.
    #[test]
    fn entries_cross_threads_in_order() {
        let count = if cfg!(miri) { 100 } else { 10_000 };
        let memory = Memory((0..16 + SIZE).map(|_| UnsafeCell::new(0)).collect());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut ring = memory.ring();
                for entry in 0..count {
                    while !ring.produce(entry) {
                        std::thread::yield_now();
                    }
                    ring.publish_producer();
                }
            });
            let mut ring = memory.ring();
            for entry in 0..count {
                let taken = loop {
                    match ring.consume() {
                        Some(taken) => break taken,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(taken, entry);
                ring.publish_consumer();
            }
            assert_eq!(ring.consume(), None);
        });
    }

    #[test]
    fn a_full_ring_takes_nothing_until_one_is_consumed() {
        let memory = Memory((0..16 + SIZE).map(|_| UnsafeCell::new(0)).collect());
        let (mut producer, mut consumer) = (memory.ring(), memory.ring());
        assert!((0..u64::from(SIZE)).all(|entry| producer.produce(entry)) && !producer.produce(9));
        assert_eq!(consumer.consume(), None, "not published");
        producer.publish_producer();
        assert_eq!((consumer.consume(), producer.outstanding()), (Some(0), SIZE));
        consumer.publish_consumer();
        assert!(producer.produce(8) && !producer.produce(9));
    }
}
