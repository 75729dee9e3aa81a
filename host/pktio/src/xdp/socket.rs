//! The socket, its memory and its four rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_send_buffer_size_force, set_xdp_rx_ring_size, set_xdp_tx_ring_size,
    set_xdp_umem_completion_ring_size, set_xdp_umem_fill_ring_size, set_xdp_umem_reg, socket_error,
    xdp_mmap_offsets, xdp_statistics,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socket_with};

use super::attach::Attached;
use super::peer;
use super::ring::{Desc, Ring};
use crate::pool::Pool;
use crate::{Config, Filter};

/// Bytes of a chunk of shared memory; a frame fits in one.
pub(super) const CHUNK: usize = 4096;

/// Largest number of send calls in one flush; the kernel takes about 32 frames a call.
const MAX_KICKS: usize = 256;

/// Largest buffer size in bytes: the kernel takes an int and doubles it.
const MOST_BUFFER: usize = (i32::MAX / 2) as usize;

/// How long the kernel may take to release the queue of a closed socket.
const QUEUE_RELEASE: Duration = Duration::from_secs(1);

/// Result of a step, with the step's name on failure.
type Step<T> = Result<T, (&'static str, io::Error)>;

/// A bound socket. The first field is dropped first, so that no frame is redirected to a
/// half-closed socket.
pub(super) struct Socket {
    attached: Attached,
    fd: OwnedFd,
    fill: Ring<u64>,
    completion: Ring<u64>,
    rx: Ring<Desc>,
    tx: Ring<Desc>,
    pool: Pool,
    chunks: u32,
}

/// A new AF_XDP socket, not yet bound.
pub(super) fn new() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?)
}

/// An unbound socket to which a program can redirect.
#[cfg(test)]
pub(crate) fn receiving() -> io::Result<OwnedFd> {
    let fd = new()?;
    set_xdp_rx_ring_size(&fd, 64)?;
    Ok(fd)
}

impl Socket {
    /// Sets up memory, rings, binding and program, in this order.
    pub(super) fn open(fd: OwnedFd, index: u32, name: &str, config: &Config) -> Step<Socket> {
        // One chunk a frame, for each direction; the rings have the same length.
        let chunks = (config.rx_bytes.max(config.tx_bytes) / CHUNK).clamp(config.batch.max(64), 8192);
        let chunks = chunks.next_power_of_two() as u32;
        let pool = Pool::new(2 * chunks as usize * CHUNK).map_err(|e| ("mmap", e))?;
        let umem = XdpUmemReg {
            addr: pool.at(0) as u64,
            len: 2 * u64::from(chunks) * CHUNK as u64,
            chunk_size: CHUNK as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        set_xdp_umem_reg(&fd, umem).map_err(failed("XDP_UMEM_REG"))?;
        set_xdp_umem_fill_ring_size(&fd, chunks).map_err(failed("XDP_UMEM_FILL_RING"))?;
        set_xdp_umem_completion_ring_size(&fd, chunks).map_err(failed("XDP_UMEM_COMPLETION_RING"))?;
        set_xdp_rx_ring_size(&fd, chunks).map_err(failed("XDP_RX_RING"))?;
        set_xdp_tx_ring_size(&fd, chunks).map_err(failed("XDP_TX_RING"))?;
        // As with a packet socket the kernel doubles it; without the capability the kernel's limit
        // applies.
        let _ = set_socket_send_buffer_size_force(&fd, (config.tx_bytes / 2).min(MOST_BUFFER));
        let at = xdp_mmap_offsets(&fd).map_err(failed("XDP_MMAP_OFFSETS"))?;
        let ring = |e| ("ring", e);
        let mut fill = Ring::map(fd.as_fd(), &at.fr, XDP_UMEM_PGOFF_FILL_RING, chunks).map_err(ring)?;
        let completion =
            Ring::map(fd.as_fd(), &at.cr, XDP_UMEM_PGOFF_COMPLETION_RING, chunks).map_err(ring)?;
        let rx = Ring::map(fd.as_fd(), &at.rx, XDP_PGOFF_RX_RING, chunks).map_err(ring)?;
        let tx = Ring::map(fd.as_fd(), &at.tx, XDP_PGOFF_TX_RING, chunks).map_err(ring)?;
        for i in 0..u64::from(chunks) {
            fill.produce(i * CHUNK as u64);
        }
        fill.publish_producer();
        bind_when_free(&fd, index).map_err(|e| ("bind(AF_XDP)", e))?;
        let attached = Attached::new(fd.as_fd(), index, name, config.filter.as_ref())?;
        Ok(Socket { attached, fd, fill, completion, rx, tx, pool, chunks })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Replaces the receive filter at once.
    pub(super) fn set_filter(&mut self, filter: Option<&Filter>) -> Step<()> {
        self.attached.replace(filter)
    }

    /// The chunks for sending; the others belong to the fill ring.
    pub(super) fn transmit_chunks(&self) -> impl Iterator<Item = u64> + use<> {
        let chunks = u64::from(self.chunks);
        (chunks..2 * chunks).map(|i| i * CHUNK as u64)
    }

    /// `len` bytes at an address of the shared memory.
    pub(super) fn chunk_mut(&mut self, addr: u64, len: usize) -> &mut [u8] {
        self.pool.slice_mut(addr as usize, len)
    }

    pub(super) fn receive(&mut self) -> Option<Desc> {
        self.rx.consume()
    }

    pub(super) fn publish_receive(&self) {
        self.rx.publish_consumer();
    }

    /// Returns a received frame's chunk; the address may point anywhere into it.
    pub(super) fn refill(&mut self, addr: u64) {
        self.fill.produce(addr - addr % CHUNK as u64);
    }

    pub(super) fn publish_fill(&self) {
        self.fill.publish_producer();
    }

    /// Queues a frame; the ring has as many entries as there are chunks.
    pub(super) fn transmit(&mut self, desc: Desc) {
        self.tx.produce(desc);
    }

    /// Returns the chunk of a sent frame.
    pub(super) fn completed(&mut self) -> Option<u64> {
        let chunk = self.completion.consume();
        self.completion.publish_consumer();
        chunk
    }

    /// Number of frames that the kernel has not taken.
    pub(super) fn pending(&self) -> usize {
        self.tx.outstanding() as usize
    }

    /// Makes the kernel send the queued frames, as far as there is room.
    pub(super) fn kick(&mut self) -> io::Result<()> {
        self.tx.publish_producer();
        let mut before = self.tx.outstanding();
        for _ in 0..MAX_KICKS {
            if before == 0 {
                return Ok(());
            }
            // An empty datagram triggers the sending.
            let result = send(&self.fd, &[], SendFlags::DONTWAIT);
            let left = self.tx.outstanding();
            match result {
                // Either more than one call takes, or no room; progress tells which.
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) if left < before => {}
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => return Ok(()),
                result => result.map(drop)?,
            }
            before = left;
        }
        Ok(())
    }

    /// An error that the kernel recorded on the socket.
    pub(super) fn take_error(&self) -> Option<io::Error> {
        socket_error(&self.fd).ok()?.err().map(Into::into)
    }

    /// Frames dropped since the socket was opened: no chunk, no room in the ring, or too long.
    pub(super) fn kernel_drops(&self) -> u64 {
        let Ok(s) = xdp_statistics(&self.fd) else { return 0 };
        s.rx_dropped + s.rx_ring_full.unwrap_or(0) + s.rx_fill_ring_empty_descs.unwrap_or(0)
    }
}

/// Names the failed step.
fn failed(operation: &'static str) -> impl Fn(Errno) -> (&'static str, io::Error) {
    move |e| (operation, e.into())
}

/// Binds as soon as the queue is free: the kernel releases a closed socket's queue a little after
/// the close. A socket whose program is still attached is not closed yet.
fn bind_when_free(fd: &OwnedFd, index: u32) -> io::Result<()> {
    let deadline = Instant::now() + QUEUE_RELEASE;
    loop {
        match bind(fd, index) {
            Err(e)
                if e.raw_os_error() == Some(libc::EBUSY)
                    && Instant::now() < deadline
                    && peer::program(index).is_none() =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

/// Binds to queue 0 in copy mode, the only mode of a veth.
fn bind(fd: &OwnedFd, index: u32) -> io::Result<()> {
    Ok(rustix::net::bind(fd, &SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, index, 0))?)
}
