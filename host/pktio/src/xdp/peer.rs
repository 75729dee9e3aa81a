//! Checks an interface for AF_XDP before use: one receive queue, no other XDP program, and no
//! offloads of a veth's peer that leave checksums or tags undone.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::net::SocketFlags;

use crate::in_netns;
use crate::netlink::{ask, attributes, push_attribute, socket, text, u32_at};

const IFINFO: usize = 16;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_INFO_KIND: u16 = 1;
const RTM_GETNSID: u16 = 90;
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const FLAG_TXVLAN: u32 = 1 << 7;

/// The kernel's description of a link.
struct Link {
    name: String,
    kind: String,
    /// Index of the other end, and the id of its namespace if it is another one.
    peer: Option<(u32, Option<u32>)>,
    /// Id of the attached XDP program.
    program: Option<u32>,
}

/// How long a program may outlive its killed process before it counts as another program.
const DETACH_TIME: Duration = Duration::from_millis(200);

/// A socket for interface queries in the calling thread's namespace.
fn query_socket() -> io::Result<OwnedFd> {
    socket(SocketFlags::empty(), 0)
}

/// Id of the XDP program on an interface, if the kernel reports one.
pub(super) fn program(index: u32) -> Option<u32> {
    query_socket().and_then(|rtnl| link(&rtnl, index)).ok()?.program
}

/// Whether the interface merges received packets (GRO).
pub(super) fn merges(name: &str) -> bool {
    ethtool(name, ETHTOOL_GGRO).is_ok_and(|on| on != 0)
}

/// Fails with the reason why the interface cannot be used, and the remedy.
pub(super) fn check(name: &str, index: u32) -> Result<(), String> {
    let queues = receive_queues(name);
    if queues > 1 {
        return Err(format!(
            "{queues} receive queues, AF_XDP serves one: ethtool -L {name} combined 1 (or rx 1)"
        ));
    }
    let rtnl = query_socket().map_err(|e| format!("rtnetlink: {e}"))?;
    let link = link(&rtnl, index).map_err(|e| format!("rtnetlink: {e}"))?;
    let deadline = Instant::now() + DETACH_TIME;
    while let Some(id) = program(index) {
        if Instant::now() > deadline {
            return Err(format!(
                "XDP program {id} is on it already: one process at a time can have AF_XDP there, another one uses \
                 AF_PACKET"
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if link.kind != "veth" {
        return Ok(());
    }
    let Some((peer, netnsid)) = link.peer else { return Ok(()) };
    let namespace = match netnsid {
        None => None,
        Some(id) => Some(namespace(&rtnl, id).ok_or_else(|| {
            "the veth's peer is in a namespace that cannot be found, so its offloads cannot be checked; \
             use AF_PACKET"
                .to_string()
        })?),
    };
    let path = namespace.as_ref().map(|p| p.to_string_lossy().into_owned());
    let (peer, left_on) = in_netns(path.as_deref(), || peer_offloads(peer)).map_err(|e| e.to_string())??;
    if left_on.is_empty() {
        return Ok(());
    }
    let place = path.map_or(String::new(), |p| format!(" in {p}"));
    Err(format!(
        "its peer {peer}{place} leaves work to the hardware ({}), which AF_XDP cannot see: \
         ethtool -K {peer} tx off txvlan off gro off",
        left_on.join(", ")
    ))
}

/// Name of the peer and its active offloads; runs inside its namespace.
fn peer_offloads(index: u32) -> Result<(String, Vec<&'static str>), String> {
    let rtnl = query_socket().map_err(|e| format!("rtnetlink: {e}"))?;
    let peer = link(&rtnl, index).map_err(|e| format!("the veth's peer: {e}"))?.name;
    let get = |command| ethtool(&peer, command).map_err(|e| format!("ethtool {peer}: {e}"));
    let mut on = Vec::new();
    if get(ETHTOOL_GTXCSUM)? != 0 {
        on.push("tx");
    }
    if get(ETHTOOL_GFLAGS)? & FLAG_TXVLAN != 0 {
        on.push("txvlan");
    }
    if get(ETHTOOL_GGRO)? != 0 {
        on.push("gro");
    }
    Ok((peer, on))
}

fn link(rtnl: &OwnedFd, index: u32) -> io::Result<Link> {
    let mut body = [0; IFINFO];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    let reply = ask(rtnl, libc::RTM_GETLINK, &body)?;
    let mut link = Link { name: String::new(), kind: String::new(), peer: None, program: None };
    let (mut peer, mut netnsid) = (None, None);
    for (kind, value) in attributes(reply.get(IFINFO..).unwrap_or_default()) {
        match kind {
            libc::IFLA_IFNAME => link.name = text(value),
            libc::IFLA_LINK => peer = u32_at(value, 0),
            IFLA_LINK_NETNSID => netnsid = u32_at(value, 0),
            libc::IFLA_XDP => {
                let id = attributes(value).find(|(k, _)| *k == IFLA_XDP_PROG_ID);
                link.program = id.and_then(|(_, v)| u32_at(v, 0)).filter(|id| *id != 0);
            }
            libc::IFLA_LINKINFO => {
                let info = attributes(value).find(|(k, _)| *k == IFLA_INFO_KIND);
                link.kind = info.map_or(String::new(), |(_, v)| text(v));
            }
            _ => {}
        }
    }
    link.peer = peer.map(|p| (p, netnsid));
    Ok(link)
}

/// A path of the namespace that this one knows by `id`: first among those of `ip netns`, then among
/// those of all processes (Mininet's hosts have no name).
fn namespace(rtnl: &OwnedFd, id: u32) -> Option<PathBuf> {
    let list = |dir: &str| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let named = list("/run/netns").map(|entry| entry.path());
    let processes = list("/proc")
        .filter(|e| e.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit()))
        .map(|e| e.path().join("ns/net"));
    let mut seen = BTreeSet::new();
    named.chain(processes).find(|path| {
        let Ok(file) = File::open(path) else { return false };
        let Ok(inode) = file.metadata().map(|m| m.ino()) else { return false };
        seen.insert(inode) && namespace_id(rtnl, file.as_raw_fd()).is_ok_and(|found| found == Some(id))
    })
}

/// The id by which this namespace knows the namespace of a descriptor.
fn namespace_id(rtnl: &OwnedFd, fd: RawFd) -> io::Result<Option<u32>> {
    // struct rtgenmsg, padded, then one attribute.
    let mut body = vec![0; 4];
    push_attribute(&mut body, NETNSA_FD, &(fd as u32).to_ne_bytes());
    let reply = ask(rtnl, RTM_GETNSID, &body)?;
    let found = attributes(reply.get(4..).unwrap_or_default()).find(|(k, _)| *k == NETNSA_NSID);
    Ok(found.and_then(|(_, v)| u32_at(v, 0)))
}

/// Runs an ethtool command whose structure begins with the command and is `words` long.
fn ethtool_words<const N: usize>(name: &str, command: u32) -> io::Result<[u32; N]> {
    // Any socket works.
    let fd = query_socket()?;
    let mut data = [0u32; N];
    data[0] = command;
    // SAFETY: all zero is a valid ifreq.
    let mut req: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = req.ifr_name.len() - 1;
    for (to, from) in req.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    req.ifr_ifru.ifru_data = data.as_mut_ptr().cast();
    // SAFETY: the commands used here read and write a structure of N words, which `data` is.
    if unsafe { libc::ioctl(fd.as_raw_fd(), SIOCETHTOOL, &raw mut req) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(data)
}

/// `struct ethtool_value`.
fn ethtool(name: &str, command: u32) -> io::Result<u32> {
    ethtool_words::<2>(name, command).map(|w| w[1])
}

/// Receive queues in use; 1 if the interface does not report them.
fn receive_queues(name: &str) -> u32 {
    // struct ethtool_channels: command, four maxima, then rx, tx, other, combined.
    ethtool_words::<9>(name, ETHTOOL_GCHANNELS).map_or(1, |w| (w[5] + w[8]).max(1))
}
