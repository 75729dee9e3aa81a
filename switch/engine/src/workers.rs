//! State shared by the packet paths of a switch: the waiting commands, and the pipeline.
//!
//! A single packet path owns its pipeline. With several, each has a reference to it behind a lock
//! of its own, which it holds while it runs a packet, so that in the steady state no path waits. A
//! path that finds commands takes all these locks in the same order. Then no packet is in progress
//! and all references but one are dropped, so the commands are executed as with a single packet
//! path, between packets of all paths.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};

use parking_lot::{Mutex, MutexGuard};

use crate::datapath::Core;
use crate::runtime::Op;
use crate::switch::{Command, Live};
use crate::trace::Trace;

/// A worker's reference to the pipeline, in separate cache lines.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Seat(Mutex<Option<Arc<Live>>>);

/// Location of a packet path's pipeline.
pub(crate) enum Home {
    /// Owned by the only packet path.
    Own(Option<Arc<Live>>),
    /// Shared by several packet paths: their references, and the index of this path's own.
    Shared(Arc<[Seat]>, usize),
}

impl Home {
    /// Calls `work` with the pipeline, which does not change during the call.
    #[inline(always)]
    pub(crate) fn with<T>(&self, work: impl FnOnce(Option<&Live>) -> T) -> T {
        match self {
            Home::Own(live) => work(live.as_deref()),
            Home::Shared(seats, at) => work(seats[*at].0.lock().as_deref()),
        }
    }
}

/// A request for traces.
struct Request {
    to: SyncSender<Trace>,
    left: usize,
    port: Option<u32>,
}

/// Commands for the packet paths of a switch.
pub(crate) struct Inbox {
    /// Commands not yet taken; the only value that packets check when there are none.
    pub(crate) waiting: Arc<AtomicUsize>,
    pub(crate) traces_wanted: AtomicBool,
    taken: Mutex<Taken>,
}

struct Taken {
    commands: Receiver<Command>,
    retired: Sender<Arc<Live>>,
    request: Option<Request>,
}

impl Inbox {
    pub(crate) fn new(
        commands: Receiver<Command>,
        waiting: Arc<AtomicUsize>,
        retired: Sender<Arc<Live>>,
    ) -> Inbox {
        let taken = Mutex::new(Taken { commands, retired, request: None });
        Inbox { waiting, traces_wanted: AtomicBool::new(false), taken }
    }

    /// An inbox that receives nothing.
    pub(crate) fn closed() -> Inbox {
        Inbox::new(channel().1, Arc::default(), channel().0)
    }

    /// Whether to trace the next packet from a port, and the destination.
    #[cold]
    pub(crate) fn wants_trace(&self, port: u32) -> Option<SyncSender<Trace>> {
        let mut taken = self.taken.lock();
        let request = taken.request.as_mut().filter(|r| r.port.is_none_or(|p| p == port))?;
        request.left -= 1;
        let to = request.to.clone();
        if request.left == 0 {
            taken.request = None;
            self.traces_wanted.store(false, Ordering::Relaxed);
        }
        Some(to)
    }

    /// Sends a trace; without a reader tracing ends.
    #[cold]
    pub(crate) fn traced(&self, to: &SyncSender<Trace>, trace: Trace) {
        if to.try_send(trace).is_err() {
            self.taken.lock().request = None;
            self.traces_wanted.store(false, Ordering::Relaxed);
        }
    }

    /// Executes the waiting commands.
    #[cold]
    pub(crate) fn drain(&self, home: &mut Home, core: &mut Core) {
        let mut taken = self.taken.lock();
        match home {
            Home::Own(live) => self.carry_out(&mut taken, live, core),
            Home::Shared(seats, _) => {
                let mut seats: Vec<MutexGuard<'_, Option<Arc<Live>>>> =
                    seats.iter().map(|s| s.0.lock()).collect();
                let mut live = None;
                for seat in &mut seats {
                    // Drop the earlier references, so that the last one is the only one.
                    live = seat.take();
                }
                self.carry_out(&mut taken, &mut live, core);
                for seat in &mut seats {
                    **seat = live.clone();
                }
            }
        }
    }

    fn carry_out(&self, inbox: &mut Taken, live: &mut Option<Arc<Live>>, core: &mut Core) {
        let mut count = 0;
        while let Ok(command) = inbox.commands.try_recv() {
            count += 1;
            match command {
                Command::Op(serial, op) => apply(live, serial, [op]),
                Command::Batch(serial, ops) => apply(live, serial, ops),
                Command::Swap(new) => {
                    if let Some(old) = live.replace(new) {
                        // The control side frees it.
                        let _ = inbox.retired.send(old);
                    }
                }
                Command::Port { port, rate_pps, depth } => core.set_queue(port, rate_pps, depth),
                Command::Trace { to, count, port } => {
                    inbox.request = Some(Request { to, left: count, port });
                    self.traces_wanted.store(true, Ordering::Relaxed);
                }
            }
        }
        self.waiting.fetch_sub(count, Ordering::Release);
    }
}

/// Writes for a pipeline that is no longer used are lost with it.
fn apply(live: &mut Option<Arc<Live>>, serial: u64, ops: impl IntoIterator<Item = Op>) {
    if let Some(live) = live.as_mut().filter(|l| l.rt.serial == serial) {
        // There is no other reference now.
        if let Some(live) = Arc::get_mut(live) {
            ops.into_iter().for_each(|op| live.rt.apply(op));
        } else {
            debug_assert!(false, "a pipeline is changed while packets use it");
        }
    }
}
