//! The socket, its memory and its four rings.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use super::attach::Attached;
use super::peer;
use super::ring::{Desc, Ring};
use crate::pool::Pool;
use crate::{Config, Filter};

/// Octets of a chunk of shared memory; a frame lies in one.
pub(super) const CHUNK: usize = 4096;

const UMEM_PGOFF_FILL_RING: u64 = 0x1_0000_0000;
const UMEM_PGOFF_COMPLETION_RING: u64 = 0x1_8000_0000;
const PGOFF_RX_RING: u64 = 0;
const PGOFF_TX_RING: u64 = 0x8000_0000;

/// Calls that hand frames to the device in one flush; the kernel takes 32 or so a call.
const MAX_KICKS: usize = 256;

/// How long the kernel may take to let go of the queue of a socket that was closed.
const QUEUE_RELEASE: Duration = Duration::from_secs(1);

/// A failed step by name.
type Step<T> = Result<T, (&'static str, io::Error)>;

/// A bound socket. The first field goes first: no frame is redirected to a socket that is half gone.
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
    // SAFETY: plain system call.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// One that a program can be given, bound to nothing.
#[cfg(test)]
pub(crate) fn receiving() -> io::Result<OwnedFd> {
    let fd = new()?;
    set(&fd, libc::SOL_XDP, libc::XDP_RX_RING, &64u32)?;
    Ok(fd)
}

fn set<T>(fd: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is `len` readable octets that live through the call.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an option that is plain data.
fn get<T>(fd: &OwnedFd, level: libc::c_int, name: libc::c_int) -> io::Result<T> {
    // SAFETY: called below with C structures and integers for which all zero is valid.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is `len` writable octets that live through the call.
    let rc = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
    if rc == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

impl Socket {
    /// Memory, rings, bind, program, in this order.
    pub(super) fn open(fd: OwnedFd, index: u32, name: &str, config: &Config) -> Step<Socket> {
        // One chunk a frame, for each direction; the rings are as long.
        let chunks = (config.rx_bytes.max(config.tx_bytes) / CHUNK).clamp(config.batch.max(64), 8192);
        let chunks = chunks.next_power_of_two() as u32;
        let pool = Pool::new(2 * chunks as usize * CHUNK).map_err(|e| ("mmap", e))?;
        let umem = libc::xdp_umem_reg {
            addr: pool.at(0) as u64,
            len: 2 * u64::from(chunks) * CHUNK as u64,
            chunk_size: CHUNK as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set(&fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &umem).map_err(|e| ("XDP_UMEM_REG", e))?;
        for (name, text) in [
            (libc::XDP_UMEM_FILL_RING, "XDP_UMEM_FILL_RING"),
            (libc::XDP_UMEM_COMPLETION_RING, "XDP_UMEM_COMPLETION_RING"),
            (libc::XDP_RX_RING, "XDP_RX_RING"),
            (libc::XDP_TX_RING, "XDP_TX_RING"),
        ] {
            set(&fd, libc::SOL_XDP, name, &chunks).map_err(|e| (text, e))?;
        }
        // As with a packet socket the kernel doubles it; without the capability its limit is what we get.
        let octets = libc::c_int::try_from(config.tx_bytes / 2).unwrap_or(libc::c_int::MAX / 2);
        let _ = set(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &octets);
        let at: libc::xdp_mmap_offsets =
            get(&fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS).map_err(|e| ("XDP_MMAP_OFFSETS", e))?;
        let map = |e| ("ring", e);
        let mut fill = Ring::map(fd.as_fd(), &at.fr, UMEM_PGOFF_FILL_RING, chunks).map_err(map)?;
        let completion = Ring::map(fd.as_fd(), &at.cr, UMEM_PGOFF_COMPLETION_RING, chunks).map_err(map)?;
        let rx = Ring::map(fd.as_fd(), &at.rx, PGOFF_RX_RING, chunks).map_err(map)?;
        let tx = Ring::map(fd.as_fd(), &at.tx, PGOFF_TX_RING, chunks).map_err(map)?;
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

    /// Chunks that are ours for sending; the others are the fill ring's.
    pub(super) fn transmit_chunks(&self) -> impl Iterator<Item = u64> + use<> {
        let chunks = u64::from(self.chunks);
        (chunks..2 * chunks).map(|i| i * CHUNK as u64)
    }

    /// `len` octets at an address of the shared memory.
    pub(super) fn chunk_mut(&mut self, addr: u64, len: usize) -> &mut [u8] {
        self.pool.slice_mut(addr as usize, len)
    }

    pub(super) fn receive(&mut self) -> Option<Desc> {
        self.rx.consume()
    }

    pub(super) fn publish_receive(&self) {
        self.rx.publish_consumer();
    }

    /// Gives a received frame's chunk back; the address may point anywhere into it.
    pub(super) fn refill(&mut self, addr: u64) {
        self.fill.produce(addr - addr % CHUNK as u64);
    }

    pub(super) fn publish_fill(&self) {
        self.fill.publish_producer();
    }

    /// Queues a frame; the ring holds as many as there are chunks.
    pub(super) fn transmit(&mut self, desc: Desc) {
        self.tx.produce(desc);
    }

    /// A chunk that was sent.
    pub(super) fn completed(&mut self) -> Option<u64> {
        let chunk = self.completion.consume();
        self.completion.publish_consumer();
        chunk
    }

    /// Frames that the kernel has not taken.
    pub(super) fn pending(&self) -> usize {
        self.tx.outstanding() as usize
    }

    /// Has the kernel send what was queued, as far as there is room.
    pub(super) fn kick(&mut self) -> io::Result<()> {
        self.tx.publish_producer();
        let mut before = self.tx.outstanding();
        for _ in 0..MAX_KICKS {
            if before == 0 {
                return Ok(());
            }
            // SAFETY: an empty datagram without address; only its side effect is wanted.
            let rc = unsafe {
                libc::sendto(
                    self.fd.as_raw_fd(),
                    std::ptr::null(),
                    0,
                    libc::MSG_DONTWAIT,
                    std::ptr::null(),
                    0,
                )
            };
            let error = io::Error::last_os_error();
            let left = self.tx.outstanding();
            if rc < 0 {
                match error.raw_os_error() {
                    // More than a call takes, or no room; which of the two, progress tells.
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) if left < before => {}
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => return Ok(()),
                    _ => return Err(error),
                }
            }
            before = left;
        }
        Ok(())
    }

    /// An error that the kernel noted on the socket.
    pub(super) fn take_error(&self) -> Option<io::Error> {
        match get::<libc::c_int>(&self.fd, libc::SOL_SOCKET, libc::SO_ERROR) {
            Ok(0) | Err(_) => None,
            Ok(code) => Some(io::Error::from_raw_os_error(code)),
        }
    }

    /// Frames dropped since the socket was opened: no chunk, no room in the ring, or too long.
    pub(super) fn kernel_drops(&self) -> u64 {
        get::<libc::xdp_statistics>(&self.fd, libc::SOL_XDP, libc::XDP_STATISTICS)
            .map_or(0, |s| s.rx_dropped + s.rx_ring_full + s.rx_fill_ring_empty_descs)
    }
}

/// Binds as soon as the queue is free: the kernel lets go of a closed socket's queue a little after the close. One that
/// still has its program is not closed.
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

/// Binds to queue 0, frames copied (the only mode of a veth).
fn bind(fd: &OwnedFd, index: u32) -> io::Result<()> {
    // SAFETY: all zero is a valid sockaddr_xdp.
    let mut addr: libc::sockaddr_xdp = unsafe { std::mem::zeroed() };
    addr.sxdp_family = libc::AF_XDP as u16;
    addr.sxdp_flags = libc::XDP_COPY;
    addr.sxdp_ifindex = index;
    let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: the address is whole and lives through the call.
    if unsafe { libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
