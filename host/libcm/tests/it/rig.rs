//! Loads the calls for a cgroup of the test's own, and runs threads in it as users of a network
//! namespace.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use libcm::{Client, Descriptors, Event, FlowId, Key};
use rivulet_bpf::cm::{CallOptions, Calls, Macroflow, RING, unified};
use rivulet_bpf::kernel::{Feature, skipped};
use rivulet_pktio::testing::{Cgroup, Netns, PATIENCE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub const MTU: u32 = 1000;
pub const ALICE: u32 = 54_321;
pub const BOB: u32 = 54_322;

pub struct Rig {
    pub calls: Calls,
    pub ns: Netns,
    pub cgroup: Cgroup,
}

impl Rig {
    /// `None`, with a line that says so, where the machine lacks a feature.
    pub fn new(options: CallOptions) -> Option<Rig> {
        if skipped(Feature::UserCalls) {
            return None;
        }
        let Some(root) = unified() else {
            eprintln!("SKIPPED: no cgroups of version 2 are mounted");
            return None;
        };
        let ns = Netns::new("rvcm-u")?;
        let cgroup = Cgroup::new(&root, &ns);
        let options = CallOptions { cgroup: cgroup.path().to_owned(), ..options };
        let calls = Calls::load(&options).unwrap_or_else(|e| panic!("{e}"));
        Some(Rig { calls, ns, cgroup })
    }

    pub fn as_user<T: Send>(&self, uid: u32, f: impl FnOnce() -> T + Send) -> T {
        self.ns.as_user(&self.cgroup, uid, f)
    }

    /// A client with the descriptors that the daemon would have passed.
    pub fn client(&self, uid: u32) -> (Client, u32) {
        self.client_of(uid, uid)
    }

    /// The same for a user that counts towards another account.
    pub fn client_of(&self, account: u32, uid: u32) -> (Client, u32) {
        let (id, ring) = self.calls.admit(uid, account, std::process::id(), 0).unwrap();
        let [open, call, calls] = self.calls.programs().map(|p| p.try_clone_to_owned().unwrap());
        (Client::new(Descriptors { open, call, calls }, id, ring, RING).unwrap(), id)
    }

    /// The user's only macroflow.
    pub fn macroflow(&self, uid: u32) -> Macroflow {
        let mut found = self.calls.macroflows().unwrap();
        found.retain(|m| m.user == Some(uid));
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    pub fn outstanding(&self, uid: u32) -> u64 {
        self.macroflow(uid).numbers.outstanding()
    }
}

/// A socket, its receiver, and the flow's key.
pub struct Path {
    pub socket: UdpSocket,
    /// Keeps the port open, so that no ICMP error comes back.
    pub _receiver: UdpSocket,
    pub key: Key,
}

/// Creates the sockets in the thread's network namespace.
pub fn path(address: &str) -> Path {
    let bind = || UdpSocket::bind((address, 0)).unwrap();
    let (socket, receiver) = (bind(), bind());
    let destination: SocketAddr = receiver.local_addr().unwrap();
    let key = Key { source: socket.local_addr().unwrap(), destination, protocol: 17, dscp: 0 };
    Path { socket, _receiver: receiver, key }
}

impl Path {
    pub fn connected(self) -> Path {
        self.socket.connect(self.key.destination).unwrap();
        self
    }

    /// Sends `count` datagrams of `bytes` bytes.
    pub fn send(&self, count: usize, bytes: usize) {
        for _ in 0..count {
            assert_eq!(self.socket.send_to(&vec![7; bytes], self.key.destination).unwrap(), bytes);
        }
    }
}

/// Waits for the next event.
pub fn wait(client: &mut Client) -> Event {
    loop {
        if let Some(event) = client.poll().unwrap() {
            return event;
        }
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let fd = client.as_fd().try_clone_to_owned().unwrap();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&patience)).unwrap(), 1, "nothing happens");
    }
}

/// Polls all grants and returns their flows.
pub fn sends(client: &mut Client) -> Vec<FlowId> {
    let mut flows = vec![];
    while let Some(event) = client.poll().unwrap() {
        if let Event::Send(flow) = event {
            flows.push(flow);
        }
    }
    flows
}
