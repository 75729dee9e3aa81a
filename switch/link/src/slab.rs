//! Memory for stored frames: slots in two sizes, allocated in chunks, reused, never moved.

/// Bytes of a small slot: a frame of an ordinary MTU.
const SMALL: usize = 2048;
/// Bytes of a large slot: the largest frame of a packet socket.
const LARGE: usize = 66 << 10;
const SMALL_PER_CHUNK: usize = 128;
const LARGE_PER_CHUNK: usize = 4;

/// Identifies a slot until it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    index: u32,
    large: bool,
}

struct Size {
    slot: usize,
    per_chunk: usize,
    chunks: Vec<Box<[u8]>>,
    free: Vec<u32>,
}

impl Size {
    fn new(slot: usize, per_chunk: usize) -> Self {
        Size { slot, per_chunk, chunks: Vec::new(), free: Vec::new() }
    }

    fn take(&mut self) -> u32 {
        if self.free.is_empty() {
            let first = (self.chunks.len() * self.per_chunk) as u32;
            // The system's zeroed pages, resident only once written.
            self.chunks.push(vec![0; self.slot * self.per_chunk].into());
            self.free.extend((first..first + self.per_chunk as u32).rev());
        }
        self.free.pop().unwrap_or_default()
    }

    fn bytes(&self, index: u32) -> &[u8] {
        let (chunk, at) = (index as usize / self.per_chunk, index as usize % self.per_chunk * self.slot);
        &self.chunks[chunk][at..at + self.slot]
    }

    fn bytes_mut(&mut self, index: u32) -> &mut [u8] {
        let (chunk, at) = (index as usize / self.per_chunk, index as usize % self.per_chunk * self.slot);
        &mut self.chunks[chunk][at..at + self.slot]
    }
}

/// Slots of both sizes. The caller limits the number in use.
pub(crate) struct Slab {
    small: Size,
    large: Size,
}

impl Slab {
    pub(crate) fn new() -> Self {
        Slab { small: Size::new(SMALL, SMALL_PER_CHUNK), large: Size::new(LARGE, LARGE_PER_CHUNK) }
    }

    /// Copies a frame in two parts; `None` if it is longer than any slot.
    pub(crate) fn put(&mut self, head: &[u8], rest: &[u8]) -> Option<Slot> {
        let len = head.len() + rest.len();
        let large = len > SMALL;
        let size = if large { &mut self.large } else { &mut self.small };
        if len > size.slot {
            return None;
        }
        let index = size.take();
        let bytes = size.bytes_mut(index);
        bytes[..head.len()].copy_from_slice(head);
        bytes[head.len()..len].copy_from_slice(rest);
        Some(Slot { index, large })
    }

    /// The slot's memory; the frame starts at its beginning.
    pub(crate) fn get(&self, slot: Slot) -> &[u8] {
        if slot.large { self.large.bytes(slot.index) } else { self.small.bytes(slot.index) }
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> &mut [u8] {
        if slot.large { self.large.bytes_mut(slot.index) } else { self.small.bytes_mut(slot.index) }
    }

    pub(crate) fn release(&mut self, slot: Slot) {
        let size = if slot.large { &mut self.large } else { &mut self.small };
        debug_assert!(!size.free.contains(&slot.index));
        size.free.push(slot.index);
    }
}
