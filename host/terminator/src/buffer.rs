//! Buffers between two sockets: bytes that were read and not consumed yet, and bytes that were
//! produced and not written yet.

use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::buffer::spare_capacity;

/// Bytes that were read and not consumed yet. The buffer has memory only while it holds bytes or is
/// being filled.
#[derive(Debug)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    start: usize,
    capacity: usize,
}

impl Input {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, capacity }
    }

    pub(crate) fn data(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub(crate) fn data_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.bytes.len());
        if self.is_empty() {
            self.bytes.clear();
            self.start = 0;
        }
    }

    /// Reads once, at most as many bytes as there is room for. Returns their number; 0 is the end
    /// of the stream.
    pub(crate) fn read_from(&mut self, source: impl AsFd) -> io::Result<usize> {
        debug_assert!(!self.is_full());
        self.make_room();
        Ok(rustix::io::read(source, spare_capacity(&mut self.bytes))?)
    }

    /// Appends at most as many of these bytes as there is room for.
    #[cfg(feature = "testing")]
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.make_room();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(self.capacity - self.bytes.len())]);
    }

    /// Allocates the buffer without zeroing it: a waiting connection frees its buffer, so this runs
    /// often.
    fn make_room(&mut self) {
        self.bytes.drain(..std::mem::take(&mut self.start));
        self.bytes.reserve_exact(self.capacity - self.bytes.len());
    }

    /// Frees the memory if the buffer is empty.
    pub(crate) fn release(&mut self) {
        if self.is_empty() {
            self.bytes = Vec::new();
        }
    }
}

/// Bytes that were produced and not written yet.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    written: usize,
}

impl Output {
    /// The buffer, to which the caller appends.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes once, at most `most` bytes. Returns the number of bytes written.
    pub(crate) fn write_to(&mut self, sink: &mut impl Write, most: usize) -> io::Result<usize> {
        let count = sink.write(&self.bytes[self.written..][..most.min(self.len())])?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.written += count;
        // Written bytes are dropped once they are the larger part, so each byte is moved at most
        // once.
        if 2 * self.written >= self.bytes.len() {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
        Ok(count)
    }

    /// Frees the memory if the buffer is empty.
    pub(crate) fn release(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sink that accepts only a part of each write.
    struct Slow(Vec<u8>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(1000);
            self.0.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn output_that_is_never_empty_stays_small() {
        let (mut output, mut sink, mut produced) = (Output::default(), Slow(Vec::new()), Vec::new());
        for n in 0..2000_u32 {
            while output.len() < 4096 {
                output.bytes().extend_from_slice(&[n as u8; 256]);
                produced.extend_from_slice(&[n as u8; 256]);
            }
            output.write_to(&mut sink, usize::MAX).unwrap();
            assert!(!output.is_empty() && output.bytes().len() <= 2 * 4096 + 256, "{n}");
        }
        while !output.is_empty() {
            output.write_to(&mut sink, usize::MAX).unwrap();
        }
        assert!(sink.0 == produced);
    }
}
