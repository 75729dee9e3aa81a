//! Answers the system calls that the filter passes on: the stack performs connect, and getpeername
//! and getsockname return the addresses that the descriptors represent. Programs that cannot be
//! caught are reported on standard error.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_handoff::{ConnectRequest, LEAVE_TO_KERNEL, Name, RAW, bound, decode, encode, wants};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::AddressFamily;
use rustix::net::sockopt::{socket_domain, socket_error};

use super::call::{Call, Verdict, What, let_pass, next};
use super::opening::Opener;
use super::shim::SHIM;

/// linux/socket.h
const SOL_TLS: u64 = 282;
/// Limit on the programs that are remembered as reported.
const MAX_TOLD: usize = 1024;
/// Limit on the wait, at the end, for connections that are being opened.
const LAST: Duration = Duration::from_secs(2);

/// The thread that answers calls.
pub(super) struct Watch {
    listener: Arc<OwnedFd>,
    /// Ends the thread when it is dropped.
    stop: UnixStream,
    thread: JoinHandle<()>,
}

/// What is needed to answer calls.
struct Answers {
    opener: Arc<Opener>,
    /// Whether to open connections for programs; if not, programs that the library does not catch
    /// are only reported.
    opens: bool,
    /// Programs and reasons that were reported.
    told: Mutex<HashSet<(PathBuf, &'static str)>>,
}

/// Answers calls until the last process with the filter has ended.
pub(super) fn start(listener: OwnedFd, opener: Arc<Opener>, opens: bool) -> io::Result<Watch> {
    let listener = Arc::new(listener);
    let answers = Arc::new(Answers { opener, opens, told: Mutex::default() });
    let (stop, stopped) = UnixStream::pair()?;
    let of_thread = listener.clone();
    let thread = std::thread::Builder::new().name("calls".into()).spawn(move || {
        while let Some(call) = next(&of_thread, &stopped) {
            if !matches!(call.what, What::Native(libc::SYS_connect)) {
                answers.answer(call);
                continue;
            }
            // connect may wait for ARP or for the server, so it gets a thread.
            let answers = answers.clone();
            if let Err(e) =
                std::thread::Builder::new().name("connect".into()).spawn(move || answers.answer(call))
            {
                // The call is dropped, which leaves it to the kernel.
                eprintln!("rivulet run: no thread for a connection, which stays plain TCP: {e}");
            }
        }
    })?;
    Ok(Watch { listener, stop, thread })
}

impl Watch {
    /// Stops; processes of the command that still run continue with the kernel's TCP.
    pub(super) fn end(self) {
        drop(self.stop);
        // A thread that panicked has printed its message.
        let _ = self.thread.join();
        // Calls that are still being answered hold the listener.
        let until = Instant::now() + LAST;
        while Arc::strong_count(&self.listener) > 1 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let_pass(&self.listener);
    }
}

impl Answers {
    fn answer(&self, mut call: Call) {
        let What::Native(number) = call.what else {
            if let Some(peer) = call.descriptor().ok().and_then(|socket| target(&call, &socket)) {
                self.tell(&call, peer, "its 32-bit system calls are not caught");
            }
            return;
        };
        if number == libc::SYS_io_uring_setup {
            self.tell(&call, None, "what it does by io_uring is not caught");
            return;
        }
        let socket = match call.descriptor() {
            Ok(socket) => socket,
            Err(e) => {
                if number == libc::SYS_connect && e.kind() == io::ErrorKind::PermissionDenied {
                    self.tell(&call, None, "its connections cannot be looked at, having other rights");
                }
                return;
            }
        };
        let verdict = match number {
            libc::SYS_connect => self.connect(&mut call, &socket),
            libc::SYS_setsockopt if Name::of_peer(&socket).is_some() => set(&call),
            libc::SYS_getsockopt => self.error(&call, &socket),
            libc::SYS_getpeername => tell_address(&call, Name::of_peer(&socket)),
            libc::SYS_getsockname => tell_address(&call, Name::of(&socket)),
            _ => Verdict::Kernel,
        };
        call.reply(&verdict);
    }

    fn connect(&self, call: &mut Call, socket: &OwnedFd) -> Verdict {
        if Name::of_peer(socket).is_some() {
            return Verdict::Returns(libc::EISCONN);
        }
        let Some(peer) = target(call, socket) else { return Verdict::Kernel };
        if !self.opens {
            if !call.has_mapped(SHIM) {
                self.tell(call, peer, "it does not use the preloaded library");
            }
            return Verdict::Kernel;
        }
        let flags = fcntl_getfl(socket).unwrap_or(OFlags::empty()) & OFlags::NONBLOCK;
        let mapped = peer.is_ipv4() && socket_domain(socket) == Ok(AddressFamily::INET6);
        let ask = ConnectRequest { peer, bound: bound(socket), nonblocking: !flags.is_empty(), mapped };
        let opened = match self.opener.open(&ask, || call.is_valid()) {
            Ok(opened) => opened,
            Err(LEAVE_TO_KERNEL) => return Verdict::Kernel,
            Err(errno) => return Verdict::Returns(errno),
        };
        let replaced =
            fcntl_setfl(&opened.end, flags).map_err(Into::into).and_then(|()| call.replace(&opened.end));
        if let Err(e) = replaced {
            if call.is_valid() {
                tracing::warn!(%peer, error = %e, "descriptor");
                self.tell(call, peer, "its descriptor cannot be replaced");
            }
            return Verdict::Kernel;
        }
        call.reply(&Verdict::Returns(opened.errno));
        opened.start();
        Verdict::Returns(0)
    }

    /// Reports a program that is not caught, once for each reason.
    fn tell(&self, call: &Call, peer: impl Into<Option<SocketAddr>>, why: &'static str) {
        let (program, process) = call.program();
        let mut told = self.told.lock();
        if told.len() < MAX_TOLD && told.insert((program.clone(), why)) {
            let to = peer.into().map_or(String::new(), |peer| format!(" to {peer}"));
            eprintln!(
                "rivulet run: {} (process {process}) connects{to} by plain TCP: {why}",
                program.display()
            );
        }
    }

    /// `SO_ERROR` of a connection: its failure, once; for other sockets the kernel answers.
    fn error(&self, call: &Call, socket: &OwnedFd) -> Verdict {
        if call.arguments[1] != libc::SOL_SOCKET as u64 {
            return Verdict::Kernel;
        }
        let errno = Name::of(socket).map_or(0, |name| self.opener.ended().take(name.id));
        if errno == 0 {
            return Verdict::Kernel;
        }
        // Clears the kernel's own error, so that it is not reported as well.
        let _ = socket_error(socket);
        let write = || {
            call.memory(call.arguments[3], &mut errno.to_ne_bytes(), true)?;
            call.memory(call.arguments[4], &mut 4u32.to_ne_bytes(), true)
        };
        done(write())
    }
}

/// The destination of a connect call, if the stack takes the connection.
fn target(call: &Call, socket: &OwnedFd) -> Option<SocketAddr> {
    let mut raw = [0u8; RAW];
    let raw = &mut raw[..(call.arguments[2] as usize).min(RAW)];
    call.memory(call.arguments[1], raw, false).ok()?;
    decode(raw).filter(|peer| wants(socket, peer))
}

fn done(written: io::Result<()>) -> Verdict {
    Verdict::Returns(written.map_or(libc::EFAULT, |()| 0))
}

/// Accepts options of TCP and IP, which have no meaning on the socket pair; refuses kernel TLS,
/// because a program must not believe that it has encryption.
fn set(call: &Call) -> Verdict {
    let of_tcp = call.arguments[1] == libc::IPPROTO_TCP as u64;
    let wanted = of_tcp && call.arguments[2] == libc::TCP_ULP as u64 || call.arguments[1] == SOL_TLS;
    Verdict::Returns(if wanted { libc::ENOENT } else { 0 })
}

/// Writes an address to where getpeername and getsockname expect it.
fn tell_address(call: &Call, name: Option<Name>) -> Verdict {
    let Some(name) = name else { return Verdict::Kernel };
    let (mut raw, length) = encode(&name.address);
    let mut write = || {
        let mut room = [0; 4];
        call.memory(call.arguments[2], &mut room, false)?;
        let room = (u32::from_ne_bytes(room) as usize).min(length);
        call.memory(call.arguments[1], &mut raw[..room], true)?;
        call.memory(call.arguments[2], &mut (length as u32).to_ne_bytes(), true)
    };
    done(write())
}
