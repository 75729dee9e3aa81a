//! Receiving: the kernel fills slots, and each frame is completed (VLAN tag, segmentation,
//! checksum).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::HEADROOM;
use crate::gso;
use crate::pool::Pool;
use crate::vnet::{VNET_LEN, Vnet};
use crate::{Checksum, ChecksumPolicy, RxFrame, Stats, complete};

/// Largest part of a message beyond its slot in bytes: packet sockets deliver segments of up to 64
/// KiB (some devices allow more; those are dropped as truncated).
const OVERFLOW: usize = 65536 + 64;

/// Bytes for the control messages: auxdata and a timestamp.
const CONTROL: usize = 128;

const TAG: usize = 4;

/// Location of a frame of the current batch.
struct Location {
    /// In the arena, otherwise in the pool.
    arena: bool,
    start: usize,
    len: usize,
    checksum: Checksum,
    came: Option<u64>,
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL]);

pub(super) struct Receiver {
    /// `batch` slots of `stride` bytes, then `batch` overflow areas, whose pages are resident only
    /// once used.
    pool: Pool,
    batch: usize,
    stride: usize,
    /// Control messages, referenced by `messages`.
    control: Box<[Control]>,
    /// Two parts a message, slot and overflow.
    parts: Box<[libc::iovec]>,
    messages: Box<[libc::mmsghdr]>,
    /// Frames that do not fit in one slot: cut from a large segment, or longer than a slot.
    arena: Vec<u8>,
    /// Buffer for one large frame before it is cut.
    whole: Vec<u8>,
    frames: Vec<Location>,
    policy: ChecksumPolicy,
}

// SAFETY: the raw pointers inside `parts` and `messages` point into heap memory and pages owned by this
// object, which do not move with it.
unsafe impl Send for Receiver {}

impl Receiver {
    pub(super) fn new(batch: usize, slot_frame: usize, policy: ChecksumPolicy) -> io::Result<Self> {
        let stride = HEADROOM + slot_frame;
        let pool = Pool::new(batch * (stride + OVERFLOW))?;
        let mut control = vec![Control([0; CONTROL]); batch].into_boxed_slice();
        let mut parts = Vec::with_capacity(2 * batch);
        for i in 0..batch {
            let head = i * stride + HEADROOM - VNET_LEN;
            parts.push(libc::iovec { iov_base: pool.at(head).cast(), iov_len: slot_frame + VNET_LEN });
            let tail = batch * stride + i * OVERFLOW;
            parts.push(libc::iovec { iov_base: pool.at(tail).cast(), iov_len: OVERFLOW });
        }
        let mut parts = parts.into_boxed_slice();
        let mut messages = Vec::with_capacity(batch);
        for i in 0..batch {
            // SAFETY: all zero is a valid mmsghdr.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = &raw mut parts[2 * i];
            message.msg_hdr.msg_iovlen = 2;
            message.msg_hdr.msg_control = control[i].0.as_mut_ptr().cast();
            message.msg_hdr.msg_controllen = CONTROL;
            messages.push(message);
        }
        Ok(Receiver {
            pool,
            batch,
            stride,
            control,
            parts,
            messages: messages.into_boxed_slice(),
            arena: Vec::new(),
            whole: Vec::new(),
            frames: Vec::with_capacity(batch),
            policy,
        })
    }

    pub(super) fn frame(&mut self, index: usize) -> RxFrame<'_> {
        let place = &self.frames[index];
        let data = if place.arena {
            &mut self.arena[place.start..place.start + place.len]
        } else {
            self.pool.slice_mut(place.start, place.len)
        };
        RxFrame { data, checksum: place.checksum, came: place.came }
    }

    pub(super) fn recv(&mut self, fd: BorrowedFd<'_>, stats: &mut Stats) -> io::Result<usize> {
        self.frames.clear();
        self.arena.clear();
        // SAFETY: the headers point to live slots, overflow areas and control buffers of this
        // object with the lengths given there; a null timeout is allowed.
        let n = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.messages.as_mut_ptr(),
                self.batch as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        if n < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(0),
                // The kernel consumed a frame that a virtio header cannot describe (segmented
                // inside a tunnel).
                Some(libc::EINVAL) => {
                    stats.rx_errors += 1;
                    Ok(0)
                }
                _ => Err(error),
            };
        }
        for i in 0..n as usize {
            if !self.accept(i) {
                stats.rx_errors += 1;
            }
            let header = &mut self.messages[i].msg_hdr;
            header.msg_controllen = CONTROL;
            header.msg_flags = 0;
        }
        stats.rx_frames += self.frames.len() as u64;
        stats.rx_bytes += self.frames.iter().map(|f| f.len as u64).sum::<u64>();
        Ok(self.frames.len())
    }

    /// Turns message `i` into one or more frames. Returns false if it is damaged.
    fn accept(&mut self, i: usize) -> bool {
        let message = &self.messages[i];
        let truncated = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        let Some(len) = (message.msg_len as usize).checked_sub(VNET_LEN) else { return false };
        if truncated || len < crate::MIN_FRAME {
            return false;
        }
        let start = i * self.stride + HEADROOM;
        let mut header = [0; VNET_LEN];
        header.copy_from_slice(self.pool.slice(start - VNET_LEN, VNET_LEN));
        let vnet = Vnet::parse(&header);
        if vnet.unknown_gso {
            return false;
        }
        let metadata = Metadata::read(&self.control[i].0[..message.msg_hdr.msg_controllen.min(CONTROL)]);
        let slot_frame = self.parts[2 * i].iov_len - VNET_LEN;
        if vnet.segmentation.is_none() && len <= slot_frame {
            return self.accept_in_slot(start, len, metadata, vnet.checksum);
        }
        self.accept_large(i, start, len, metadata, vnet)
    }

    fn accept_in_slot(
        &mut self,
        mut start: usize,
        mut len: usize,
        metadata: Metadata,
        sum: Checksum,
    ) -> bool {
        let mut checksum = sum;
        if let Some(tag) = metadata.tag {
            // Move the addresses into the headroom to insert the tag before the EtherType.
            start -= TAG;
            len += TAG;
            let frame = self.pool.slice_mut(start, len);
            frame.copy_within(TAG..TAG + 12, 0);
            frame[12..12 + TAG].copy_from_slice(&tag);
            checksum = shifted(checksum);
        }
        if let Some(checksum) = settle(self.policy, self.pool.slice_mut(start, len), checksum) {
            self.frames.push(Location { arena: false, start, len, checksum, came: metadata.came });
            return true;
        }
        false
    }

    /// Joins slot and overflow area, and cuts the frame if the sender left that to the hardware.
    fn accept_large(&mut self, i: usize, start: usize, len: usize, metadata: Metadata, vnet: Vnet) -> bool {
        let Metadata { tag, came } = metadata;
        let slot_frame = self.parts[2 * i].iov_len - VNET_LEN;
        let in_slot = len.min(slot_frame);
        let head = self.pool.slice(start, in_slot);
        let rest = self.pool.slice(self.batch * self.stride + i * OVERFLOW, len - in_slot);
        let whole = &mut self.whole;
        whole.clear();
        whole.extend_from_slice(&head[..12]);
        whole.extend_from_slice(tag.as_ref().map_or(&[], |t| t));
        whole.extend_from_slice(&head[12..]);
        whole.extend_from_slice(rest);
        let (arena, frames) = (&mut self.arena, &mut self.frames);
        match vnet.segmentation {
            Some(seg) => {
                let first = frames.len();
                if !gso::segment(whole, seg, arena, |range, checksum| {
                    frames.push(Location {
                        arena: true,
                        start: range.start,
                        len: range.len(),
                        checksum,
                        came,
                    });
                }) {
                    return false;
                }
                for place in &mut frames[first..] {
                    let frame = &mut arena[place.start..place.start + place.len];
                    // `segment` only writes offsets inside the frame.
                    place.checksum = settle(self.policy, frame, place.checksum).unwrap_or_default();
                }
                true
            }
            None => {
                let checksum = if tag.is_some() { shifted(vnet.checksum) } else { vnet.checksum };
                let Some(checksum) = settle(self.policy, whole, checksum) else { return false };
                let start = arena.len();
                arena.extend_from_slice(whole);
                frames.push(Location { arena: true, start, len: whole.len(), checksum, came });
                true
            }
        }
    }
}

/// Completes a partial checksum if the policy requires it. `None` if its field lies outside the
/// frame.
fn settle(policy: ChecksumPolicy, frame: &mut [u8], checksum: Checksum) -> Option<Checksum> {
    match (policy, checksum) {
        (ChecksumPolicy::Complete, Checksum::Partial { start, offset }) => {
            complete(frame, start, offset).then_some(Checksum::Verified)
        }
        (ChecksumPolicy::Report, Checksum::Partial { start, offset }) => {
            let end = usize::from(start) + usize::from(offset) + 2;
            (end <= frame.len()).then_some(checksum)
        }
        _ => Some(checksum),
    }
}

/// The same checksum in a frame that grew by a VLAN tag.
fn shifted(checksum: Checksum) -> Checksum {
    match checksum {
        Checksum::Partial { start, offset } => {
            Checksum::Partial { start: start.saturating_add(TAG as u16), offset }
        }
        other => other,
    }
}

/// Metadata of a frame from the kernel's control messages.
#[derive(Clone, Copy, Default)]
struct Metadata {
    /// The VLAN tag that the kernel removed.
    tag: Option<[u8; TAG]>,
    /// When the frame was received, in microseconds of the real-time clock.
    came: Option<u64>,
}

impl Metadata {
    fn read(control: &[u8]) -> Metadata {
        const HEADER: usize = size_of::<libc::cmsghdr>();
        let mut metadata = Metadata::default();
        let mut at = 0;
        while let Some(bytes) = control.get(at..at + HEADER) {
            // SAFETY: `bytes` is as long as a cmsghdr, for which every bit pattern is valid.
            let header: libc::cmsghdr = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
            let data = &control[at + HEADER..];
            match (header.cmsg_level, header.cmsg_type) {
                (libc::SOL_PACKET, libc::PACKET_AUXDATA) => metadata.tag = vlan_tag(data),
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => metadata.came = micros(data),
                _ => {}
            }
            let step = header.cmsg_len.max(HEADER).checked_next_multiple_of(align_of::<libc::cmsghdr>());
            let Some(next) = step.and_then(|step| at.checked_add(step)) else { break };
            at = next;
        }
        metadata
    }
}

/// The VLAN tag in a packet socket's auxdata.
fn vlan_tag(data: &[u8]) -> Option<[u8; TAG]> {
    if data.len() < size_of::<libc::tpacket_auxdata>() {
        return None;
    }
    // SAFETY: `data` is as long as a tpacket_auxdata, for which every bit pattern is valid.
    let aux: libc::tpacket_auxdata = unsafe { std::ptr::read_unaligned(data.as_ptr().cast()) };
    if aux.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let tpid = if aux.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { aux.tp_vlan_tpid } else { 0x8100 };
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), aux.tp_vlan_tci.to_be_bytes());
    Some([a, b, c, d])
}

/// A kernel timestamp in microseconds.
fn micros(data: &[u8]) -> Option<u64> {
    if data.len() < size_of::<libc::timespec>() {
        return None;
    }
    // SAFETY: `data` is as long as a timespec, for which every bit pattern is valid.
    let time: libc::timespec = unsafe { std::ptr::read_unaligned(data.as_ptr().cast()) };
    let (seconds, nanos) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
    seconds.checked_mul(1_000_000)?.checked_add(nanos / 1000)
}
