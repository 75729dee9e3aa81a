//! The packet socket: `recvmmsg` and `sendmmsg` on `AF_PACKET`.
//!
//! `recvmmsg` is preferred to a mapped ring because the ring's block timer adds more than a
//! millisecond of delay.

mod bound;
mod rx;
mod socket;
mod tx;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::{
    Backend, Config, Filter, Interface, IoError, LinkInfo, OpenError, PacketIo, RxFrame, Stats, TxFrame,
    in_netns,
};
use bound::Bound;
use rx::Receiver;
#[cfg(test)]
pub(crate) use socket::set_filter;
use tx::Transmitter;

/// Room before each frame for the virtio header and a reinserted VLAN tag; also keeps frames on
/// cache line boundaries.
const HEADROOM: usize = 64;

/// Frame bytes of a slot for this MTU: Ethernet header and two tags, rounded so that slots start on
/// cache lines but at different offsets of their pages.
fn slot_frame(mtu: usize) -> usize {
    (mtu + 14 + 8).max(1600).next_multiple_of(64)
}

/// A packet socket bound to one interface.
pub struct AfPacket {
    fd: OwnedFd,
    interface: Interface,
    name: String,
    /// Kernel index of the interface this socket is bound to.
    index: u32,
    config: Config,
    stamps: bool,
    rx: Receiver,
    tx: Transmitter,
    /// `None`: frames that a full queueing discipline refuses are dropped.
    bound: Option<Bound>,
    stats: Stats,
}

impl AfPacket {
    /// Opens and binds the socket; from here on frames are queued.
    pub fn open(interface: &Interface, config: Config) -> Result<Self, OpenError> {
        let batch = config.batch.max(config.queue);
        if config.batch == 0 || batch > 1024 {
            return Err(OpenError::Config(format!("batch of {batch} frames: 1 to 1024")));
        }
        let (fd, info) = in_netns(interface.netns(), || socket::open(interface, &config))??;
        let mtu = (info.mtu as usize).min(65535);
        let memory = |source| os(interface, "mmap", source);
        Ok(AfPacket {
            fd,
            interface: interface.clone(),
            name: interface.to_string(),
            index: info.index,
            rx: Receiver::new(config.batch, slot_frame(mtu), config.checksum).map_err(memory)?,
            tx: Transmitter::new(batch, slot_frame(mtu)).map_err(memory)?,
            bound: bound(&config),
            config,
            stamps: false,
            stats: Stats::default(),
        })
    }

    /// A number for [`Config::share`] that no other process's sockets use.
    pub fn unused_share(interface: &Interface) -> Result<u16, OpenError> {
        in_netns(interface.netns(), || socket::unused_share(interface))?
    }

    /// Classifies an error. A deleted interface is first reported as down, so check whether it
    /// exists.
    fn error(&self, operation: &'static str, source: io::Error) -> IoError {
        let error = IoError::from_os(&self.name, operation, source);
        let gone = || {
            LinkInfo::query(self.fd.as_raw_fd(), self.interface.name())
                .map_or(true, |l| l.index != self.index)
        };
        match error {
            IoError::Down(name) if gone() => IoError::Gone(name),
            other => other,
        }
    }
}

/// Initial send limit of a socket that keeps refused frames.
fn bound(config: &Config) -> Option<Bound> {
    config.keep_refused.then(|| Bound::new(config.tx_bytes))
}

/// An [`OpenError::Os`].
fn os(interface: &Interface, operation: &'static str, source: io::Error) -> OpenError {
    OpenError::Os { interface: interface.to_string(), operation, source }
}

impl AsFd for AfPacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl PacketIo for AfPacket {
    fn interface(&self) -> &Interface {
        &self.interface
    }

    fn backend(&self) -> Backend {
        Backend::AfPacket
    }

    fn link(&self) -> Result<LinkInfo, IoError> {
        let fd = self.fd.as_raw_fd();
        let info = LinkInfo::query(fd, self.interface.name()).map_err(|e| self.error("link state", e))?;
        // An interface that was in another namespace meanwhile can have its old index again, but
        // the socket is no longer bound to it.
        let bound = socket::bound_to(self.fd.as_fd()).map_err(|e| self.error("getsockname", e))?;
        if (info.index, bound) == (self.index, self.index) {
            Ok(info)
        } else {
            Err(IoError::Gone(self.name.clone()))
        }
    }

    fn recv(&mut self) -> Result<usize, IoError> {
        self.rx.recv(self.fd.as_fd(), &mut self.stats).map_err(|e| self.error("recvmmsg", e))
    }

    fn frame(&mut self, index: usize) -> RxFrame<'_> {
        self.rx.frame(index)
    }

    fn send(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, IoError> {
        // Frames committed earlier are sent first; if they do not fit, these do not either.
        self.flush()?;
        if self.tx.pending() > 0 {
            return Ok(0);
        }
        self.tx
            .send(self.fd.as_fd(), frames, &mut self.bound, &mut self.stats)
            .map_err(|e| self.error("sendmmsg", e))
    }

    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.tx.slot_len() {
            // The MTU was raised after opening, or the frame is too long for any device.
            let limit = self.link().map_or(0, |l| slot_frame((l.mtu as usize).min(65535)));
            let drained = len <= limit && self.flush().is_ok() && self.tx.pending() == 0;
            if !drained || self.tx.grow(limit).is_err() {
                self.stats.tx_errors += 1;
                return None;
            }
        }
        // After a failed flush the queue is still full, which the next line detects.
        if self.tx.is_full() && (self.flush().is_err() || self.tx.is_full()) {
            self.stats.tx_dropped += 1;
            return None;
        }
        self.tx.reserve(len)
    }

    fn commit(&mut self, len: usize) {
        self.tx.commit(len);
    }

    fn flush(&mut self) -> Result<(), IoError> {
        if self.tx.pending() == 0 {
            return Ok(());
        }
        self.tx
            .flush(self.fd.as_fd(), &mut self.bound, &mut self.stats)
            .map_err(|e| self.error("sendmmsg", e))
    }

    fn pending(&self) -> usize {
        self.tx.pending()
    }

    fn sender(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn set_stamps(&mut self, on: bool) {
        self.stamps = on;
        // Without timestamps, frames count as just received.
        let _ = socket::set_stamps(self.fd.as_fd(), on);
    }

    fn set_filter(&mut self, filter: Option<&Filter>) -> Result<(), IoError> {
        socket::set_filter(self.fd.as_fd(), filter).map_err(|e| self.error("SO_ATTACH_FILTER", e))?;
        self.config.filter = filter.cloned();
        Ok(())
    }

    fn stats(&mut self) -> Stats {
        // Reading resets the kernel's counter.
        self.stats.rx_dropped += socket::drops(self.fd.as_fd());
        self.stats
    }

    fn reopen(&mut self) -> Result<(), OpenError> {
        let (fd, info) = in_netns(self.interface.netns(), || socket::open(&self.interface, &self.config))??;
        self.stats.rx_dropped += socket::drops(self.fd.as_fd());
        self.tx.clear();
        self.bound = bound(&self.config);
        (self.fd, self.index) = (fd, info.index);
        self.set_stamps(self.stamps);
        Ok(())
    }
}
