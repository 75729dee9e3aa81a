//! Packet I/O on a Linux interface: whole Ethernet frames in batches, behind one trait.
//!
//! [`PacketIo`] is what the embedded switch's ports, the link emulator and the host stack use. Two
//! mechanisms implement it:
//!
//! - [`AfPacket`]: a packet socket read and written with `recvmmsg`/`sendmmsg`. Works on every
//!   interface, adds little delay, and leaves the kernel's own stack in place beside it.
//! - [`AfXdp`]: an AF_XDP socket. Takes the frames of one queue that the receive filter accepts, or all of them, away
//!   from the kernel, and needs the peer of a veth to complete its checksums and tags itself.
//!
//! [`IoChoice`] opens either, or the second where it can be had.
//!
//! What a frame looks like is the same for both: VLAN tag in its place, no checksum left half done
//! (unless asked for, see [`ChecksumPolicy`]), never longer than the sender's segment size (large
//! segments that a local sender left to "the hardware" are cut here).
//!
//! Nothing here blocks: wait on [`AsFd::as_fd`] with poll or epoll, then [`PacketIo::recv`]. Nothing
//! here grows: receive and transmit memory is set by [`Config`] when the interface is opened.

mod af_packet;
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
pub use checksum::{complete, internet_sum};
pub use choice::{IoChoice, Opened};
pub use error::{IoError, OpenError};
pub use filter::Filter;
pub use frame::{Checksum, RxFrame, Segmentation, SegmentationKind, TxFrame};
pub use interface::{Interface, in_netns};
pub use link::LinkInfo;
pub use xdp::AfXdp;

/// Smallest Ethernet frame that is accepted for sending: the header alone (octets).
pub const MIN_FRAME: usize = 14;

/// Which mechanism moves the frames.
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
    /// Finish the sum before the frame is handed over. What a switch wants.
    Complete,
    /// Hand the frame over as it is and say so in [`RxFrame::checksum`]. What a host wants, which
    /// would only verify the sum, and a link, which passes the note on.
    Report,
}

/// How an interface is opened.
#[derive(Clone, Debug)]
pub struct Config {
    /// Frames taken or sent in one system call, 1 to 1024.
    pub batch: usize,
    /// Frames that can be [committed](PacketIo::commit) before a flush, if more than a batch (packet sockets only).
    pub queue: usize,
    /// Bound of the kernel's receive queue in octets of its own accounting (about 2 KiB for a frame
    /// of up to 1500 octets).
    pub rx_bytes: usize,
    /// Bound of what was sent but not yet taken by the device, in the same octets.
    pub tx_bytes: usize,
    /// Packet sockets only: what a full queueing discipline refuses is kept and sent once it has room, and less is
    /// handed to it from then on. Else it is dropped, as by a switch.
    pub keep_refused: bool,
    /// What happens to partial checksums on receipt.
    pub checksum: ChecksumPolicy,
    /// Take frames for other stations too.
    pub promiscuous: bool,
    /// Send around the interface's queueing discipline. Off where a shaper stands on the interface.
    pub qdisc_bypass: bool,
    /// Packet sockets only: the mark of what is sent (`SO_MARK`), by which programs on the interface know it.
    pub mark: u32,
    /// Packet sockets only: the one EtherType whose frames are taken, 0 for none; what is another costs the kernel nothing.
    pub ether_type: Option<u16>,
    /// Which frames reach the socket; all if `None`.
    pub filter: Option<Filter>,
    /// Packet sockets only, AF_XDP refuses it: sockets of one interface with the same number share its frames, each
    /// flow going to one of them.
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

/// Frames counted since the interface was opened; reopening does not reset them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Frames handed to the caller.
    pub rx_frames: u64,
    /// Octets of those frames.
    pub rx_bytes: u64,
    /// Frames the kernel dropped because the receive queue was full.
    pub rx_dropped: u64,
    /// Frames dropped here because they were damaged or could not be cut or completed.
    pub rx_errors: u64,
    /// Frames the device took.
    pub tx_frames: u64,
    /// Octets of those frames.
    pub tx_bytes: u64,
    /// Frames dropped because the transmit queue was full.
    pub tx_dropped: u64,
    /// Frames refused by the device: too long for its MTU, or shorter than an Ethernet header.
    pub tx_errors: u64,
}

/// Whole Ethernet frames in and out of one interface, in batches, without blocking.
///
/// Receiving: [`recv`](Self::recv) says how many frames are at hand; each is reached by index with
/// [`frame`](Self::frame) until the next `recv`, which takes the memory back.
///
/// Sending: either [`send`](Self::send) with frames that lie in the caller's memory, or
/// [`reserve`](Self::reserve), fill, [`commit`](Self::commit), and [`flush`](Self::flush) at the end of
/// the batch, which writes straight into transmit memory. Frames leave in the order in which they
/// were given, whichever way.
///
/// Errors: after [`IoError::Down`] everything works again by itself once the interface is up. After
/// [`IoError::Gone`] the descriptor must leave the poll set (it reports an error for ever) and
/// [`reopen`](Self::reopen) brings the same object back when an interface of that name exists again. An
/// interface that is deleted may be told as down first, and then nothing more: who has to know asks
/// [`link`](Self::link) now and then, or when a [monitor](monitor::LinkMonitor) says something.
pub trait PacketIo: AsFd + Send {
    /// The interface as it was given.
    fn interface(&self) -> &Interface;

    /// The mechanism behind this object.
    fn backend(&self) -> Backend;

    /// Index, MTU, address and state of the interface now.
    fn link(&self) -> Result<LinkInfo, IoError>;

    /// Takes up to one batch of frames and returns their number, 0 if none waits. The frames of the
    /// call before are given up.
    fn recv(&mut self) -> Result<usize, IoError>;

    /// Frame `index` of the last [`recv`](Self::recv).
    ///
    /// # Panics
    /// If `index` is not below the number which that call returned.
    fn frame(&mut self, index: usize) -> RxFrame<'_>;

    /// Sends frames from the caller's memory and returns how many were dealt with: handed to the
    /// device, or dropped and counted because the device refuses them for what they are. The rest
    /// found no room; the caller offers it again when the descriptor is writable, or drops it.
    fn send(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, IoError>;

    /// Room for one frame of `len` octets in transmit memory, its content undefined. `None` if there
    /// is no room even after a flush, or no frame may be that long: the frame is dropped and counted.
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Queues the first `len` octets of the last [`reserve`](Self::reserve). Without a reservation
    /// that is at least as long this does nothing.
    fn commit(&mut self, len: usize);

    /// Hands what was committed to the device. What finds no room stays queued ([`pending`](Self::pending));
    /// after an error nothing does.
    fn flush(&mut self) -> Result<(), IoError>;

    /// Committed frames that wait for room; flush again when the descriptor is writable.
    fn pending(&self) -> usize;

    /// The descriptor that is writable when there is room to send, for those who wait for nothing else:
    /// [`AsFd::as_fd`] may be one that speaks of both.
    fn sender(&self) -> BorrowedFd<'_>;

    /// Whether frames that come are to say [when they came](RxFrame::came); a packet socket's do. It costs some
    /// percent, so not unless it is of use.
    fn set_stamps(&mut self, _on: bool) {}

    /// Replaces the receive filter at once, without losing frames that both accept. AF_XDP opened with a filter must
    /// be given one, opened without it takes none.
    fn set_filter(&mut self, filter: Option<&Filter>) -> Result<(), IoError>;

    /// Counters; asks the kernel for its drops.
    fn stats(&mut self) -> Stats;

    /// Binds to the interface of the same name again, after it vanished and came back.
    fn reopen(&mut self) -> Result<(), OpenError>;
}
