//! AF_XDP in copy mode, on queue 0 of an interface.
//!
//! An XDP program redirects *every* frame of the queue to the socket; the kernel's own stack sees none
//! of them. What arrives carries no note of a partial checksum or of a tag that was taken out, so the
//! peer of a veth must do both itself; that is checked when the interface is opened.
//!
//! The program is attached through a BPF link, which goes away with this process however it ends.

mod bpf;
mod peer;
mod ring;
mod socket;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::{
    Backend, Checksum, Config, Filter, Interface, IoError, LinkInfo, OpenError, PacketIo, RxFrame, Stats,
    TxFrame, complete, in_netns, netlink,
};
use ring::Desc;
use socket::{CHUNK, Socket};

/// Longest frame: a chunk less the room that XDP keeps in front.
const MAX_FRAME: usize = CHUNK - 256;

/// An AF_XDP socket bound to one interface.
pub struct AfXdp {
    socket: Socket,
    /// A socket of the same namespace that can be asked about interfaces; this kind cannot.
    control: OwnedFd,
    interface: Interface,
    name: String,
    index: u32,
    config: Config,
    /// Frames of the last `recv`.
    received: Vec<Desc>,
    /// Chunks free for sending.
    free: Vec<u64>,
    /// The reserved chunk and the octets reserved in it.
    reserved: Option<(u64, usize)>,
    /// Frames before the socket was opened anew, and what the kernel dropped until then.
    stats: Stats,
    kernel_drops_before: u64,
}

impl AfXdp {
    /// Opens, binds and attaches; every frame of the interface comes here from now on.
    ///
    /// # Errors
    /// [`OpenError::Unsupported`] if the interface cannot be used this way, with what to change: several
    /// receive queues, an MTU beyond a chunk, offloads of a veth's peer, a filter (the frames that it would
    /// leave to the kernel cannot be given back).
    pub fn open(interface: &Interface, config: Config) -> Result<Self, OpenError> {
        if !(1..=1024).contains(&config.batch) {
            return Err(OpenError::Config(format!("batch of {} frames: 1 to 1024", config.batch)));
        }
        if config.filter.is_some() {
            return Err(no_filter(interface));
        }
        let (socket, control, info) = in_netns(interface.netns(), || open_socket(interface, &config))??;
        Ok(AfXdp {
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

fn no_filter(interface: &Interface) -> OpenError {
    let why = "AF_XDP takes every frame from the kernel: a receive filter needs AF_PACKET";
    OpenError::Unsupported(interface.to_string(), why.into())
}

/// Checks and opens; inside the interface's namespace.
fn open_socket(interface: &Interface, config: &Config) -> Result<(Socket, OwnedFd, LinkInfo), OpenError> {
    let os = |operation, source| OpenError::Os { interface: interface.to_string(), operation, source };
    let refuse = |why: String| OpenError::Unsupported(interface.to_string(), why);
    let fd = socket::new().map_err(|e| os("socket(AF_XDP)", e))?;
    let control = netlink::socket(0, 0).map_err(|e| os("rtnetlink", e))?;
    let info =
        LinkInfo::query(control.as_raw_fd(), interface.name()).map_err(|e| match e.raw_os_error() {
            Some(libc::ENODEV) => OpenError::NoSuchInterface(interface.to_string()),
            _ => os("link state", e),
        })?;
    if info.mtu as usize + 18 > MAX_FRAME {
        return Err(refuse(format!("MTU {}: AF_XDP takes at most {}", info.mtu, MAX_FRAME - 18)));
    }
    peer::check(interface.name(), info.index).map_err(refuse)?;
    let socket = Socket::open(fd, info.index, config).map_err(|(operation, e)| os(operation, e))?;
    Ok((socket, control, info))
}

impl AsFd for AfXdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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
        if info.index == self.index { Ok(info) } else { Err(IoError::Gone(self.name.clone())) }
    }

    fn recv(&mut self) -> Result<usize, IoError> {
        self.release();
        while self.received.len() < self.config.batch {
            let Some(desc) = self.socket.receive() else { break };
            self.stats.rx_bytes += u64::from(desc.len);
            self.received.push(desc);
        }
        self.socket.publish_receive();
        self.stats.rx_frames += self.received.len() as u64;
        if self.received.is_empty()
            && let Some(e) = self.socket.take_error()
        {
            return Err(self.error("AF_XDP", e));
        }
        Ok(self.received.len())
    }

    fn frame(&mut self, index: usize) -> RxFrame<'_> {
        let desc = self.received[index];
        let data = self.socket.chunk_mut(desc.addr, desc.len as usize);
        RxFrame { data, checksum: Checksum::Unknown }
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
        self.socket.kick().map_err(|e| self.error("sendto", e))
    }

    fn pending(&self) -> usize {
        self.socket.pending()
    }

    fn set_filter(&mut self, filter: Option<&Filter>) -> Result<(), IoError> {
        match filter {
            None => Ok(()),
            Some(_) => Err(IoError::Os {
                interface: self.name.clone(),
                operation: "receive filter on AF_XDP",
                source: io::ErrorKind::Unsupported.into(),
            }),
        }
    }

    fn stats(&mut self) -> Stats {
        let rx_dropped = self.kernel_drops_before + self.socket.kernel_drops();
        Stats { rx_dropped, ..self.stats }
    }

    fn reopen(&mut self) -> Result<(), OpenError> {
        let (socket, control, info) =
            in_netns(self.interface.netns(), || open_socket(&self.interface, &self.config))??;
        self.kernel_drops_before += self.socket.kernel_drops();
        self.received.clear();
        self.reserved = None;
        self.free = socket.transmit_chunks().collect();
        (self.socket, self.control, self.index) = (socket, control, info.index);
        Ok(())
    }
}
