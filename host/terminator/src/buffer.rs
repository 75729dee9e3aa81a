//! Bytes on their way between two sockets: read and not consumed yet, or produced and not written yet.

use std::io::{self, Read, Write};

/// Bytes that were read and not consumed yet. It has memory only while it holds bytes or is read into.
#[derive(Debug)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    capacity: usize,
}

impl Input {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, end: 0, capacity }
    }

    pub(crate) fn data(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(crate) fn data_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() == self.capacity
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end);
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads once, as much as there is room for. Returns the number of bytes; 0 is the end of the stream.
    pub(crate) fn read_from(&mut self, source: &mut impl Read) -> io::Result<usize> {
        debug_assert!(!self.is_full());
        if self.bytes.is_empty() {
            self.bytes = vec![0; self.capacity];
        }
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let count = source.read(&mut self.bytes[self.end..])?;
        self.end += count;
        Ok(count)
    }

    /// Gives the memory back if it holds no bytes.
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
    /// For appending.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes once. Returns the number of bytes.
    pub(crate) fn write_to(&mut self, sink: &mut impl Write) -> io::Result<usize> {
        let count = sink.write(&self.bytes[self.written..])?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.written += count;
        if self.is_empty() {
            self.bytes.clear();
            self.written = 0;
        }
        Ok(count)
    }

    /// Gives the memory back if it holds no bytes.
    pub(crate) fn release(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }
}
