//! What a worker is told: ports that come and go, frames from controllers, and a descriptor to wake it by.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, SyncSender};

use rivulet_link::Settings;
use rivulet_p4rt::TraceReport;
use rivulet_pktio::PacketIo;
use rustix::event::EventfdFlags;

use crate::pcap::PortPcap;

/// Packets of controllers that may wait for the packet path.
pub(super) const PACKET_OUTS: usize = 1024;

/// Counters and state of a port, written by the packet path.
#[derive(Debug, Default)]
pub struct PortShared {
    /// Link up.
    pub up: AtomicBool,
    /// Frames in.
    pub rx_packets: AtomicU64,
    /// Their octets.
    pub rx_bytes: AtomicU64,
    /// Frames lost on their way in.
    pub rx_dropped: AtomicU64,
    /// Frames out.
    pub tx_packets: AtomicU64,
    /// Their octets.
    pub tx_bytes: AtomicU64,
    /// Frames lost on their way out.
    pub tx_dropped: AtomicU64,
}

/// A port on its way to the packet path.
pub struct NewPort {
    /// Its number.
    pub number: u32,
    /// Its packet I/O.
    pub io: Box<dyn PacketIo>,
    /// Shaping of what leaves it.
    pub link: Option<Settings>,
    /// Files for its packets.
    pub pcap: Option<PortPcap>,
    /// What others see of it.
    pub shared: Arc<PortShared>,
}

/// What the packet path is asked to do between packets.
pub enum Command {
    /// Attach a port.
    Add(Box<NewPort>, SyncSender<()>),
    /// Detach a port; its descriptor is closed by whoever asked.
    Remove(u32, SyncSender<Option<Box<dyn PacketIo>>>),
    /// Shape a port.
    Link(u32, Option<Settings>, SyncSender<bool>),
    /// Bring the counters up to date.
    Refresh(SyncSender<()>),
    /// Trace one frame, with effect on the state or (true) without.
    Trace(u32, Vec<u8>, bool, SyncSender<TraceReport>),
}

/// The packet path's end.
pub struct Inbox {
    /// Commands.
    pub commands: Receiver<Command>,
    /// Frames from controllers.
    pub packet_outs: Receiver<Vec<u8>>,
    /// Readable when there is something in either.
    pub wake: Arc<OwnedFd>,
}

impl Inbox {
    /// Makes the wake-up descriptor unreadable again; to be called before the channels are read.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    /// Makes it readable: something was left in a channel.
    pub fn ring(&self) {
        ring(&self.wake);
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Makes an eventfd readable; one whose counter is full is so already.
pub(super) fn ring(eventfd: &OwnedFd) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

/// An eventfd that does not block.
pub(super) fn eventfd() -> std::io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}
