//! AF_XDP in copy mode, on queue 0 of an interface.
//!
//! An XDP program ([`rivulet_bpf::redirect`]) redirects the frames that the receive filter takes to
//! the socket and passes the rest to the kernel. Without a filter it takes *every* frame of the
//! queue. Frames that the kernel needs too ([`Rule::IcmpError`](crate::filter::Rule)) arrive as
//! copies through a packet socket.
//!
//! Received frames carry no metadata about a partial checksum or a removed tag, so the peer of a
//! veth must complete both itself; opening the interface checks that. The filter skips a VLAN tag,
//! so that a rule means the same as on a packet socket. Sent frames bypass the queueing discipline.
//!
//! The program is attached through a BPF link, which the kernel removes with this process however
//! it ends.

mod attach;
mod copies;
mod peer;
mod ring;
mod socket;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rivulet_bpf::kernel::{self, Feature, Missing};
use rustix::net::SocketFlags;

use crate::{
    Backend, Checksum, Config, Filter, Interface, IoError, LinkInfo, OpenError, PacketIo, RxFrame, Stats,
    TxFrame, complete, in_netns, netlink,
};
use copies::CopySocket;
use ring::Desc;
#[cfg(test)]
pub(crate) use socket::receiving as receiving_socket;
use socket::{CHUNK, Socket};

/// Longest frame: a chunk without XDP's headroom.
const MAX_FRAME: usize = CHUNK - 256;
/// Largest MTU, leaving room for the Ethernet header and a VLAN tag.
const MAX_MTU: u32 = MAX_FRAME as u32 - 18;

/// An AF_XDP socket bound to one interface.
pub struct AfXdp {
    socket: Socket,
    /// Socket for copies of frames that the kernel needs too; `None` without a filter.
    copied: Option<CopySocket>,
    /// A socket of the same namespace for interface queries, which AF_XDP sockets do not support.
    control: OwnedFd,
    interface: Interface,
    name: String,
    index: u32,
    config: Config,
    /// Frames of the last `recv`; copied frames follow them.
    received: Vec<Desc>,
    /// The interface was deleted and not reopened since.
    gone: bool,
    /// Chunks free for sending.
    free: Vec<u64>,
    /// The reserved chunk and the reserved bytes in it.
    reserved: Option<(u64, usize)>,
    /// Counters of earlier sockets of this object, and the kernel's drops until then.
    stats: Stats,
    kernel_drops_before: u64,
}

impl AfXdp {
    /// Opens, binds and attaches; from here on frames that the filter takes, or all frames, arrive
    /// here.
    ///
    /// # Errors
    /// [`OpenError::Unsupported`] if the interface does not support this, with the remedy: several
    /// receive queues, an MTU beyond a chunk, offloads of a veth's peer, another process's program,
    /// [`Config::share`].
    pub fn open(interface: &Interface, config: Config) -> Result<Self, OpenError> {
        if !(1..=1024).contains(&config.batch) {
            return Err(OpenError::Config(format!("batch of {} frames: 1 to 1024", config.batch)));
        }
        if config.share.is_some() {
            let why = "AF_XDP: several workers cannot share the one socket of a queue; use AF_PACKET";
            return Err(OpenError::Unsupported(interface.to_string(), why.into()));
        }
        let missing = |e: Missing| OpenError::Unsupported(interface.to_string(), e.to_string());
        kernel::require(Feature::Xdp).map_err(missing)?;
        let (socket, control, info) = in_netns(interface.netns(), || open_socket(interface, &config))??;
        let copied = match &config.filter {
            Some(filter) => Some(CopySocket::open(interface, filter, &config, socket.as_fd())?),
            None => None,
        };
        Ok(AfXdp {
            copied,
            gone: false,
            free: socket.transmit_chunks().collect(),
            control,
            received: Vec::with_capacity(config.batch),
            socket,
            interface: interface.clone(),
            name: interface.to_string(),
            index: info.index,
            config,
            reserved: None,
            stats: Stats::default(),
            kernel_drops_before: 0,
        })
    }

    fn error(&self, operation: &'static str, source: io::Error) -> IoError {
        let error = IoError::from_os(&self.name, operation, source);
        match error {
            // An unbound socket returns ENXIO and a deleted interface ENETDOWN: query the actual
            // state.
            IoError::Down(name) | IoError::Gone(name) => match self.query() {
                Ok(info) if info.index == self.index => IoError::Down(name),
                _ => IoError::Gone(name),
            },
            other => other,
        }
    }

    fn query(&self) -> io::Result<LinkInfo> {
        LinkInfo::query(self.control.as_raw_fd(), self.interface.name())
    }

    /// Reclaims chunks of sent frames.
    fn reclaim(&mut self) {
        while let Some(chunk) = self.socket.completed() {
            self.free.push(chunk);
        }
    }

    /// Returns the frames of the last batch to the kernel.
    fn release(&mut self) {
        for desc in self.received.drain(..) {
            // The ring has room for all chunks.
            self.socket.refill(desc.addr);
        }
        self.socket.publish_fill();
    }

    /// Copies one frame into transmit memory; false if there is no room.
    fn queue(&mut self, frame: &TxFrame<'_>) -> bool {
        let len = frame.len();
        if !(crate::MIN_FRAME..=MAX_FRAME).contains(&len) || frame.segmentation.is_some() {
            self.stats.tx_errors += 1;
            return true;
        }
        let Some(chunk) = self.free.pop() else { return false };
        let room = self.socket.chunk_mut(chunk, len);
        room[..frame.head.len()].copy_from_slice(frame.head);
        room[frame.head.len()..].copy_from_slice(frame.body);
        if let Checksum::Partial { start, offset } = frame.checksum
            && !complete(room, start, offset)
        {
            self.stats.tx_errors += 1;
            self.free.push(chunk);
            return true;
        }
        self.push(chunk, len);
        true
    }

    fn push(&mut self, chunk: u64, len: usize) {
        self.socket.transmit(Desc { addr: chunk, len: len as u32, options: 0 });
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += len as u64;
    }

    /// Drops the reservation and makes room.
    fn prepare(&mut self) {
        if let Some((chunk, _)) = self.reserved.take() {
            self.free.push(chunk);
        }
        if self.free.is_empty() {
            self.reclaim();
        }
    }
}

/// Checks the interface and opens the socket; runs inside the interface's namespace.
fn open_socket(interface: &Interface, config: &Config) -> Result<(Socket, OwnedFd, LinkInfo), OpenError> {
    let os = |operation, source| OpenError::Os { interface: interface.to_string(), operation, source };
    let refuse = |why: String| OpenError::Unsupported(interface.to_string(), why);
    let fd = socket::new().map_err(|e| os("socket(AF_XDP)", e))?;
    let control = netlink::socket(SocketFlags::empty(), 0).map_err(|e| os("rtnetlink", e))?;
    let info =
        LinkInfo::query(control.as_raw_fd(), interface.name()).map_err(|e| match e.raw_os_error() {
            Some(libc::ENODEV) => OpenError::NoSuchInterface(interface.to_string()),
            _ => os("link state", e),
        })?;
    if info.mtu > MAX_MTU {
        return Err(refuse(format!("MTU {}: AF_XDP takes at most {MAX_MTU}", info.mtu)));
    }
    peer::check(interface.name(), info.index).map_err(refuse)?;
    let socket =
        Socket::open(fd, info.index, interface.name(), config).map_err(|(operation, e)| os(operation, e))?;
    Ok((socket, control, info))
}

impl AsFd for AfXdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.copied.as_ref().map_or(self.socket.as_fd(), CopySocket::as_fd)
    }
}

impl PacketIo for AfXdp {
    fn interface(&self) -> &Interface {
        &self.interface
    }

    fn backend(&self) -> Backend {
        Backend::AfXdp
    }

    fn link(&self) -> Result<LinkInfo, IoError> {
        let info = self.query().map_err(|e| self.error("link state", e))?;
        if info.index != self.index {
            return Err(IoError::Gone(self.name.clone()));
        }
        // An MTU raised later cannot be used.
        Ok(LinkInfo { mtu: info.mtu.min(MAX_MTU), ..info })
    }

    fn recv(&mut self) -> Result<usize, IoError> {
        self.release();
        if self.gone {
            return Err(IoError::Gone(self.name.clone()));
        }
        while self.received.len() < self.config.batch {
            let Some(desc) = self.socket.receive() else { break };
            self.stats.rx_bytes += u64::from(desc.len);
            self.received.push(desc);
        }
        self.socket.publish_receive();
        self.stats.rx_frames += self.received.len() as u64;
        let idle = self.received.is_empty();
        let result = match &mut self.copied {
            // The packet socket gets the same errors as this one.
            Some(copied) => copied.recv(idle),
            None if idle => self.socket.take_error().map_or(Ok(0), |e| Err(self.error("AF_XDP", e))),
            None => Ok(0),
        };
        self.gone |= matches!(result, Err(IoError::Gone(_)));
        match result {
            Ok(copied) => {
                self.stats.rx_frames += copied as u64;
                Ok(self.received.len() + copied)
            }
            // Deliver earlier frames first; the error is reported again.
            Err(_) if !idle => Ok(self.received.len()),
            Err(e) => Err(e),
        }
    }

    fn frame(&mut self, index: usize) -> RxFrame<'_> {
        let taken = self.received.len();
        if let Some(copied) = self.copied.as_mut().filter(|_| index >= taken) {
            return copied.frame(index - taken);
        }
        let desc = self.received[index];
        let data = self.socket.chunk_mut(desc.addr, desc.len as usize);
        RxFrame { data, checksum: Checksum::Unknown, came: None }
    }

    fn send(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, IoError> {
        self.prepare();
        let mut done = 0;
        while done < frames.len() {
            if self.queue(&frames[done]) {
                done += 1;
                continue;
            }
            self.flush()?;
            self.reclaim();
            if self.free.is_empty() {
                break;
            }
        }
        self.flush()?;
        Ok(done)
    }

    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > MAX_FRAME {
            self.stats.tx_errors += 1;
            return None;
        }
        self.prepare();
        // After a failed flush there is still no room, which the next line detects.
        if self.free.is_empty() && self.flush().is_ok() {
            self.reclaim();
        }
        let Some(chunk) = self.free.pop() else {
            self.stats.tx_dropped += 1;
            return None;
        };
        self.reserved = Some((chunk, len));
        Some(self.socket.chunk_mut(chunk, len))
    }

    fn commit(&mut self, len: usize) {
        let Some((chunk, reserved)) = self.reserved.take() else { return };
        if len > reserved {
            self.free.push(chunk);
        } else if len < crate::MIN_FRAME {
            self.stats.tx_errors += 1;
            self.free.push(chunk);
        } else {
            self.push(chunk, len);
        }
    }

    fn flush(&mut self) -> Result<(), IoError> {
        let result = self.socket.kick().map_err(|e| self.error("sendto", e));
        if let Some(copied) = &mut self.copied {
            copied.want_writable(self.socket.as_fd(), self.socket.pending() > 0);
        }
        result
    }

    fn pending(&self) -> usize {
        self.socket.pending()
    }

    fn sender(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn set_filter(&mut self, filter: Option<&Filter>) -> Result<(), IoError> {
        let os = |(operation, source)| IoError::Os { interface: self.name.clone(), operation, source };
        let without = || os(("receive filter on AF_XDP opened without", io::ErrorKind::Unsupported.into()));
        match (filter, &mut self.copied) {
            // Copy more before taking less.
            (Some(filter), Some(copied)) => {
                let heard_part = filter.copied().map_err(|e| os(("receive filter", io::Error::other(e))))?;
                copied.set_filter(&heard_part)?;
            }
            (None, None) => return Ok(()),
            // Without a filter at opening, the caller's descriptor cannot cover a packet socket
            // later.
            (_, _) => return Err(without()),
        }
        self.socket.set_filter(filter).map_err(os)?;
        self.config.filter = filter.cloned();
        Ok(())
    }

    fn stats(&mut self) -> Stats {
        let copied = self.copied.as_mut().map_or(0, CopySocket::dropped);
        let rx_dropped = self.kernel_drops_before + self.socket.kernel_drops() + copied;
        Stats { rx_dropped, ..self.stats }
    }

    fn reopen(&mut self) -> Result<(), OpenError> {
        let (socket, control, info) =
            in_netns(self.interface.netns(), || open_socket(&self.interface, &self.config))??;
        if let Some(copied) = &mut self.copied {
            copied.reopen(socket.as_fd())?;
        }
        self.kernel_drops_before += self.socket.kernel_drops();
        self.gone = false;
        self.received.clear();
        self.reserved = None;
        self.free = socket.transmit_chunks().collect();
        (self.socket, self.control, self.index) = (socket, control, info.index);
        Ok(())
    }
}
