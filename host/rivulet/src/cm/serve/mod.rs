//! `rivulet cm serve`: admits users' programs to the Congestion Manager's calls.
//!
//! All state is in pinned BPF maps: this process may be killed at any time, and the next one finds
//! the clients. A client ends with its connection or its process; a client of an earlier daemon has
//! no connection any more.

mod account;
mod client;
mod peer;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use rivulet_bpf::cm::{CallOptions, Calls};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fs::{FlockOperation, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use crate::process::{raise_descriptors, stop_on_signals, stopped, tell_ready};
use client::Client;
use peer::Peer;

/// Interval of the checks for signals, ms.
const TICK: i64 = 500;
const BACKLOG: i32 = 128;
const LISTENER: u64 = 0;
const CONNECTION: u64 = 1 << 32;
const PROCESS: u64 = 2 << 32;

/// Arguments of `serve`.
#[derive(Args, Debug)]
pub(super) struct ServeArgs {
    /// Path of the socket to which programs connect
    #[arg(long, value_name = "PATH", default_value = libcm::daemon::SOCKET)]
    socket: PathBuf,

    /// The cgroup (version 2) in which programs' datagrams are counted; the windows of programs in
    /// other cgroups never grow [default: the root]
    #[arg(long, value_name = "DIRECTORY")]
    cgroup: Option<PathBuf>,

    /// A user to admit; may be repeated [default: all users]
    #[arg(long = "user", value_name = "UID")]
    users: Vec<u32>,

    /// Maximum number of simultaneous flows of a user and its subordinate user ids
    #[arg(long, value_name = "COUNT", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=32_768))]
    flows: u32,

    /// Maximum number of simultaneous programs of a user and its subordinate user ids; each takes
    /// 80 KiB of the kernel's memory
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    programs: u32,

    /// Maximum number of simultaneous programs of all users; the default limits the kernel's memory
    /// for them to 80 MiB
    #[arg(long, value_name = "COUNT", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=4096))]
    all_programs: u32,

    /// A user with --programs reserved places; may be repeated
    #[arg(long = "reserve", value_name = "UID")]
    reserved: Vec<u32>,

    /// Maximum number of destinations with kept windows, of all users; each takes 8 KiB of the
    /// kernel's memory
    #[arg(long, value_name = "COUNT", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    destinations: u32,

    /// Initial window of a destination without known state, packets
    #[arg(long, value_name = "PACKETS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    initial_window: u32,
}

/// Serves until SIGTERM or SIGINT.
pub(super) fn run(folder: &Path, args: &ServeArgs) -> anyhow::Result<()> {
    stop_on_signals();
    raise_descriptors();
    if args.reserved.len() as u64 * u64::from(args.programs) > u64::from(args.all_programs) {
        bail!(
            "--reserve keeps {} places for each of {} users, more than the {} that there are (--all-programs)",
            args.programs,
            args.reserved.len(),
            args.all_programs
        );
    }
    let _alone = alone(&args.socket)?;
    let calls = calls(folder, args)?;
    let mut door = Door::open(calls, args)?;
    eprintln!("programs are admitted at {}", args.socket.display());
    tell_ready();
    while !stopped() {
        door.turn()?;
    }
    // The pins stay: clients continue, and the next process finds them.
    let _ = fs::remove_file(&args.socket);
    Ok(())
}

/// Makes sure that only one process serves at a socket, by a lock that is held while the returned
/// file is open.
fn alone(socket: &Path) -> anyhow::Result<fs::File> {
    let folder = socket.parent().ok_or_else(|| anyhow!("{} is in no folder", socket.display()))?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = socket.with_extension("lock");
    // Any user who can open the file can lock it and so block this process, so it is readable for
    // this user only.
    let mut options = fs::File::options();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(&path).with_context(|| format!("cannot make {}", path.display()))?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!("another process serves at {}", socket.display());
    }
    Ok(file)
}

/// Opens the pinned BPF programs, or loads and pins new ones.
fn calls(folder: &Path, args: &ServeArgs) -> anyhow::Result<Calls> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    if let Some(calls) = Calls::pinned(folder).map_err(|e| anyhow!("{e}"))? {
        return Ok(calls);
    }
    // Removes the pins of a process that was killed during its start.
    Calls::unpin(folder).map_err(|e| anyhow!("{e}"))?;
    let default = CallOptions::default();
    let options = CallOptions {
        cgroup: args.cgroup.clone().unwrap_or(default.cgroup),
        flows: args.flows,
        clients: args.all_programs,
        macroflows: args.destinations,
        initial_window: args.initial_window,
        ..CallOptions::default()
    };
    let calls = Calls::load(&options).map_err(|e| anyhow!("cannot load the calls: {e}"))?;
    calls.pin(folder).map_err(|e| anyhow!("{e}"))?;
    Ok(calls)
}

struct Door<'a> {
    calls: Calls,
    args: &'a ServeArgs,
    listener: OwnedFd,
    epoll: OwnedFd,
    clients: BTreeMap<u32, Client>,
}

impl<'a> Door<'a> {
    fn open(calls: Calls, args: &'a ServeArgs) -> anyhow::Result<Door<'a>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        match fs::symlink_metadata(&args.socket) {
            // The socket was left by a process that was killed: the lock shows that no process
            // serves there.
            Ok(found) if found.file_type().is_socket() => fs::remove_file(&args.socket)?,
            Ok(_) => bail!(
                "{} is there and not a socket: remove it, or give another --socket",
                args.socket.display()
            ),
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            Err(_) => {}
        }
        bind(&listener, &SocketAddrUnix::new(&args.socket)?)
            .with_context(|| format!("cannot listen at {}", args.socket.display()))?;
        fs::set_permissions(&args.socket, fs::Permissions::from_mode(0o666))?;
        listen(&listener, BACKLOG)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        let mut door = Door { calls, args, listener, epoll, clients: BTreeMap::new() };
        door.find()?;
        Ok(door)
    }

    /// Finds the clients of an earlier process in the pinned maps.
    fn find(&mut self) -> anyhow::Result<()> {
        for known in self.calls.clients().map_err(|e| anyhow!("{e}"))? {
            match Peer::of(known.pid, known.uid, known.account).filter(|peer| peer.started == known.started) {
                Some(peer) => self.watch(known.id, Client::new(peer, None))?,
                None => self.evict(known.id),
            }
        }
        Ok(())
    }

    fn watch(&mut self, id: u32, client: Client) -> io::Result<()> {
        let data = |kind| EventData::new_u64(kind | u64::from(id));
        epoll::add(&self.epoll, &client.peer.process, data(PROCESS), EventFlags::IN)?;
        if let Some(socket) = &client.socket {
            epoll::add(&self.epoll, socket, data(CONNECTION), EventFlags::IN | EventFlags::RDHUP)?;
        }
        self.clients.insert(id, client);
        Ok(())
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        let mut events = Vec::with_capacity(64);
        let tick = rustix::event::Timespec { tv_sec: 0, tv_nsec: TICK * 1_000_000 };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&tick)) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            done => done.map(drop)?,
        }
        for event in events {
            let data = event.data.u64();
            let id = data as u32;
            match data & !u64::from(u32::MAX) {
                CONNECTION => self.hear(id),
                PROCESS => self.evict(id),
                _ => self.admit(),
            }
        }
        Ok(())
    }

    /// Admits a client, or logs why it is refused.
    fn admit(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(&self.listener, flags) {
            Ok(socket) => socket,
            Err(e) => {
                if matches!(e, rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) {
                    tracing::warn!("no program is admitted: {e}");
                    // Without the pause the loop would spin, because the connection still waits.
                    std::thread::sleep(Duration::from_millis(100));
                }
                return;
            }
        };
        let admitted = self.judge(&socket).and_then(|peer| {
            let (id, ring) = self
                .calls
                .admit(peer.uid, peer.account, peer.pid, peer.started)
                .map_err(|e| anyhow!("process {} of user {}: {e}", peer.pid, peer.uid))?;
            let client = Client::new(peer, Some(socket));
            let welcomed = client.welcome(id, &self.calls, ring.as_fd());
            if let Err(e) = welcomed.and_then(|()| self.watch(id, client)) {
                self.evict(id);
                return Err(e.into());
            }
            Ok(())
        });
        if let Err(why) = admitted {
            tracing::warn!("no program is admitted: {why}");
        }
    }

    fn judge(&self, socket: &OwnedFd) -> anyhow::Result<Peer> {
        let peer = Peer::connected(socket.as_fd())?;
        let Peer { pid, uid, .. } = peer;
        if !self.args.users.is_empty() && !self.args.users.contains(&uid) {
            bail!("process {pid} is of user {uid}, who is none of those of --user");
        }
        let ServeArgs { programs, all_programs, reserved, .. } = self.args;
        let accounts = self.clients.values().map(|c| c.peer.account);
        let own = accounts.clone().filter(|account| *account == peer.account).count();
        if own >= *programs as usize {
            bail!("process {pid} of user {uid}: {own} programs of user {} are in (--programs)", peer.account);
        }
        let others = accounts.filter(|account| !reserved.contains(account)).count();
        let open = *all_programs as usize - reserved.len() * *programs as usize;
        if others >= open && !reserved.contains(&peer.account) {
            bail!("process {pid} of user {uid}: all {open} places are taken (--all-programs, --reserve)");
        }
        Ok(peer)
    }

    /// Processes a client that calls through this process, or the end of its connection.
    fn hear(&mut self, id: u32) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if !client.hear(id, &self.calls) {
            self.evict(id);
        }
    }

    /// Closes the flows of a client that is gone.
    fn evict(&mut self, id: u32) {
        self.clients.remove(&id);
        match self.calls.evict(id) {
            Ok(flows) => tracing::debug!(client = id, flows, "a client is gone"),
            Err(e) => tracing::warn!(client = id, "what a client left cannot be closed: {e}"),
        }
    }
}
