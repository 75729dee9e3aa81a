//! UDP sockets with congestion control (CM-UDP, the paper's §3.3): datagrams wait in a queue until
//! they are granted.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};

use rivulet_cm::Update;

use crate::{Client, Error, FlowId, path};

/// Largest number of requests made at once.
const MOST: usize = 64;

/// A socket that sends its datagrams as the flow is granted them. The application must give
/// feedback ([`CmUdp::update`]).
#[derive(Debug)]
pub struct CmUdp {
    socket: UdpSocket,
    destination: SocketAddr,
    flow: FlowId,
    mtu: u32,
    /// Whether the socket is connected, so that the kernel need not look up a route for each
    /// datagram.
    connected: bool,
    queue: VecDeque<Vec<u8>>,
    /// Buffers of sent datagrams, for reuse.
    spare: Vec<Vec<u8>>,
    /// Largest number of datagrams in the queue.
    limit: usize,
    /// Requests that were not granted yet.
    asked: usize,
}

impl CmUdp {
    /// Opens a flow to this address for a socket, connected or not, with a queue of at most `limit`
    /// datagrams.
    ///
    /// # Errors
    /// As [`Client::open`]; there is no route to the destination.
    pub fn new(
        client: &mut Client,
        socket: UdpSocket,
        destination: SocketAddr,
        limit: usize,
    ) -> Result<CmUdp, Error> {
        let (key, mtu) = path::describe(&socket, destination).map_err(Error::of("looking at the socket"))?;
        let flow = client.open(&key, mtu)?;
        let connected = socket.peer_addr().is_ok_and(|peer| peer == destination);
        let (queue, spare, limit) = (VecDeque::new(), vec![], limit.max(1));
        Ok(CmUdp { socket, destination, flow, mtu, connected, queue, spare, limit, asked: 0 })
    }

    /// The flow. Pass its `Send` events to [`CmUdp::granted`].
    #[must_use]
    pub fn flow(&self) -> FlowId {
        self.flow
    }

    /// Payload bytes of the largest datagram.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Number of queued datagrams.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// The socket, for receiving.
    #[must_use]
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Copies a datagram into the queue, to be sent when it is granted.
    ///
    /// # Errors
    /// `EMSGSIZE`: it is larger than the MTU; `EWOULDBLOCK`: the queue is full.
    pub fn send(&mut self, client: &mut Client, datagram: impl AsRef<[u8]>) -> Result<(), Error> {
        let datagram = datagram.as_ref();
        let fail = |errno| Err(Error::of("sending")(io::Error::from_raw_os_error(errno)));
        if datagram.len() > self.mtu as usize {
            return fail(libc::EMSGSIZE);
        }
        if self.queue.len() >= self.limit {
            return fail(libc::EWOULDBLOCK);
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(datagram);
        self.queue.push_back(copy);
        self.ask(client)
    }

    /// Handles a grant: sends the oldest datagram (`udp_ccappsend`). Returns whether the queue had
    /// one.
    ///
    /// # Errors
    /// The socket's error. After `EWOULDBLOCK` the datagram waits for another grant; after any
    /// other error it is dropped.
    pub fn granted(&mut self, client: &mut Client) -> Result<bool, Error> {
        self.asked = self.asked.saturating_sub(1);
        let Some(mut datagram) = self.queue.pop_front() else {
            client.decline(self.flow)?;
            return Ok(false);
        };
        let sent = if self.connected {
            self.socket.send(&datagram)
        } else {
            self.socket.send_to(&datagram, self.destination)
        };
        if matches!(&sent, Err(e) if e.kind() == io::ErrorKind::WouldBlock) {
            self.queue.push_front(datagram);
        } else {
            datagram.clear();
            self.spare.push(datagram);
        }
        if let Err(e) = sent {
            client.decline(self.flow)?;
            self.ask(client)?;
            return Err(Error::of("sending")(e));
        }
        self.ask(client)?;
        Ok(true)
    }

    /// Records the application's feedback (`cm_update`).
    ///
    /// # Errors
    /// As [`Client::update`].
    pub fn update(&mut self, client: &mut Client, update: &Update) -> Result<(), Error> {
        client.update(self.flow, update)
    }

    /// Requests grants for the queued datagrams, once all earlier requests are granted.
    fn ask(&mut self, client: &mut Client) -> Result<(), Error> {
        if self.asked > 0 || self.queue.is_empty() {
            return Ok(());
        }
        let count = self.queue.len().min(MOST);
        client.request(self.flow, count as u32)?;
        self.asked = count;
        Ok(())
    }
}
