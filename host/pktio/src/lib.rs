//! Packet I/O on a Linux interface: whole Ethernet frames in batches, behind one trait.
//!
//! [`PacketIo`] serves the embedded switch's ports, the link emulator and the host stack. Two
//! backends implement it:
//!
//! - [`AfPacket`]: a packet socket read and written with `recvmmsg`/`sendmmsg`. Works on every
//!   interface, adds little delay, and leaves the kernel's own stack in place beside it.
//! - [`AfXdp`]: an AF_XDP socket. It takes the frames of one queue that the receive filter accepts,
//!   or all of them, away from the kernel. The peer of a veth must complete checksums and tags
//!   itself.
//!
//! [`IoChoice`] opens either, or AF_XDP where the interface supports it.
//!
//! Both deliver the same frames: with their VLAN tag, without partial checksums (unless requested,
//! see [`ChecksumPolicy`]), and not longer than the sender's segment size (large segments that a
//! local sender left to the hardware are cut here).
//!
//! No call blocks: wait on [`AsFd::as_fd`] with poll or epoll, then call [`PacketIo::recv`]. Memory
//! does not grow: [`Config`] sets the receive and transmit memory when the interface is opened.

mod af_packet;
mod begin;
mod checksum;
mod choice;
mod error;
pub mod filter;
mod frame;
mod gso;
pub mod guard;
pub mod icmp;
mod interface;
mod link;
pub mod monitor;
mod netlink;
mod pool;
pub mod repair;
pub mod route;
pub mod sockets;
pub mod tap;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transparent;
mod vnet;
mod xdp;

use std::os::fd::{AsFd, BorrowedFd};

pub use af_packet::AfPacket;
pub use begin::begin_connection;
pub use checksum::{complete, internet_sum};
pub use choice::{IoChoice, Opened};
pub use error::{IoError, OpenError};
pub use filter::Filter;
pub use frame::{Checksum, RxFrame, Segmentation, SegmentationKind, TxFrame};
pub use interface::{Interface, in_netns};
pub use link::LinkInfo;
pub use xdp::AfXdp;

/// Shortest Ethernet frame accepted for sending: the header alone (bytes).
pub const MIN_FRAME: usize = 14;

/// The backend that sends and receives frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// A packet socket, `recvmmsg` and `sendmmsg`.
    AfPacket,
    /// An AF_XDP socket on queue 0.
    AfXdp,
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Backend::AfPacket => "af_packet",
            Backend::AfXdp => "af_xdp",
        })
    }
}

/// What to do with a frame whose transport checksum its local sender left to the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumPolicy {
    /// Complete the checksum before delivery. For a switch.
    Complete,
    /// Deliver the frame unchanged and report it in [`RxFrame::checksum`]. For a host, which would
    /// only verify the sum, and for a link, which passes the metadata on.
    Report,
}

/// Settings of an interface.
#[derive(Clone, Debug)]
pub struct Config {
    /// Frames received or sent in one system call, 1 to 1024.
    pub batch: usize,
    /// Frames that can be [committed](PacketIo::commit) before a flush, if more than a batch
    /// (packet sockets only).
    pub queue: usize,
    /// Size of the kernel's receive queue in bytes of its own accounting (about 2 KiB for a frame
    /// of up to 1500 bytes).
    pub rx_bytes: usize,
    /// Limit of sent frames that the device has not taken yet, in the same bytes.
    pub tx_bytes: usize,
    /// Packet sockets only: keep a frame that a full queueing discipline refuses, send it when
    /// there is room, and queue less from then on. Otherwise drop it, as a switch does.
    pub keep_refused: bool,
    /// Treatment of partial checksums on receipt.
    pub checksum: ChecksumPolicy,
    /// Also receive frames for other stations.
    pub promiscuous: bool,
    /// Bypass the interface's queueing discipline. Must be off where a shaper is configured.
    pub qdisc_bypass: bool,
    /// Packet sockets only: mark of sent frames (`SO_MARK`), by which programs on the interface
    /// recognise them.
    pub mark: u32,
    /// Packet sockets only: receive only this EtherType, 0 for none; other frames cost the kernel
    /// nothing.
    pub ether_type: Option<u16>,
    /// Receive filter; all frames if `None`.
    pub filter: Option<Filter>,
    /// Packet sockets only, AF_XDP refuses it: sockets of one interface with the same number share
    /// its frames, by flow.
    pub share: Option<u16>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            batch: 64,
            queue: 64,
            rx_bytes: 4 << 20,
            tx_bytes: 4 << 20,
            keep_refused: false,
            checksum: ChecksumPolicy::Complete,
            promiscuous: true,
            qdisc_bypass: false,
            mark: 0,
            ether_type: None,
            filter: None,
            share: None,
        }
    }
}

/// Frame counters since the interface was opened; reopening does not reset them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Frames delivered to the caller.
    pub rx_frames: u64,
    /// Bytes of those frames.
    pub rx_bytes: u64,
    /// Frames the kernel dropped because the receive queue was full.
    pub rx_dropped: u64,
    /// Frames dropped here because they were damaged or could not be cut or completed.
    pub rx_errors: u64,
    /// Frames that the device accepted.
    pub tx_frames: u64,
    /// Bytes of those frames.
    pub tx_bytes: u64,
    /// Frames dropped because the transmit queue was full.
    pub tx_dropped: u64,
    /// Frames refused by the device: too long for its MTU, or shorter than an Ethernet header.
    pub tx_errors: u64,
}

/// Sends and receives whole Ethernet frames on one interface, in batches, without blocking.
///
/// Receiving: [`recv`](Self::recv) returns the number of frames; read each by index with
/// [`frame`](Self::frame) until the next `recv`, which reuses the memory.
///
/// Sending: either call [`send`](Self::send) with frames in the caller's memory, or
/// [`reserve`](Self::reserve), fill and [`commit`](Self::commit) frames in transmit memory and
/// [`flush`](Self::flush) at the end of the batch. Frames leave in the order in which they were
/// given, either way.
///
/// Errors: after [`IoError::Down`] everything works again once the interface is up. After
/// [`IoError::Gone`] remove the descriptor from the poll set (it reports an error permanently);
/// [`reopen`](Self::reopen) restores the same object when an interface of that name exists again. A
/// deleted interface may be reported only as down. A caller that must notice the deletion calls
/// [`link`](Self::link) from time to time, or on an event of a [monitor](monitor::LinkMonitor).
pub trait PacketIo: AsFd + Send {
    /// The interface as it was given.
    fn interface(&self) -> &Interface;

    /// The backend of this object.
    fn backend(&self) -> Backend;

    /// Present index, MTU, address and state of the interface.
    fn link(&self) -> Result<LinkInfo, IoError>;

    /// Takes up to one batch of frames and returns their number, 0 if none waits. Frees the frames
    /// of the previous call.
    fn recv(&mut self) -> Result<usize, IoError>;

    /// Frame `index` of the last [`recv`](Self::recv).
    ///
    /// # Panics
    /// If `index` is not below the number that `recv` returned.
    fn frame(&mut self, index: usize) -> RxFrame<'_>;

    /// Sends frames from the caller's memory and returns how many were handled: accepted by the
    /// device, or dropped and counted because the device refuses their content. The rest did not
    /// fit; offer it again when the descriptor is writable, or drop it.
    fn send(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, IoError>;

    /// Reserves transmit memory for a frame of `len` bytes, with undefined content. `None`,
    /// counting the frame as dropped, if there is no room even after a flush or the frame is too
    /// long.
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Queues the first `len` bytes of the last [`reserve`](Self::reserve). Does nothing without a
    /// reservation that is at least as long.
    fn commit(&mut self, len: usize);

    /// Sends the committed frames. Frames that do not fit stay queued ([`pending`](Self::pending));
    /// after an error none does.
    fn flush(&mut self) -> Result<(), IoError>;

    /// Number of committed frames that wait; flush again when the descriptor is writable.
    fn pending(&self) -> usize;

    /// A descriptor that is writable when there is room to send, for callers that only wait for
    /// that; the readiness of [`AsFd::as_fd`] may combine both directions.
    fn sender(&self) -> BorrowedFd<'_>;

    /// Switches receive timestamps ([`RxFrame::came`]) on or off, for packet sockets. They cost
    /// some percent, so enable them only where needed.
    fn set_stamps(&mut self, _on: bool) {}

    /// Replaces the receive filter without losing frames that both filters accept. AF_XDP opened
    /// with a filter must be given one; opened without a filter it accepts none.
    fn set_filter(&mut self, filter: Option<&Filter>) -> Result<(), IoError>;

    /// Returns the counters, after reading the kernel's drops.
    fn stats(&mut self) -> Stats;

    /// Binds to the interface of the same name again, after it was deleted and recreated.
    fn reopen(&mut self) -> Result<(), OpenError>;
}
