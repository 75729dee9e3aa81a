//! Ports for other threads: the table that they read, and the commands that they send to the packet
//! path.

mod inbox;
mod link;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use rivulet_link::Settings;
use rivulet_p4rt::{Link, Port, PortError, Ports, TraceReport};
use rivulet_pktio::{AfPacket, AfXdp, Config, Interface, OpenError, PacketIo};

use crate::options::{IoChoice, MAX_PORT};
use crate::pcap::PortPcap;
pub use inbox::{Command, Inbox, NewPort, PortShared};
use inbox::{PACKET_OUTS, ring};
use link::{link_settings, settings};

/// Longest wait for an answer of the packet path.
const ANSWER: Duration = Duration::from_secs(2);

/// A port in the table.
#[derive(Debug)]
pub struct Entry {
    /// Its interface.
    pub interface: Interface,
    /// Name of its packet I/O.
    pub backend: String,
    /// Counters and state, for each worker.
    pub shared: Vec<Arc<PortShared>>,
    /// Settings of the link.
    pub link: Mutex<Option<Settings>>,
}

impl Entry {
    /// Link state as the first worker reports it.
    fn up(&self) -> bool {
        self.shared.first().is_some_and(|s| s.up.load(Ordering::Relaxed))
    }
}

/// Settings for opening ports.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Packet I/O.
    pub io: IoChoice,
    /// Directory of pcap files.
    pub pcap: Option<PathBuf>,
    /// Not usable as a data port.
    pub cpu_port: Option<u32>,
    /// Not usable as a data port.
    pub drop_port: u32,
    /// Largest number of ports.
    pub max_ports: usize,
    /// Number of worker threads, at least 1. Several share an interface's frames by flow (AF_PACKET
    /// only), without links and pcap files.
    pub workers: usize,
}

/// Reports when all workers have attached a port.
pub struct Attached {
    receiver: Receiver<()>,
    workers: usize,
}

impl Attached {
    /// Waits for that.
    pub fn wait(&self) -> Result<(), PortError> {
        (0..self.workers).try_for_each(|_| self.receiver.recv_timeout(ANSWER).map_err(unanswered))
    }
}

/// The ports of a switch, for all threads except the packet path; clones share the table.
#[derive(Clone)]
pub struct PortControl {
    inner: Arc<Inner>,
}

struct Inner {
    config: PortConfig,
    table: RwLock<BTreeMap<u32, Arc<Entry>>>,
    /// Port numbers being added or removed.
    busy: Mutex<BTreeSet<u32>>,
    /// Command channel and wake-up descriptor of each worker.
    workers: Vec<(Sender<Command>, Arc<OwnedFd>)>,
    /// Packet-outs, to the first worker.
    packet_outs: SyncSender<Vec<u8>>,
}

/// Marks a number as busy while it exists.
struct Busy<'a>(&'a Inner, u32);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        lock(&self.0.busy).remove(&self.1);
    }
}

/// Ignores poisoning: the lock holds plain data that is never partly written.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unanswered(error: RecvTimeoutError) -> PortError {
    match error {
        RecvTimeoutError::Timeout => PortError::Full("the packet path does not answer".into()),
        RecvTimeoutError::Disconnected => PortError::System("the packet path has ended".into()),
    }
}

/// Opens an interface with the chosen packet I/O. `share`: see [`Config`].
pub fn open(
    interface: &Interface,
    choice: IoChoice,
    share: Option<u16>,
) -> Result<Box<dyn PacketIo>, OpenError> {
    let packet = || -> Result<Box<dyn PacketIo>, OpenError> {
        Ok(Box::new(AfPacket::open(interface, Config { share, ..Config::default() })?))
    };
    if choice == IoChoice::AfPacket {
        return packet();
    }
    match AfXdp::open(interface, Config::default()) {
        Ok(io) => Ok(Box::new(io)),
        Err(e) if choice == IoChoice::Auto => {
            tracing::info!("AF_PACKET instead of AF_XDP: {e}");
            packet()
        }
        Err(e) => Err(e),
    }
}

impl PortControl {
    /// An empty table, and each worker's receiving ends.
    pub fn new(config: PortConfig) -> std::io::Result<(PortControl, Vec<Inbox>)> {
        let (packet_outs, packet_out_inbox) = sync_channel(PACKET_OUTS);
        let mut packet_out_inbox = Some(packet_out_inbox);
        let (mut workers, mut inboxes) = (Vec::new(), Vec::new());
        for _ in 0..config.workers.max(1) {
            let wake = Arc::new(inbox::eventfd()?);
            let (sender, commands) = channel();
            // The first worker handles controllers' packet-outs.
            let packet_outs = packet_out_inbox.take().unwrap_or_else(|| sync_channel(1).1);
            workers.push((sender, wake.clone()));
            inboxes.push(Inbox { commands, packet_outs, wake });
        }
        let inner = Inner { config, table: RwLock::default(), busy: Mutex::default(), workers, packet_outs };
        Ok((PortControl { inner: Arc::new(inner) }, inboxes))
    }

    fn table(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<u32, Arc<Entry>>> {
        self.inner.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn table_mut(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<u32, Arc<Entry>>> {
        self.inner.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// All ports in order of number.
    #[must_use]
    pub fn entries(&self) -> Vec<(u32, Arc<Entry>)> {
        self.table().iter().map(|(n, e)| (*n, e.clone())).collect()
    }

    fn command(&self, worker: usize, command: Command) -> Result<(), PortError> {
        let ended = || PortError::System("the packet path has ended".into());
        let (sender, wake) = self.inner.workers.get(worker).ok_or_else(ended)?;
        sender.send(command).map_err(|_| ended())?;
        ring(wake);
        Ok(())
    }

    /// Sends a command to all workers and waits for their answers.
    fn ask_all<T>(&self, command: impl Fn(SyncSender<T>) -> Command) -> Result<Vec<T>, PortError> {
        let workers = self.inner.workers.len();
        let (sender, answers) = sync_channel(workers);
        (0..workers).try_for_each(|w| self.command(w, command(sender.clone())))?;
        (0..workers).map(|_| answers.recv_timeout(ANSWER).map_err(unanswered)).collect()
    }

    fn hold(&self, port: u32) -> Result<Busy<'_>, PortError> {
        if !lock(&self.inner.busy).insert(port) {
            return Err(PortError::Exists(format!("port {port} is just being changed")));
        }
        Ok(Busy(&self.inner, port))
    }

    /// Opens an interface, with a link or without, and passes it to the packet path. The returned
    /// value reports when it is attached; do not wait for that before the packet path runs.
    pub fn add(
        &self,
        port: u32,
        interface: &Interface,
        link: Option<Settings>,
    ) -> Result<Attached, PortError> {
        let config = &self.inner.config;
        if port > MAX_PORT || config.cpu_port == Some(port) || config.drop_port == port {
            return Err(PortError::Invalid(format!("port {port} cannot be a data port")));
        }
        let _busy = self.hold(port)?;
        {
            let table = self.table();
            if table.contains_key(&port) {
                return Err(PortError::Exists(format!("port {port}")));
            }
            if let Some((other, _)) = table.iter().find(|(_, e)| e.interface == *interface) {
                return Err(PortError::Exists(format!("interface {interface} is port {other}")));
            }
            if table.len() >= config.max_ports {
                return Err(PortError::Full(format!("{} ports are the most", config.max_ports)));
            }
        }
        let workers = self.inner.workers.len();
        // Sockets that share an interface need a common number, which other processes are unlikely
        // to use.
        let share = (workers > 1).then(|| (std::process::id() as u16).rotate_left(5));
        let mut parts = Vec::new();
        for _ in 0..workers {
            let io = open(interface, config.io, share).map_err(|e| match e {
                OpenError::NoSuchInterface(_) | OpenError::Netns { .. } => PortError::NotFound(e.to_string()),
                OpenError::Name(..) | OpenError::Config(_) => PortError::Invalid(e.to_string()),
                OpenError::Unsupported(..) => PortError::Unsupported(e.to_string()),
                OpenError::Os { .. } => PortError::System(e.to_string()),
            })?;
            let shared = Arc::new(PortShared::default());
            shared.up.store(io.link().is_ok_and(|l| l.up), Ordering::Relaxed);
            parts.push((io, shared));
        }
        let mut pcap = config
            .pcap
            .as_ref()
            .map(|dir| PortPcap::create(dir, &interface.to_string()))
            .transpose()
            .map_err(|e| PortError::System(format!("pcap file: {e}")))?;
        let entry = Entry {
            interface: interface.clone(),
            backend: parts.first().map(|(io, _)| io.backend().to_string()).unwrap_or_default(),
            shared: parts.iter().map(|(_, shared)| shared.clone()).collect(),
            link: Mutex::new(link.clone()),
        };
        let (reply, receiver) = sync_channel(workers);
        for (worker, (io, shared)) in parts.into_iter().enumerate() {
            let new = NewPort { number: port, io, link: link.clone(), pcap: pcap.take(), shared };
            self.command(worker, Command::Add(Box::new(new), reply.clone()))?;
        }
        self.table_mut().insert(port, Arc::new(entry));
        Ok(Attached { receiver, workers })
    }

    /// Waits until the counters in the table are current; returns silently if the packet path is
    /// busy for too long.
    pub fn refresh(&self) {
        let _ = self.ask_all(Command::Refresh);
    }
}

impl Ports for PortControl {
    fn add_port(&self, port: u32, interface: &str) -> Result<(), PortError> {
        let interface: Interface =
            interface.parse().map_err(|e: OpenError| PortError::Invalid(e.to_string()))?;
        self.add(port, &interface, None)?.wait()
    }

    fn remove_port(&self, port: u32) -> Result<(), PortError> {
        let _busy = self.hold(port)?;
        if !self.table().contains_key(&port) {
            return Err(PortError::NotFound(format!("port {port}")));
        }
        // The descriptors are returned to this thread, so that closing them does not delay packets.
        drop(self.ask_all(|reply| Command::Remove(port, reply))?);
        self.table_mut().remove(&port);
        Ok(())
    }

    fn list_ports(&self) -> Vec<Port> {
        self.refresh();
        self.entries().iter().map(|(number, entry)| status(*number, entry)).collect()
    }

    fn is_up(&self, port: u32) -> Option<bool> {
        Some(self.table().get(&port)?.up())
    }

    fn set_link(&self, port: u32, link: Option<Link>) -> Result<(), PortError> {
        let settings = link.map(|l| settings(&l)).transpose()?;
        let missing = || PortError::NotFound(format!("port {port}"));
        let entry = self.table().get(&port).cloned().ok_or_else(missing)?;
        if self.inner.workers.len() > 1 {
            return Err(PortError::Unsupported("links need one worker (--workers 1)".into()));
        }
        let mut current = lock(&entry.link);
        if self.ask_all(|reply| Command::Link(port, settings.clone(), reply))?.contains(&false) {
            return Err(missing());
        }
        *current = settings;
        Ok(())
    }

    fn trace(&self, port: u32, frame: &[u8], dry_run: bool) -> Result<TraceReport, PortError> {
        let (reply, answer) = sync_channel(1);
        self.command(0, Command::Trace(port, frame.to_vec(), dry_run, reply))?;
        answer.recv_timeout(ANSWER).map_err(unanswered)
    }

    fn packet_out(&self, frame: Vec<u8>) -> Result<(), PortError> {
        if self.inner.config.cpu_port.is_none() {
            return Err(PortError::Unsupported("packet-out: started without --cpu-port".into()));
        }
        let full = |_| PortError::Full(format!("{PACKET_OUTS} packet-outs wait"));
        self.inner.packet_outs.try_send(frame).map_err(full)?;
        self.inner.workers.iter().take(1).for_each(|(_, wake)| ring(wake));
        Ok(())
    }
}

fn status(number: u32, entry: &Entry) -> Port {
    let sum = |get: fn(&PortShared) -> &AtomicU64| {
        entry.shared.iter().map(|s| get(s).load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    };
    Port {
        port: number,
        interface: entry.interface.to_string(),
        up: entry.up(),
        packet_io: entry.backend.clone(),
        rx_packets: sum(|s| &s.rx_packets),
        rx_bytes: sum(|s| &s.rx_bytes),
        tx_packets: sum(|s| &s.tx_packets),
        tx_bytes: sum(|s| &s.tx_bytes),
        rx_dropped: sum(|s| &s.rx_dropped),
        tx_dropped: sum(|s| &s.tx_dropped),
        link: lock(&entry.link).as_ref().map(link_settings),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control() -> (PortControl, Inbox) {
        let config = PortConfig {
            io: IoChoice::AfPacket,
            pcap: None,
            cpu_port: Some(510),
            drop_port: 511,
            max_ports: 4,
            workers: 1,
        };
        let (control, mut inboxes) = PortControl::new(config).unwrap();
        (control, inboxes.remove(0))
    }

    #[test]
    fn invalid_port_numbers_and_missing_interfaces_are_refused() {
        let (control, _inbox) = control();
        for port in [510, 511, MAX_PORT + 1, u32::MAX] {
            assert!(matches!(control.add_port(port, "lo"), Err(PortError::Invalid(_))), "{port}");
        }
        assert!(matches!(control.add_port(1, "no-such-if"), Err(PortError::NotFound(_))));
        assert!(matches!(control.add_port(1, "nowhere:lo"), Err(PortError::NotFound(_))));
        assert!(matches!(control.add_port(1, "a b"), Err(PortError::Invalid(_))));
        assert!(matches!(control.remove_port(1), Err(PortError::NotFound(_))));
        assert!(matches!(control.set_link(1, None), Err(PortError::NotFound(_))));
        assert_eq!(control.is_up(1), None);
    }

    #[test]
    fn packet_outs_are_bounded() {
        let (control, inbox) = control();
        for i in 0..PACKET_OUTS {
            control.packet_out(vec![i as u8]).unwrap();
        }
        assert!(matches!(control.packet_out(vec![0]), Err(PortError::Full(_))));
        assert_eq!(inbox.packet_outs.try_iter().count(), PACKET_OUTS);
        drop(inbox);
        assert!(matches!(control.command(0, Command::Refresh(sync_channel(1).0)), Err(PortError::System(_))));
    }
}
