//! Access to the segments between a server's TCP and the network: the BPF programs
//! ([`rivulet_bpf::trods`]), the TAP device to which they redirect held frames, and the socket that
//! sends these once they may leave.
//!
//! A released frame passes the BPF programs like any other, so the limits in their map alone decide
//! what is sent.

mod connection;
mod copies;
mod frame;
mod moves;
mod pace;
mod pins;
mod places;
mod refusals;
mod rescue;
pub(crate) mod room;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use rivulet_bpf::trods::{Counters, Event, FlowKey, RELEASED, Trods};
use rivulet_packet::{EthHeader, eth};
use rivulet_pktio::sockets::Sockets;
use rivulet_pktio::tap::{self, Tap};
use rivulet_pktio::{AfPacket, Config, Interface, IoError, LinkInfo, OpenError, PacketIo, in_netns};

pub use frame::Frame;
pub(crate) use moves::{AT_A_TIME, Rounds};
pub use moves::{Followers, LISTED, Leave, Leaving, Left, List};
pub use pins::{Absence, Known, Pins};
pub use places::Stores;
pub(crate) use refusals::Refusals;
pub use rescue::{Departed, Heard, Reads, Rescue};
use room::Room;
pub(crate) use watch::now_ms;
pub use watch::{Ended, Formers, Keeper, Status, Watch};

/// Time limit for a store server to send all its records; records that arrive later are ignored.
const PATIENCE: Duration = Duration::from_millis(500);
/// Name pattern of the TAP device.
const TAP: &str = "trods%d";
/// Queue length of the TAP device, frames.
const QUEUE: u32 = 4096;
/// Limit on the bytes of all held frames; further frames are dropped, and the server's TCP
/// retransmits them.
const MAX_HELD: usize = 64 << 20;
/// Limit on the buffers kept for later frames.
const SPARE: usize = 128;

/// Why a replica cannot protect connections.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// The BPF programs could not be loaded or attached.
    #[error(transparent)]
    Bpf(#[from] rivulet_bpf::Error),
    /// The watched interface or the TAP could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The kernel does not permit adoption (`TCP_REPAIR`).
    #[error("TCP_REPAIR: {0}")]
    Repair(#[from] rivulet_pktio::repair::RepairError),
}

/// The BPF programs on an interface, and the frames that they hold.
#[derive(Debug)]
pub struct Hold {
    programs: Trods,
    tap: Tap,
    out: Out,
    sockets: Sockets,
    interface: Interface,
    index: u32,
    mac: [u8; 6],
    /// Buffer into which a frame is read.
    scratch: Box<[u8]>,
    spare: Vec<Vec<u8>>,
    /// Memory for frames that were read and not sent yet.
    room: Room,
    /// Number of frames dropped because the memory was full.
    dropped: u64,
}

/// The socket that sends released frames.
struct Out(AfPacket);

impl std::fmt::Debug for Out {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Out({})", self.0.interface())
    }
}

impl Hold {
    /// Loads the BPF programs and attaches them to an interface. Needs root, or `CAP_BPF`,
    /// `CAP_NET_ADMIN` and `CAP_NET_RAW`.
    ///
    /// # Errors
    /// What the kernel lacks or refuses, in words for the operator.
    pub fn open(interface: &Interface) -> Result<Hold, HoldError> {
        Hold::with(Trods::load()?, interface)
    }

    /// Like [`Hold::open`], with BPF programs that answer handshakes themselves.
    ///
    /// # Errors
    /// As [`Hold::open`], or the kernel lacks what these programs need.
    pub fn open_issuing(interface: &Interface) -> Result<Hold, HoldError> {
        Hold::with(Trods::load_issuing()?, interface)
    }

    /// Like [`Hold::open`] or [`Hold::open_issuing`], with names of running programs in a folder
    /// that belongs to this process's user ([`Trods::present_in`]).
    ///
    /// # Errors
    /// As those two, or other users can write into the folder.
    pub fn open_in(folder: &Path, interface: &Interface, issues: bool) -> Result<Hold, HoldError> {
        let mut programs = if issues { Trods::load_issuing() } else { Trods::load() }?;
        programs.present_in(folder);
        Hold::with(programs, interface)
    }

    fn with(mut programs: Trods, interface: &Interface) -> Result<Hold, HoldError> {
        let tap = Tap::new(TAP, QUEUE, interface.netns())?;
        programs.set_tap(tap.index())?;
        let LinkInfo { index, mac, .. } = LinkInfo::of(interface)?;
        let out = Out(AfPacket::open(interface, config())?);
        let namespace = in_netns(interface.netns(), || rustix::fs::stat("/proc/thread-self/ns/net"))?;
        if let Err(e) = programs.see_deaths(namespace.map_err(io::Error::from)?.st_ino as u32) {
            tracing::warn!("a server's process that dies alone ends its connections: {e}");
        }
        in_netns(interface.netns(), || programs.attach(index))??;
        let sockets = Sockets::open(interface.netns())?;
        let scratch = vec![0; tap::MAX_FRAME].into();
        let interface = interface.clone();
        let (spare, room, dropped) = (Vec::new(), Room::new(MAX_HELD), 0);
        Ok(Hold { programs, tap, out, sockets, interface, index, mac, scratch, spare, room, dropped })
    }

    /// Attaches the BPF programs to the interface that has the watched name now, if it was deleted
    /// and created again. Returns whether it was.
    ///
    /// # Errors
    /// No interface has that name now; try again.
    pub fn follow(&mut self) -> Result<bool, HoldError> {
        let LinkInfo { index, mac, .. } = LinkInfo::of(&self.interface)?;
        self.mac = mac;
        if index == self.index {
            return Ok(false);
        }
        self.out.0.reopen()?;
        let programs = &mut self.programs;
        in_netns(self.interface.netns(), || programs.attach(index))??;
        self.index = index;
        Ok(true)
    }

    /// The maps of the BPF programs.
    #[must_use]
    pub fn programs(&self) -> &Trods {
        &self.programs
    }

    /// Counters of the BPF programs.
    ///
    /// # Errors
    /// A system call fails.
    pub fn counters(&self) -> Result<Counters, HoldError> {
        Ok(self.programs.counters()?)
    }

    /// Number of frames dropped because too many were held.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Descriptors that become readable when there are events, and when there are held frames.
    #[must_use]
    pub fn readable(&self) -> [BorrowedFd<'_>; 2] {
        [self.programs.readable(), self.tap.as_fd()]
    }

    /// Passes at most `most` events to `take` ([`Trods::events`]).
    ///
    /// # Errors
    /// A system call fails.
    pub fn events(&mut self, most: usize, take: impl FnMut(Event<'_>)) -> Result<usize, HoldError> {
        Ok(self.programs.events(most, take)?)
    }

    /// Takes the next held frame; skips frames that are not TCP segments.
    ///
    /// # Errors
    /// A system call fails.
    pub fn take(&mut self) -> Result<Option<Frame>, HoldError> {
        while let Some(read) = self.tap.read(&mut self.scratch)? {
            let Some(octets) = self.scratch.get(..read.len) else { continue };
            let buffer = self.spare.pop().unwrap_or_default();
            let Some(frame) = Frame::new(octets, &read, buffer) else { continue };
            let (client, length) = (frame.key().client().ip(), frame.octets().len());
            if self.room.has(client, length) {
                self.room.take(client, length);
                return Ok(Some(frame));
            }
            self.dropped += 1;
            self.spare.push(frame.into_buffer());
        }
        Ok(None)
    }

    /// Sends a frame, which passes the BPF programs again. A frame that the interface does not
    /// accept is lost, as on any link.
    pub fn send(&mut self, frame: Frame) {
        self.out.transmit(&[frame.to_send()]);
        self.forget(frame);
    }

    /// Sends the part of a frame before a sequence number within its data, and keeps the rest.
    pub fn send_until(&mut self, frame: &mut Frame, at: u32) {
        let front = frame.cut(at, self.spare.pop().unwrap_or_default());
        // The first part has its own headers, so both together need more memory than the frame.
        self.room.take(front.key().client().ip(), front.octets().len() - front.data().len());
        self.send(front);
    }

    /// Drops a held frame.
    pub fn forget(&mut self, frame: Frame) {
        self.room.give_back(frame.key().client().ip(), frame.octets().len());
        if self.spare.len() < SPARE {
            self.spare.push(frame.into_buffer());
        }
    }

    /// Sends the last segment without data that the BPF programs withheld, if there is one.
    ///
    /// # Errors
    /// A system call fails.
    pub fn send_withheld(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        if let Some(mut octets) = self.programs.take_withheld(key)?
            && frame::complete(&mut octets)
        {
            self.out.transmit(&[rivulet_pktio::TxFrame::new(&octets)]);
        }
        Ok(())
    }

    /// Injects a packet of a client as if it had just arrived. If it is lost, the client's TCP
    /// retransmits it.
    pub fn hear_again(&mut self, key: &FlowKey, packet: &[u8]) {
        if let Some(frame) = self.framed(key, self.mac, packet)
            && let Err(e) = self.tap.write(&frame)
        {
            tracing::debug!(error = %e, "a copied segment of a client was not replayed");
        }
    }

    fn framed(&self, key: &FlowKey, to: [u8; 6], packet: &[u8]) -> Option<Vec<u8>> {
        let ethernet = EthHeader { dst: to, src: self.mac, vlan: None };
        let ether_type = if key.client().is_ipv4() { eth::IPV4 } else { eth::IPV6 };
        let mut frame = [&vec![0; ethernet.length()], packet].concat();
        (ethernet.fill(&mut frame, ether_type) && frame::complete(&mut frame)).then_some(frame)
    }

    /// Removes a connection's limits and its entry for timestamps that this host makes.
    fn clear(&self, key: &FlowKey) -> Result<(), HoldError> {
        self.programs.free(key)?;
        Ok(self.programs.stamps().forget(key)?)
    }

    /// Removes a connection from the kernel without a segment to the client.
    fn abort(&self, key: &FlowKey) -> Result<(), HoldError> {
        self.sockets.abort(key.service(), key.client())?;
        Ok(())
    }

    /// Removes the connections that the previous agent had adopted and that the kernel is closing:
    /// the kernel would send FINs on connections that other replicas have now.
    fn abort_closing(&self, service: SocketAddr) -> Result<(), HoldError> {
        let count = self.sockets.abort_closing(service)?;
        tracing::debug!(%service, count, "removed connections that a former process had adopted");
        Ok(())
    }

    /// Clients of connections that the kernel is closing, because their process closed them or
    /// died.
    fn closing(&self, service: SocketAddr) -> Result<Vec<SocketAddr>, HoldError> {
        Ok(self.sockets.closing(service)?)
    }

    /// Removes a connection from the kernel; the BPF programs let no segment of it reach the
    /// client.
    fn silence(&self, key: &FlowKey) -> Result<(), HoldError> {
        self.programs.park(key)?;
        let result = self.abort(key);
        self.programs.unpark(key)?;
        result
    }

    /// The clients of the service's connections in the kernel.
    fn clients(&self, service: SocketAddr) -> Result<Vec<SocketAddr>, HoldError> {
        Ok(self.sockets.established(service)?)
    }
}

impl Out {
    fn transmit(&mut self, frames: &[rivulet_pktio::TxFrame<'_>]) {
        match self.0.send(frames) {
            Ok(_) | Err(IoError::Down(_) | IoError::Gone(_)) => {}
            Err(e) => tracing::debug!(error = %e, "a frame was not sent"),
        }
    }
}

/// Sends through the queueing discipline, because the BPF programs run before it; receives nothing.
fn config() -> Config {
    let (mark, ether_type) = (RELEASED, Some(0));
    Config { batch: 1, queue: 1, rx_bytes: 4096, promiscuous: false, mark, ether_type, ..Config::default() }
}
