//! The switch: a packet path owned by one thread, and a handle for all others.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::control::Pipeline;
use crate::datapath::{Core, DataPath};
use crate::mirror::Place;
use crate::program::Program;
use crate::runtime::{Op, Runtime};
use crate::trace::Trace;
use crate::types::{DigestSample, WriteError};
use crate::workers::{Home, Inbox, Seat};

/// Commands that can wait for the packet path.
const MAX_QUEUED: usize = 65_536;
/// Longest wait of a write for the packet path.
const PATIENCE: Duration = Duration::from_secs(1);
/// Log messages that can wait for their reader.
const LOG_CAPACITY: usize = 1024;
/// Largest number of packets in a trace request.
const MAX_TRACES: usize = 4096;

/// Settings of a switch.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// Value of `egress_spec` that drops (written by `mark_to_drop`). BMv2's default: 511.
    pub drop_port: u32,
    /// Number of priority queues of a port, 1 to 8; `standard_metadata.priority` selects one, and
    /// the largest number is served first.
    pub priority_queues: u32,
    /// Largest number of resubmits and recirculations of a packet and all its copies together;
    /// beyond it they are dropped and counted. BMv2 has no limit.
    pub max_passes: u32,
    /// Largest number of copies (clones and multicast) of a packet.
    pub max_copies: u32,
    /// Capacity of the digest channel; further samples are dropped and counted.
    pub digest_capacity: usize,
    /// Whether programs run as machine code (x86-64 Linux) or are interpreted.
    pub native: bool,
    /// Seed of `random`.
    pub seed: u64,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        SwitchConfig {
            drop_port: 511,
            priority_queues: 1,
            max_passes: 256,
            max_copies: 1024,
            digest_capacity: 4096,
            native: true,
            seed: 0x5269_7675_6c65_7421,
        }
    }
}

/// Channels from the packet path. Both are bounded; the packet path never waits for a reader.
pub struct Events {
    /// Digest samples, see [`Pipeline::enable_digest`].
    pub digests: Receiver<DigestSample>,
    /// `log_msg`, and failed `assert`/`assume` (which end the process in BMv2; here they drop the
    /// packet).
    pub logs: Receiver<String>,
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Packets given to [`DataPath::process`].
    pub received: u64,
    /// Packets emitted.
    pub emitted: u64,
    /// Dropped at the end of ingress (`mark_to_drop`).
    pub ingress_dropped: u64,
    /// Dropped at the end of egress.
    pub egress_dropped: u64,
    /// Arrived before a pipeline was committed.
    pub no_pipeline: u64,
    /// Multicast to a group that does not exist or has no replicas.
    pub no_multicast_group: u64,
    /// Packets with a parser error (which does not drop them).
    pub parser_errors: u64,
    /// Dropped at the limit of passes or of copies.
    pub pass_limit: u64,
    /// Dropped because a port's queue was full.
    pub queue_full: u64,
    /// Dropped by a failed `assert` or `assume`, or because the packet is too long.
    pub faults: u64,
    /// Digest samples lost because the channel was full.
    pub digests_lost: u64,
    /// Log messages lost because the channel was full.
    pub logs_lost: u64,
}

/// A program with its state, as the packet path uses it. A saved one has one owner.
pub(crate) struct Live {
    pub(crate) program: Arc<Program>,
    pub(crate) rt: Runtime,
}

impl Live {
    /// A copy with separate state.
    pub(crate) fn copy(&self) -> Live {
        Live { program: self.program.clone(), rt: self.rt.copy(&self.program) }
    }
}

/// A command for the packet path.
pub(crate) enum Command {
    /// For the pipeline with this serial number; ignored by others.
    Op(u64, Op),
    /// Several writes at once, between two packets.
    Batch(u64, Vec<Op>),
    Swap(Arc<Live>),
    Port {
        port: Option<u32>,
        rate_pps: Option<u64>,
        depth: usize,
    },
    Trace {
        to: SyncSender<Trace>,
        count: usize,
        port: Option<u32>,
    },
}

/// The control side's end of the command queue.
#[derive(Clone)]
pub(crate) struct Queue {
    sender: Sender<Command>,
    /// Commands not yet taken; the only value that the packet path checks when there are none.
    pub(crate) waiting: Arc<AtomicUsize>,
}

impl Queue {
    /// Waits until there is room.
    pub(crate) fn wait(&self) -> Result<(), WriteError> {
        let start = Instant::now();
        while self.waiting.load(Ordering::Relaxed) >= MAX_QUEUED {
            if start.elapsed() > PATIENCE {
                return Err(WriteError::Busy);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    pub(crate) fn op(&self, serial: u64, op: Op) {
        self.send(Command::Op(serial, op));
    }

    pub(crate) fn batch(&self, serial: u64, ops: Vec<Op>) {
        if !ops.is_empty() {
            self.send(Command::Batch(serial, ops));
        }
    }

    /// Waits until the packet path has taken all commands.
    pub(crate) fn settle(&self) -> Result<(), WriteError> {
        let start = Instant::now();
        while self.waiting.load(Ordering::Acquire) != 0 {
            if start.elapsed() > PATIENCE {
                return Err(WriteError::Busy);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    fn send(&self, command: Command) {
        // Ignore a packet path that has ended.
        if self.sender.send(command).is_ok() {
            self.waiting.fetch_add(1, Ordering::Release);
        }
    }
}

/// Counters of [`Stats`], written by one packet path.
#[derive(Default)]
pub(crate) struct StatCells {
    pub(crate) received: AtomicU64,
    pub(crate) emitted: AtomicU64,
    pub(crate) ingress_dropped: AtomicU64,
    pub(crate) egress_dropped: AtomicU64,
    pub(crate) no_pipeline: AtomicU64,
    pub(crate) no_multicast_group: AtomicU64,
    pub(crate) parser_errors: AtomicU64,
    pub(crate) pass_limit: AtomicU64,
    pub(crate) queue_full: AtomicU64,
    pub(crate) faults: AtomicU64,
    pub(crate) digests_lost: AtomicU64,
    pub(crate) logs_lost: AtomicU64,
    pub(crate) now_us: AtomicU64,
}

/// Increments a counter. There is one writer, so this need not be an atomic addition.
#[inline(always)]
pub(crate) fn bump(cell: &AtomicU64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

struct Inner {
    queue: Queue,
    /// Counters of each worker.
    stats: Vec<Arc<StatCells>>,
    state: Mutex<State>,
}

struct State {
    forwarding: Option<Pipeline>,
    /// Retired pipelines, to be freed here instead of in the packet path.
    retired: Receiver<Arc<Live>>,
}

/// Handle to a running switch; clone it freely.
#[derive(Clone)]
pub struct Switch {
    inner: Arc<Inner>,
}

impl Switch {
    /// Creates a switch without a pipeline: it drops all packets until one is committed.
    pub fn new(config: SwitchConfig) -> (Switch, DataPath, Events) {
        let (switch, inbox, mut cores, events) = Self::parts(&config, NonZeroUsize::MIN);
        let path = DataPath::new(cores(0), Home::Own(None), inbox);
        (switch, path, events)
    }

    /// Creates a switch with several packet paths, for several threads. The caller distributes the
    /// packets; to keep the order of a flow, its packets must use one path. An action locks the
    /// registers that it names during its execution, counters and meters are exact, and a write or
    /// an atomic batch takes effect in all paths at the same time. Differences from one path:
    /// `random` and round robin are independent in each path, and there are no queues with a rate.
    pub fn with_workers(config: SwitchConfig, workers: NonZeroUsize) -> (Switch, Vec<DataPath>, Events) {
        if workers == NonZeroUsize::MIN {
            let (switch, path, events) = Switch::new(config);
            return (switch, vec![path], events);
        }
        let (switch, inbox, mut cores, events) = Self::parts(&config, workers);
        let seats: Arc<[Seat]> = (0..workers.get()).map(|_| Seat::default()).collect();
        let path = |i| DataPath::new(cores(i).shared(), Home::Shared(seats.clone(), i), inbox.clone());
        (switch, (0..workers.get()).map(path).collect(), events)
    }

    fn parts(
        config: &SwitchConfig,
        workers: NonZeroUsize,
    ) -> (Switch, Arc<Inbox>, impl FnMut(usize) -> Core + use<>, Events) {
        let (sender, commands) = channel();
        let (to_retired, retired) = channel();
        let (to_digests, digests) = sync_channel(config.digest_capacity.clamp(1, 1 << 20));
        let (to_logs, logs) = sync_channel(LOG_CAPACITY);
        let queue = Queue { sender, waiting: Arc::new(AtomicUsize::new(0)) };
        let inbox = Arc::new(Inbox::new(commands, queue.waiting.clone(), to_retired));
        let stats: Vec<Arc<StatCells>> = (0..workers.get()).map(|_| Arc::default()).collect();
        let (cells, config) = (stats.clone(), config.clone());
        let core = move |i: usize| {
            // Each one has its own random numbers.
            let seed = config.seed ^ (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let config = SwitchConfig { seed, ..config.clone() };
            Core::new(config, cells[i].clone(), to_digests.clone(), to_logs.clone())
        };
        let state = Mutex::new(State { forwarding: None, retired });
        let switch = Switch { inner: Arc::new(Inner { queue, stats, state }) };
        (switch, inbox, core, Events { digests, logs })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.retired.try_iter().for_each(drop);
        state
    }

    /// Makes `pipeline` the forwarding one. Everything written to it so far applies from the first
    /// packet after this call, and the previous one is retired. Committing the forwarding pipeline
    /// again has no effect.
    ///
    /// # Errors
    /// [`WriteError::InUse`] for a retired pipeline or one that another switch forwards with;
    /// [`WriteError::Busy`].
    pub fn commit(&self, pipeline: &Pipeline) -> Result<(), WriteError> {
        let mut state = self.state();
        if state.forwarding.as_ref().is_some_and(|f| f.serial() == pipeline.serial()) {
            return Ok(());
        }
        self.inner.queue.wait()?;
        {
            let mut ctl = pipeline.ctl();
            if !matches!(ctl.place, Place::Saved(_)) {
                return Err(WriteError::InUse("the pipeline is retired or forwards elsewhere".into()));
            }
            let place = std::mem::replace(&mut ctl.place, Place::Forwarding(self.inner.queue.clone()));
            if let Place::Saved(live) = place {
                if self.inner.stats.len() > 1 {
                    live.program.prepare_many();
                }
                self.inner.queue.send(Command::Swap(Arc::from(live)));
            }
        }
        if let Some(old) = state.forwarding.replace(pipeline.clone()) {
            old.ctl().place = Place::Retired;
        }
        Ok(())
    }

    /// The forwarding pipeline.
    pub fn forwarding(&self) -> Option<Pipeline> {
        self.state().forwarding.clone()
    }

    /// The packet path's latest time in microseconds.
    pub fn now_us(&self) -> u64 {
        self.inner.stats.iter().map(|s| s.now_us.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// Totals.
    pub fn stats(&self) -> Stats {
        drop(self.state());
        let sum = |get: fn(&StatCells) -> &AtomicU64| {
            self.inner.stats.iter().map(|s| get(s).load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
        };
        Stats {
            received: sum(|s| &s.received),
            emitted: sum(|s| &s.emitted),
            ingress_dropped: sum(|s| &s.ingress_dropped),
            egress_dropped: sum(|s| &s.egress_dropped),
            no_pipeline: sum(|s| &s.no_pipeline),
            no_multicast_group: sum(|s| &s.no_multicast_group),
            parser_errors: sum(|s| &s.parser_errors),
            pass_limit: sum(|s| &s.pass_limit),
            queue_full: sum(|s| &s.queue_full),
            faults: sum(|s| &s.faults),
            digests_lost: sum(|s| &s.digests_lost),
            logs_lost: sum(|s| &s.logs_lost),
        }
    }

    /// Sets the rate in packets a second (`None`: no limit and no queue) and the depth in packets
    /// of the queues of a port, or of all ports; BMv2's `set_queue_rate` and `set_queue_depth`.
    ///
    /// # Errors
    /// [`WriteError::Invalid`] for a rate or a depth of 0, and with several workers, because a port
    /// then has no common queue; [`WriteError::Busy`].
    pub fn set_queue(
        &self,
        port: Option<u32>,
        rate_pps: Option<u64>,
        depth: usize,
    ) -> Result<(), WriteError> {
        if rate_pps == Some(0) || depth == 0 {
            return Err(WriteError::Invalid("a queue has a rate and a depth of 1 or more".into()));
        }
        if self.inner.stats.len() > 1 {
            return Err(WriteError::Invalid("with several workers there are no queues with a rate".into()));
        }
        self.inner.queue.wait()?;
        self.inner.queue.send(Command::Port { port, rate_pps, depth });
        Ok(())
    }

    /// Requests traces of the next packets, from one port or any; they arrive in order in the
    /// returned channel, at most `count` (and 4096). A new request ends the previous one.
    pub fn trace_next(&self, count: usize, port: Option<u32>) -> Receiver<Trace> {
        let count = count.clamp(1, MAX_TRACES);
        let (to, traces) = sync_channel(count);
        self.inner.queue.send(Command::Trace { to, count, port });
        traces
    }
}
