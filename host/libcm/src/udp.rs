//! UDP sockets with congestion control (CM-UDP, the paper's §3.3): what is sent waits in a queue for its grants.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};

use rivulet_cm::Update;

use crate::{Client, Error, FlowId, path};

/// Requests that one call makes.
const MOST: usize = 64;

/// A socket whose datagrams leave as the flow is granted them. Feedback is the application's to give ([`CmUdp::update`]).
#[derive(Debug)]
pub struct CmUdp {
    socket: UdpSocket,
    destination: SocketAddr,
    flow: FlowId,
    mtu: u32,
    /// The socket is connected there: the kernel looks for no route.
    connected: bool,
    queue: VecDeque<Vec<u8>>,
    /// What has left: memory for others.
    spare: Vec<Vec<u8>>,
    /// Most datagrams in the queue.
    limit: usize,
    /// Requests of which no grant came yet.
    asked: usize,
}

impl CmUdp {
    /// Binds a socket, connected or not, to a flow to this address, with room for `limit` datagrams that wait.
    ///
    /// # Errors
    /// As [`Client::open`]; there is no route.
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

    /// Its flow: events of it are this socket's ([`CmUdp::granted`]).
    #[must_use]
    pub fn flow(&self) -> FlowId {
        self.flow
    }

    /// Octets of the largest datagram.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Datagrams that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// The socket, to receive by.
    #[must_use]
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Has a datagram sent when its turn comes; it is copied.
    ///
    /// # Errors
    /// `EMSGSIZE`: it is larger than the MTU; `EWOULDBLOCK`: as many wait as may.
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

    /// The flow was granted a packet: the oldest datagram leaves (`udp_ccappsend`). False if none waited.
    ///
    /// # Errors
    /// The socket's. After `EWOULDBLOCK` the datagram waits for another grant, after others it is gone.
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

    /// The application has feedback (`cm_update`).
    ///
    /// # Errors
    /// As [`Client::update`].
    pub fn update(&mut self, client: &mut Client, update: &Update) -> Result<(), Error> {
        client.update(self.flow, update)
    }

    /// Asks for those that wait, once what was asked for before is granted.
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
