//! A packet socket beside the AF_XDP socket, for frames that the kernel needs too: ICMP errors,
//! which concern its connections as often as ours. It also detects that the interface is down or
//! gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::{AfPacket, Config, Filter, Interface, IoError, OpenError, PacketIo, RxFrame};

/// Bytes of its receive queue: errors are rare.
const RX_BYTES: usize = 256 << 10;
/// It never sends.
const TX_BYTES: usize = 64 << 10;
const BATCH: usize = 16;
/// Under load it is polled once in this many batches of the AF_XDP socket.
const EVERY: u32 = 32;

/// The packet socket, and a descriptor that is readable when either socket is.
pub(super) struct CopySocket {
    io: AfPacket,
    epoll: OwnedFd,
    calls: u32,
    writable: bool,
}

impl CopySocket {
    pub(super) fn open(
        interface: &Interface,
        filter: &Filter,
        config: &Config,
        xdp: BorrowedFd<'_>,
    ) -> Result<CopySocket, OpenError> {
        let config = Config {
            batch: BATCH,
            rx_bytes: RX_BYTES,
            tx_bytes: TX_BYTES,
            promiscuous: false,
            filter: Some(filter.copied()?),
            share: None,
            ..config.clone()
        };
        let io = AfPacket::open(interface, config)?;
        let os = |operation, source| OpenError::Os { interface: interface.to_string(), operation, source };
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|e| os("epoll_create1", e.into()))?;
        let mut copied = CopySocket { io, epoll, calls: 0, writable: false };
        copied.watch(xdp).map_err(|e| os("epoll_ctl", e))?;
        Ok(copied)
    }

    /// Adds both sockets to the descriptor.
    fn watch(&mut self, xdp: BorrowedFd<'_>) -> io::Result<()> {
        self.writable = false;
        for fd in [xdp, self.io.as_fd()] {
            epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(())
    }

    /// Binds to the present interface, beside a new AF_XDP socket. The descriptor stays the same.
    pub(super) fn reopen(&mut self, xdp: BorrowedFd<'_>) -> Result<(), OpenError> {
        // Closed sockets leave the epoll set themselves.
        self.io.reopen()?;
        self.watch(xdp).map_err(|source| OpenError::Os {
            interface: self.io.interface().to_string(),
            operation: "epoll_ctl",
            source,
        })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Sets whether to wake up when the AF_XDP socket can send again.
    pub(super) fn want_writable(&mut self, xdp: BorrowedFd<'_>, wanted: bool) {
        if std::mem::replace(&mut self.writable, wanted) != wanted {
            let events = if wanted { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            // The socket is in the set: only lack of memory can fail, and then the next packet
            // wakes us.
            let _ = epoll::modify(&self.epoll, xdp, EventData::new_u64(0), events);
        }
    }

    pub(super) fn set_filter(&mut self, filter: &Filter) -> Result<(), IoError> {
        self.io.set_filter(Some(filter))
    }

    /// Receives copied frames, if the AF_XDP socket was idle or this socket was not polled for
    /// long.
    pub(super) fn recv(&mut self, idle: bool) -> Result<usize, IoError> {
        self.calls = self.calls.wrapping_add(1);
        if !idle && !self.calls.is_multiple_of(EVERY) {
            return Ok(0);
        }
        self.io.recv().inspect_err(|e| {
            if matches!(e, IoError::Gone(_)) {
                // It would stay readable permanently.
                let _ = epoll::delete(&self.epoll, self.io.as_fd());
            }
        })
    }

    pub(super) fn frame(&mut self, index: usize) -> RxFrame<'_> {
        self.io.frame(index)
    }

    /// Frames lost to a full queue.
    pub(super) fn dropped(&mut self) -> u64 {
        self.io.stats().rx_dropped
    }
}
