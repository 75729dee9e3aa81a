//! AF_XDP in copy mode, on queue 0 of an interface.
//!
//! An XDP program ([`rivulet_bpf::redirect`]) gives what the receive filter takes to the socket, and the rest to the kernel. Without a
//! filter it takes *every* frame of the queue. What the kernel is to have too ([`Rule::IcmpError`](crate::filter::Rule))
//! is heard through a packet socket beside it.
//!
//! What arrives carries no note of a partial checksum or of a tag that was taken out, so the peer of a veth must do both
//! itself; that is checked when the interface is opened. A tag in the frame is stepped over by the filter, so a rule
//! means the same as on a packet socket. What is sent goes around the queueing discipline.
//!
//! The program is attached through a BPF link, which goes away with this process however it ends.

mod attach;
mod heard;
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
use heard::Heard;
use ring::Desc;
#[cfg(test)]
pub(crate) use socket::receiving as receiving_socket;
use socket::{CHUNK, Socket};

/// Longest frame: a chunk less the room that XDP keeps in front.
const MAX_FRAME: usize = CHUNK - 256;
/// Longest payload of a frame that may have a tag.
const MAX_MTU: u32 = MAX_FRAME as u32 - 18;

/// An AF_XDP socket bound to one interface.
pub struct AfXdp {
    socket: Socket,
    /// What the kernel has too; none without a filter.
    heard: Option<Heard>,
    /// A socket of the same namespace that can be asked about interfaces; this kind cannot.
    control: OwnedFd,
    interface: Interface,
    name: String,
    index: u32,
    config: Config,
    /// Frames of the last `recv`; those that were heard follow.
    received: Vec<Desc>,
    /// The interface was deleted, and nothing was reopened since.
    gone: bool,
    /// Chunks free for sending.
    free: Vec<u64>,
    /// The reserved chunk and the octets reserved in it.
    reserved: Option<(u64, usize)>,
    /// Frames before the socket was opened anew, and what the kernel dropped until then.
    stats: Stats,
    kernel_drops_before: u64,
}

impl AfXdp {
    /// Opens, binds and attaches; what the filter takes, or every frame of the interface, comes here from now on.
    ///
    /// # Errors
    /// [`OpenError::Unsupported`] if the interface cannot be used this way, with what to change: several
    /// receive queues, an MTU beyond a chunk, offloads of a veth's peer, another process's program, [`Config::share`].
    pub fn open(interface: &Interface, config: Config) -> Result<Self, OpenError> {
        if !(1..=1024).contains(&config.batch) {
            return Err(OpenError::Config(format!("batch of {} frames: 1 to 1024", config.batch)));
        }
        if config.share.is_some() {
            let why = "AF_XDP: one socket has the queue, several workers cannot share it; use AF_PACKET";
            return Err(OpenError::Unsupported(interface.to_string(), why.into()));
        }
        let missing = |e: Missing| OpenError::Unsupported(interface.to_string(), e.to_string());
        kernel::require(Feature::Xdp).map_err(missing)?;
        let (socket, control, info) = in_netns(interface.netns(), || open_socket(interface, &config))??;
        let heard = match &config.filter {
            Some(filter) => Some(Heard::open(interface, filter, &config, socket.as_fd())?),
            None => None,
        };
        Ok(AfXdp {
            heard,
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
            // An unbound socket says ENXIO, a deleted interface ENETDOWN: ask what is true.
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

    /// Takes back chunks that were sent.
    fn reclaim(&mut self) {
        while let Some(chunk) = self.socket.completed() {
            self.free.push(chunk);
        }
    }

    /// Gives the frames of the last batch back to the kernel.
    fn release(&mut self) {
        for desc in self.received.drain(..) {
            // As many chunks are out as the ring holds: there is room.
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

/// Checks and opens; inside the interface's namespace.
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
        self.heard.as_ref().map_or(self.socket.as_fd(), Heard::as_fd)
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
        // One that was raised since is of no use here.
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
        let result = match &mut self.heard {
            // A packet socket is told all that this one is.
            Some(heard) => heard.recv(idle),
            None if idle => self.socket.take_error().map_or(Ok(0), |e| Err(self.error("AF_XDP", e))),
            None => Ok(0),
        };
        self.gone |= matches!(result, Err(IoError::Gone(_)));
        match result {
            Ok(heard) => {
                self.stats.rx_frames += heard as u64;
                Ok(self.received.len() + heard)
            }
            // What came before is handed over first; gone is told again.
            Err(_) if !idle => Ok(self.received.len()),
            Err(e) => Err(e),
        }
    }

    fn frame(&mut self, index: usize) -> RxFrame<'_> {
        let taken = self.received.len();
        if let Some(heard) = self.heard.as_mut().filter(|_| index >= taken) {
            return heard.frame(index - taken);
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
        // A failed flush leaves no room, which the next line finds.
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
        if let Some(heard) = &mut self.heard {
            heard.want_writable(self.socket.as_fd(), self.socket.pending() > 0);
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
        match (filter, &mut self.heard) {
            // More is heard before less is taken.
            (Some(filter), Some(heard)) => {
                let heard_part = filter.heard().map_err(|e| os(("receive filter", io::Error::other(e))))?;
                heard.set_filter(&heard_part)?;
            }
            (None, None) => return Ok(()),
            // Who opens without a filter has one descriptor to wait for, and goes on with that.
            (_, _) => return Err(without()),
        }
        self.socket.set_filter(filter).map_err(os)?;
        self.config.filter = filter.cloned();
        Ok(())
    }

    fn stats(&mut self) -> Stats {
        let heard = self.heard.as_mut().map_or(0, Heard::dropped);
        let rx_dropped = self.kernel_drops_before + self.socket.kernel_drops() + heard;
        Stats { rx_dropped, ..self.stats }
    }

    fn reopen(&mut self) -> Result<(), OpenError> {
        let (socket, control, info) =
            in_netns(self.interface.netns(), || open_socket(&self.interface, &self.config))??;
        if let Some(heard) = &mut self.heard {
            heard.reopen(socket.as_fd())?;
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
