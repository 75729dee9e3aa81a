//! Sending: frames from the caller's memory, or from a ring of slots that the caller fills in
//! place.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::HEADROOM;
use super::bound::Bound;
use crate::pool::Pool;
use crate::vnet::{self, VNET_LEN};
use crate::{MIN_FRAME, Stats, TxFrame};

/// Result of sending a run of messages.
enum Outcome {
    /// The next message did not fit.
    Full,
    /// All messages were handled.
    All,
}

pub(super) struct Transmitter {
    pool: Pool,
    batch: usize,
    slot: usize,
    /// The oldest committed slot, and the number of committed slots.
    first: usize,
    queued: usize,
    /// Length of the reservation, in the slot after the last committed one.
    reserved: Option<usize>,
    /// Slot messages, in slot order: virtio header and frame in one part.
    slot_parts: Box<[libc::iovec]>,
    slot_messages: Box<[libc::mmsghdr]>,
    /// Messages of frames in the caller's memory: header, head, body. Refilled by each `send`.
    headers: Box<[[u8; VNET_LEN]]>,
    parts: Box<[[libc::iovec; 3]]>,
    messages: Box<[libc::mmsghdr]>,
}

// SAFETY: the raw pointers point into heap memory and pages owned by this object, which do not move with
// it; those to a caller's frames are used only inside the call that set them.
unsafe impl Send for Transmitter {}

const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

impl Transmitter {
    pub(super) fn new(batch: usize, slot: usize) -> io::Result<Self> {
        // SAFETY: all zero is a valid mmsghdr.
        let message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        let mut this = Transmitter {
            pool: Pool::new(batch * (HEADROOM + slot))?,
            batch,
            slot,
            first: 0,
            queued: 0,
            reserved: None,
            slot_parts: vec![EMPTY; batch].into_boxed_slice(),
            slot_messages: vec![message; batch].into_boxed_slice(),
            headers: vec![[0; VNET_LEN]; batch].into_boxed_slice(),
            parts: vec![[EMPTY; 3]; batch].into_boxed_slice(),
            messages: vec![message; batch].into_boxed_slice(),
        };
        for i in 0..batch {
            this.slot_parts[i].iov_base = this.pool.at(i * (HEADROOM + slot) + HEADROOM - VNET_LEN).cast();
            this.slot_messages[i].msg_hdr.msg_iov = &raw mut this.slot_parts[i];
            this.slot_messages[i].msg_hdr.msg_iovlen = 1;
            this.messages[i].msg_hdr.msg_iov = this.parts[i].as_mut_ptr();
        }
        Ok(this)
    }

    /// Replaces the empty ring by one with longer slots.
    pub(super) fn grow(&mut self, slot: usize) -> io::Result<()> {
        *self = Transmitter::new(self.batch, slot)?;
        Ok(())
    }

    pub(super) fn slot_len(&self) -> usize {
        self.slot
    }

    pub(super) fn pending(&self) -> usize {
        self.queued
    }

    pub(super) fn is_full(&self) -> bool {
        self.queued == self.batch
    }

    /// Drops the committed frames, because their interface has disappeared.
    pub(super) fn clear(&mut self) {
        (self.first, self.queued, self.reserved) = (0, 0, None);
    }

    fn offset(&self, slot: usize) -> usize {
        slot * (HEADROOM + self.slot) + HEADROOM
    }

    pub(super) fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.slot || self.is_full() {
            return None;
        }
        self.reserved = Some(len);
        let at = self.offset((self.first + self.queued) % self.batch);
        Some(self.pool.slice_mut(at, len))
    }

    pub(super) fn commit(&mut self, len: usize) {
        if self.reserved.take().is_none_or(|reserved| reserved < len) {
            return;
        }
        // The virtio header before the frame stays zero: no offload.
        let slot = (self.first + self.queued) % self.batch;
        self.slot_parts[slot].iov_len = VNET_LEN + len;
        self.queued += 1;
    }

    pub(super) fn flush(
        &mut self,
        fd: BorrowedFd<'_>,
        bound: &mut Option<Bound>,
        stats: &mut Stats,
    ) -> io::Result<()> {
        self.reserved = None;
        while self.queued > 0 {
            let run = self.queued.min(self.batch - self.first);
            let range = self.first..self.first + run;
            let (done, result) = send_run(fd, &mut self.slot_messages[range], bound, stats);
            self.queued -= done;
            // Restart an empty ring at slot 0, whose memory is likely to be in the cache.
            self.first = if self.queued == 0 { 0 } else { (self.first + done) % self.batch };
            match result {
                Ok(Outcome::All) => {}
                Ok(Outcome::Full) => break,
                Err(e) => {
                    // Lost with the interface: they are stale once it is back.
                    stats.tx_dropped += self.queued as u64;
                    self.clear();
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    pub(super) fn send(
        &mut self,
        fd: BorrowedFd<'_>,
        frames: &[TxFrame<'_>],
        bound: &mut Option<Bound>,
        stats: &mut Stats,
    ) -> io::Result<usize> {
        self.reserved = None;
        let mut total = 0;
        for run in frames.chunks(self.batch) {
            for (i, frame) in run.iter().enumerate() {
                self.headers[i] = vnet::encode(frame);
                let parts = &mut self.parts[i];
                parts[0] = libc::iovec { iov_base: self.headers[i].as_mut_ptr().cast(), iov_len: VNET_LEN };
                // The kernel only reads these.
                parts[1] = part(frame.head);
                parts[2] = part(frame.body);
                self.messages[i].msg_hdr.msg_iovlen = if frame.body.is_empty() { 2 } else { 3 };
            }
            let (done, result) = send_run(fd, &mut self.messages[..run.len()], bound, stats);
            total += done;
            match result {
                Ok(Outcome::All) => {}
                Ok(Outcome::Full) => return Ok(total),
                // Report the handled frames first; the next call returns the error.
                Err(_) if total > 0 => return Ok(total),
                Err(e) => return Err(e),
            }
        }
        Ok(total)
    }
}

fn part(data: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() }
}

/// Bytes of a message's frame.
fn frame_len(message: &libc::mmsghdr) -> usize {
    // SAFETY: every message of this module points to `msg_iovlen` parts that live as long as it.
    let parts = unsafe { std::slice::from_raw_parts(message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) };
    parts.iter().map(|p| p.iov_len).sum::<usize>() - VNET_LEN
}

/// Sends messages in order and returns how many were handled. A frame that the device refuses
/// because of its content counts as handled and does not hold up the rest. So does a frame that a
/// full queueing discipline refuses, unless it can be kept.
fn send_run(
    fd: BorrowedFd<'_>,
    messages: &mut [libc::mmsghdr],
    bound: &mut Option<Bound>,
    stats: &mut Stats,
) -> (usize, io::Result<Outcome>) {
    let mut done = 0;
    while done < messages.len() {
        let rest = &mut messages[done..];
        if frame_len(&rest[0]) < MIN_FRAME {
            stats.tx_errors += 1;
            done += 1;
            continue;
        }
        // SAFETY: the messages point to live parts; the kernel writes only `msg_len`.
        let n = unsafe {
            libc::sendmmsg(fd.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, libc::MSG_DONTWAIT)
        };
        if n >= 0 {
            let sent = &rest[..n as usize];
            stats.tx_frames += sent.len() as u64;
            stats.tx_bytes += sent.iter().map(|m| frame_len(m) as u64).sum::<u64>();
            done += sent.len();
            if let Some(bound) = bound {
                bound.sent(fd, sent.len());
            }
            continue;
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN) => return (done, Ok(Outcome::Full)),
            Some(libc::ENOBUFS) if bound.as_mut().is_some_and(|b| b.refused(fd)) => {
                return (done, Ok(Outcome::Full));
            }
            Some(libc::ENOBUFS) => {
                stats.tx_dropped += 1;
                done += 1;
            }
            Some(libc::EMSGSIZE | libc::EINVAL) => {
                stats.tx_errors += 1;
                done += 1;
            }
            _ => return (done, Err(error)),
        }
    }
    (done, Ok(Outcome::All))
}
