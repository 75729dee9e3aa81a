//! Answers the system calls that the filter shows: connect is done by the stack, and the names of its
//! descriptors are those of the addresses that they stand for.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::opening::{LEAVE_TO_KERNEL, Opener};
use super::protocol::{Ask, address_of, id_of};

/// linux/seccomp.h
const RECEIVE: libc::Ioctl = order(3, 0, size_of::<libc::seccomp_notif>());
const SEND: libc::Ioctl = order(3, 1, size_of::<libc::seccomp_notif_resp>());
const IS_VALID: libc::Ioctl = order(1, 2, size_of::<u64>());
const ADD_DESCRIPTOR: libc::Ioctl = order(1, 3, size_of::<libc::seccomp_notif_addfd>());

/// linux/socket.h
const SOL_TLS: u64 = 282;

/// The kernel's number of an ioctl of seccomp.
const fn order(direction: u64, number: u64, size: usize) -> libc::Ioctl {
    (direction << 30 | (size as u64) << 16 | (b'!' as u64) << 8 | number) as libc::Ioctl
}

/// One system call that waits for its answer.
struct Call {
    listener: Arc<OwnedFd>,
    id: u64,
    /// The thread that makes it.
    thread: i32,
    number: libc::c_long,
    arguments: [u64; 6],
}

/// Answers from now on, until the last process with the filter has ended.
pub(super) fn start(listener: OwnedFd, opener: Arc<Opener>) -> io::Result<()> {
    let listener = Arc::new(listener);
    std::thread::Builder::new().name("calls".into()).spawn(move || {
        while let Some(call) = next(&listener) {
            if call.number != libc::SYS_connect {
                call.answer(&opener);
                continue;
            }
            // Waits for a neighbour, perhaps for the server.
            let opener = opener.clone();
            let work = move || call.answer(&opener);
            if let Err(e) = std::thread::Builder::new().name("connect".into()).spawn(work) {
                // The call is dropped, and with that left to the kernel.
                tracing::warn!(error = %e, "no thread for a connection");
            }
        }
    })?;
    Ok(())
}

/// The next call; none when nobody is left to make one.
fn next(listener: &Arc<OwnedFd>) -> Option<Call> {
    loop {
        let mut entry = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, as the count says.
        unsafe { libc::poll(&raw mut entry, 1, -1) };
        if entry.revents & libc::POLLIN == 0 {
            if entry.revents != 0 {
                return None;
            }
            continue;
        }
        // SAFETY: all zero is what the kernel asks for.
        let mut call: libc::seccomp_notif = unsafe { zeroed() };
        // SAFETY: the structure that this order fills.
        if unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE, &raw mut call) } != 0 {
            // Whoever made it is gone already.
            continue;
        }
        return Some(Call {
            listener: listener.clone(),
            id: call.id,
            thread: call.pid as i32,
            number: call.data.nr.into(),
            arguments: call.data.args,
        });
    }
}

/// What to do with a call.
enum Verdict {
    /// It returns this: 0, or an errno.
    Returns(i32),
    /// The kernel does it.
    Kernel,
}

impl Drop for Call {
    /// A call that got no answer is the kernel's.
    fn drop(&mut self) {
        self.reply(Verdict::Kernel);
    }
}

impl Call {
    fn answer(mut self, opener: &Opener) {
        // The descriptor's table belongs to the process, the call to a thread.
        let socket = process_of(self.thread).and_then(|pid| descriptor(pid, self.arguments[0] as i32));
        let Ok(socket) = socket else { return };
        let verdict = match self.number {
            libc::SYS_connect => match self.connect(&socket, opener) {
                Ok(done) => done,
                Err(e) => {
                    tracing::debug!(error = %e, "connect is left to the kernel");
                    Verdict::Kernel
                }
            },
            libc::SYS_setsockopt if peer(&socket).is_some() => self.set(),
            libc::SYS_getsockopt => self.error(&socket, opener),
            libc::SYS_getpeername => self.tell(peer(&socket)),
            libc::SYS_getsockname => self.tell(local(&socket)),
            _ => Verdict::Kernel,
        };
        self.reply(verdict);
    }

    /// Sends the answer, once. A call whose process has died needs none.
    fn reply(&mut self, verdict: Verdict) {
        if self.id == 0 {
            return;
        }
        let (error, flags) = match verdict {
            Verdict::Returns(errno) => (-errno, 0),
            Verdict::Kernel => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        };
        let answer = libc::seccomp_notif_resp { id: self.id, val: 0, error, flags };
        // SAFETY: the structure that this order takes.
        unsafe { libc::ioctl(self.listener.as_raw_fd(), SEND, &raw const answer) };
        self.id = 0;
    }

    fn connect(&mut self, socket: &OwnedFd, opener: &Opener) -> io::Result<Verdict> {
        if peer(socket).is_some() {
            return Ok(Verdict::Returns(libc::EISCONN));
        }
        let mut raw = [0u8; 28];
        let length = (self.arguments[2] as usize).min(raw.len());
        self.memory(self.arguments[1], &mut raw[..length], false)?;
        let Some(peer) = decode(&raw[..length]).filter(|peer| wanted(socket, peer)) else {
            return Ok(Verdict::Kernel);
        };
        // SAFETY: plain call on an open descriptor.
        let flags = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_GETFL) };
        let nonblocking = flags & libc::O_NONBLOCK != 0;
        let bound = name(socket, libc::getsockname).and_then(|raw| decode(&raw));
        let bound = bound.filter(|a| a.port() != 0 || !a.ip().is_unspecified());
        let on_exec = closes_on_exec(self.thread, self.arguments[0] as i32)?;
        let mapped = peer.is_ipv4() && option(socket, libc::SO_DOMAIN) == Some(libc::AF_INET6);
        let opened = match opener.open(&Ask { peer, bound, nonblocking, mapped }, || self.is_valid()) {
            Ok(opened) => opened,
            Err(LEAVE_TO_KERNEL) => return Ok(Verdict::Kernel),
            Err(errno) => return Ok(Verdict::Returns(errno)),
        };
        // SAFETY: plain call on an open descriptor.
        unsafe { libc::fcntl(opened.end.as_raw_fd(), libc::F_SETFL, flags & libc::O_NONBLOCK) };
        let add = libc::seccomp_notif_addfd {
            id: self.id,
            flags: libc::SECCOMP_ADDFD_FLAG_SETFD as u32,
            srcfd: opened.end.as_raw_fd() as u32,
            newfd: self.arguments[0] as u32,
            newfd_flags: if on_exec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        // SAFETY: the structure that this order takes; the descriptor is open.
        if unsafe { libc::ioctl(self.listener.as_raw_fd(), ADD_DESCRIPTOR, &raw const add) } < 0 {
            return Err(io::Error::last_os_error());
        }
        self.reply(Verdict::Returns(opened.errno));
        opened.start();
        Ok(Verdict::Returns(0))
    }

    /// Options of TCP and IP mean nothing on the pair and are accepted, but not encryption by the kernel: a program must
    /// not believe that it has it.
    fn set(&self) -> Verdict {
        let of_tcp = self.arguments[1] == libc::IPPROTO_TCP as u64;
        let wanted = of_tcp && self.arguments[2] == libc::TCP_ULP as u64 || self.arguments[1] == SOL_TLS;
        Verdict::Returns(if wanted { libc::ENOENT } else { 0 })
    }

    /// `SO_ERROR` of a connection that failed, once; of others it is the kernel's.
    fn error(&self, socket: &OwnedFd, opener: &Opener) -> Verdict {
        if self.arguments[1] != libc::SOL_SOCKET as u64 {
            return Verdict::Kernel;
        }
        let id = name(socket, libc::getsockname).and_then(|raw| id_of(raw.get(2..)?));
        let errno = id.map_or(0, |id| opener.ended().take(id));
        if errno == 0 {
            return Verdict::Kernel;
        }
        // The kernel's own word for it must not be told beside ours.
        let (mut its, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
        // SAFETY: value and length fit together.
        unsafe {
            let to = (&raw mut its).cast();
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR, to, &raw mut length);
        }
        let write = || {
            self.memory(self.arguments[3], &mut errno.to_ne_bytes(), true)?;
            self.memory(self.arguments[4], &mut 4u32.to_ne_bytes(), true)
        };
        match write() {
            Ok(()) => Verdict::Returns(0),
            Err(_) => Verdict::Returns(libc::EFAULT),
        }
    }

    /// Writes an address where getpeername and getsockname want it.
    fn tell(&self, address: Option<SocketAddr>) -> Verdict {
        let Some(address) = address else { return Verdict::Kernel };
        let raw = encode(&address);
        let write = || {
            let mut room = [0; 4];
            self.memory(self.arguments[2], &mut room, false)?;
            let room = (u32::from_ne_bytes(room) as usize).min(raw.len());
            self.memory(self.arguments[1], &mut raw[..room].to_vec(), true)?;
            self.memory(self.arguments[2], &mut (raw.len() as u32).to_ne_bytes(), true)
        };
        match write() {
            Ok(()) => Verdict::Returns(0),
            Err(_) => Verdict::Returns(libc::EFAULT),
        }
    }

    /// Whether the thread still waits in this call.
    fn is_valid(&self) -> bool {
        // SAFETY: the number that this order takes.
        unsafe { libc::ioctl(self.listener.as_raw_fd(), IS_VALID, &raw const self.id) == 0 }
    }

    /// Reads or writes the memory of the process, and makes sure that it is still the one that made the call.
    fn memory(&self, at: u64, bytes: &mut [u8], write: bool) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let is_ours = || if self.is_valid() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::NotFound)) };
        if write {
            is_ours()?;
        }
        let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let there = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: bytes.len() };
        // SAFETY: our part is a slice; the other part is checked by the kernel.
        let moved = unsafe {
            match write {
                true => libc::process_vm_writev(self.thread, &raw const here, 1, &raw const there, 1, 0),
                false => libc::process_vm_readv(self.thread, &raw const here, 1, &raw const there, 1, 0),
            }
        };
        if moved != bytes.len() as isize {
            return Err(io::Error::last_os_error());
        }
        is_ours()
    }
}

/// A connection that the stack is to have: a TCP socket, and a destination beyond this machine.
fn wanted(socket: &OwnedFd, target: &SocketAddr) -> bool {
    let ip = target.ip();
    !ip.is_loopback()
        && !ip.is_unspecified()
        && !ip.is_multicast()
        && target.port() != 0
        && option(socket, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
        && option(socket, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

/// An option of the socket layer.
fn option(socket: &OwnedFd, name: i32) -> Option<i32> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: value and length fit together.
    let got = unsafe {
        let to = (&raw mut value).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, to, &raw mut len)
    };
    (got == 0).then_some(value)
}

type Name = unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32;

/// What getsockname or getpeername says.
fn name(socket: &OwnedFd, ask: Name) -> Option<Vec<u8>> {
    let mut raw = [0u64; 16];
    let mut length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the buffer has room for the length that is told.
    let got = unsafe { ask(socket.as_raw_fd(), raw.as_mut_ptr().cast(), &raw mut length) };
    let octets: Vec<u8> = raw.iter().flat_map(|word| word.to_ne_bytes()).take(length as usize).collect();
    (got == 0).then_some(octets)
}

fn stands_for(raw: &[u8]) -> Option<SocketAddr> {
    let (family, name) = raw.split_first_chunk::<2>()?;
    (u16::from_ne_bytes(*family) == libc::AF_UNIX as u16).then(|| address_of(name)).flatten()
}

fn peer(socket: &OwnedFd) -> Option<SocketAddr> {
    stands_for(&name(socket, libc::getpeername)?)
}

fn local(socket: &OwnedFd) -> Option<SocketAddr> {
    stands_for(&name(socket, libc::getsockname)?)
}

/// The process of a thread.
fn process_of(thread: i32) -> io::Result<i32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|pid| pid.trim().parse().ok()).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Our copy of a descriptor of another process.
fn descriptor(pid: i32, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain system calls; what they give belongs to us.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        if process < 0 {
            return Err(io::Error::last_os_error());
        }
        let process = OwnedFd::from_raw_fd(process as i32);
        let got = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0);
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(got as i32)) }
    }
}

/// The flag is the descriptor's, not the socket's, so it is read where the descriptor is.
fn closes_on_exec(thread: i32, fd: i32) -> io::Result<bool> {
    let text = std::fs::read_to_string(format!("/proc/{thread}/fdinfo/{fd}"))?;
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|f| i32::from_str_radix(f.trim(), 8).ok());
    Ok(flags.is_some_and(|f| f & libc::O_CLOEXEC != 0))
}

/// An address of the Internet families as the kernel writes it.
fn decode(raw: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(*raw.first_chunk()?));
    let port = u16::from_be_bytes(raw.get(2..4)?.try_into().ok()?);
    let ip = match family {
        libc::AF_INET => IpAddr::from(<[u8; 4]>::try_from(raw.get(4..8)?).ok()?),
        libc::AF_INET6 => {
            let six = std::net::Ipv6Addr::from(<[u8; 16]>::try_from(raw.get(8..24)?).ok()?);
            // A mapped IPv4 address means IPv4 on the wire.
            six.to_ipv4_mapped().map_or(IpAddr::V6(six), IpAddr::V4)
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

fn encode(address: &SocketAddr) -> Vec<u8> {
    let (family, length) = if address.is_ipv4() { (libc::AF_INET, 16) } else { (libc::AF_INET6, 28) };
    let mut raw = vec![0; length];
    raw[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    raw[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => raw[4..8].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => raw[8..24].copy_from_slice(&ip.octets()),
    }
    raw
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_and_others_are_none() {
        for text in ["10.1.2.3:80", "[fd00::1:2]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let raw = encode(&address);
            assert_eq!(decode(&raw), Some(address));
            for length in 0..raw.len().min(if address.is_ipv4() { 8 } else { 24 }) {
                assert_eq!(decode(&raw[..length]), None, "{text} {length}");
            }
        }
        assert_eq!(decode(&[1, 0, 0, 80, 1, 2, 3, 4]), None, "a Unix address");
    }
}
