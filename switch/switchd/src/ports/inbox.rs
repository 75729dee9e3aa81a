//! Input of a worker: commands about ports, packet-outs of controllers, and a wake-up descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, SyncSender};

use rivulet_link::Settings;
use rivulet_p4rt::TraceReport;
use rivulet_pktio::PacketIo;
use rustix::event::EventfdFlags;

use crate::pcap::PortPcap;

/// Packet-outs that can wait for the packet path.
pub(super) const PACKET_OUTS: usize = 1024;

/// Counters and state of a port, written by the packet path.
#[derive(Debug, Default)]
pub struct PortShared {
    /// Whether the link is up.
    pub up: AtomicBool,
    /// Frames received.
    pub rx_packets: AtomicU64,
    /// Bytes received.
    pub rx_bytes: AtomicU64,
    /// Frames lost on receipt.
    pub rx_dropped: AtomicU64,
    /// Frames sent.
    pub tx_packets: AtomicU64,
    /// Bytes sent.
    pub tx_bytes: AtomicU64,
    /// Frames lost on sending.
    pub tx_dropped: AtomicU64,
}

/// A port to be attached.
pub struct NewPort {
    /// Its number.
    pub number: u32,
    /// Its packet I/O.
    pub io: Box<dyn PacketIo>,
    /// Its link's settings.
    pub link: Option<Settings>,
    /// Its pcap files.
    pub pcap: Option<PortPcap>,
    /// Counters and state for other threads.
    pub shared: Arc<PortShared>,
}

/// Commands that the packet path executes between packets.
pub enum Command {
    /// Attach a port.
    Add(Box<NewPort>, SyncSender<()>),
    /// Detach a port and return its packet I/O, which the sender of the command closes.
    Remove(u32, SyncSender<Option<Box<dyn PacketIo>>>),
    /// Shape a port.
    Link(u32, Option<Settings>, SyncSender<bool>),
    /// Update the counters.
    Refresh(SyncSender<()>),
    /// Trace one frame, with effect on the state or (true) without.
    Trace(u32, Vec<u8>, bool, SyncSender<TraceReport>),
}

/// The packet path's receiving ends.
pub struct Inbox {
    /// Commands.
    pub commands: Receiver<Command>,
    /// Frames from controllers.
    pub packet_outs: Receiver<Vec<u8>>,
    /// Readable when either channel may have data.
    pub wake: Arc<OwnedFd>,
}

impl Inbox {
    /// Resets the wake-up descriptor; call it before reading the channels.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    /// Makes the descriptor readable again, because data remain in a channel.
    pub fn ring(&self) {
        ring(&self.wake);
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Makes an eventfd readable; one with a full counter already is.
pub(super) fn ring(eventfd: &OwnedFd) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

/// Creates a non-blocking eventfd.
pub(super) fn eventfd() -> std::io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}
