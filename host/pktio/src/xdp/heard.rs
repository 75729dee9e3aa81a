//! A packet socket beside the AF_XDP socket, for what the kernel is to have as well: ICMP errors, which are about
//! its connections as often as about ours. It also tells that the interface is down or gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::{AfPacket, Config, Filter, Interface, IoError, OpenError, PacketIo, RxFrame};

/// Octets of its queue: errors are rare.
const RX_BYTES: usize = 256 << 10;
/// It sends nothing.
const TX_BYTES: usize = 64 << 10;
const BATCH: usize = 16;
/// Under load it is looked at once in so many batches of the other socket.
const EVERY: u32 = 32;

/// The packet socket, and a descriptor that is readable when either socket is.
pub(super) struct Heard {
    io: AfPacket,
    epoll: OwnedFd,
    calls: u32,
    writable: bool,
}

impl Heard {
    pub(super) fn open(
        interface: &Interface,
        filter: &Filter,
        config: &Config,
        xdp: BorrowedFd<'_>,
    ) -> Result<Heard, OpenError> {
        let config = Config {
            batch: BATCH,
            rx_bytes: RX_BYTES,
            tx_bytes: TX_BYTES,
            promiscuous: false,
            filter: Some(filter.heard()?),
            share: None,
            ..config.clone()
        };
        let io = AfPacket::open(interface, config)?;
        let os = |operation, source| OpenError::Os { interface: interface.to_string(), operation, source };
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|e| os("epoll_create1", e.into()))?;
        let mut heard = Heard { io, epoll, calls: 0, writable: false };
        heard.watch(xdp).map_err(|e| os("epoll_ctl", e))?;
        Ok(heard)
    }

    /// Adds both sockets to the descriptor.
    fn watch(&mut self, xdp: BorrowedFd<'_>) -> io::Result<()> {
        self.writable = false;
        for fd in [xdp, self.io.as_fd()] {
            epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(())
    }

    /// Binds to the interface that is there now, beside another AF_XDP socket. The descriptor stays.
    pub(super) fn reopen(&mut self, xdp: BorrowedFd<'_>) -> Result<(), OpenError> {
        // The sockets that go leave the set by themselves.
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

    /// Whether to be woken when the AF_XDP socket takes frames again.
    pub(super) fn want_writable(&mut self, xdp: BorrowedFd<'_>, wanted: bool) {
        if std::mem::replace(&mut self.writable, wanted) != wanted {
            let events = if wanted { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            // It is in the set: nothing can fail but memory, and then the next packet wakes.
            let _ = epoll::modify(&self.epoll, xdp, EventData::new_u64(0), events);
        }
    }

    pub(super) fn set_filter(&mut self, filter: &Filter) -> Result<(), IoError> {
        self.io.set_filter(Some(filter))
    }

    /// What was heard, looked for if there was nothing else to do, or not for long.
    pub(super) fn recv(&mut self, idle: bool) -> Result<usize, IoError> {
        self.calls = self.calls.wrapping_add(1);
        if !idle && !self.calls.is_multiple_of(EVERY) {
            return Ok(0);
        }
        self.io.recv().inspect_err(|e| {
            if matches!(e, IoError::Gone(_)) {
                // It would be readable for ever.
                let _ = epoll::delete(&self.epoll, self.io.as_fd());
            }
        })
    }

    pub(super) fn frame(&mut self, index: usize) -> RxFrame<'_> {
        self.io.frame(index)
    }

    /// Frames lost because its queue was full.
    pub(super) fn dropped(&mut self) -> u64 {
        self.io.stats().rx_dropped
    }
}
