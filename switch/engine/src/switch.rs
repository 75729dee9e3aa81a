//! The switch: a packet path that one thread owns, and a handle to it for everyone else.

use std::sync::mpsc::Receiver;

use crate::control::Pipeline;
use crate::datapath::DataPath;
use crate::trace::Trace;
use crate::types::{DigestSample, WriteError};

/// What a switch is started with.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// `egress_spec` of this value drops (`mark_to_drop` writes it). BMv2's default: 511.
    pub drop_port: u32,
    /// Priority queues a port has, 1 to 8; `standard_metadata.priority` picks one, the largest number is
    /// served first.
    pub priority_queues: u32,
    /// Resubmits and recirculations a packet and all its copies may make together before they are dropped
    /// (and counted). BMv2 goes on for ever.
    pub max_passes: u32,
    /// Copies (clones and multicast) a packet may make in all.
    pub max_copies: u32,
    /// Samples the digest channel holds; what does not fit is dropped and counted.
    pub digest_capacity: usize,
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
            seed: 0x5269_7675_6c65_7421,
        }
    }
}

/// What the packet path tells. Both channels are bounded; the packet path never waits for a reader.
pub struct Events {
    /// Digest samples, see [`Pipeline::enable_digest`].
    pub digests: Receiver<DigestSample>,
    /// `log_msg`, and failed `assert`/`assume` (which in BMv2 end the process, here they drop the packet).
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
    /// Arrived while no pipeline was committed.
    pub no_pipeline: u64,
    /// Multicast to a group that does not exist or has no replicas.
    pub no_multicast_group: u64,
    /// Packets whose parser ended with an error (they are not dropped for it).
    pub parser_errors: u64,
    /// Dropped at the bound of passes or of copies.
    pub pass_limit: u64,
    /// Dropped because a port's queue was full.
    pub queue_full: u64,
    /// Dropped by a failed `assert` or `assume`, or for a packet longer than the engine takes.
    pub faults: u64,
    /// Digest samples lost because the channel was full.
    pub digests_lost: u64,
    /// Log messages lost because the channel was full.
    pub logs_lost: u64,
}

/// Handle to a running switch; clone it freely.
#[derive(Clone)]
pub struct Switch {}

impl Switch {
    /// A switch with no pipeline: it drops all packets until one is committed.
    pub fn new(config: SwitchConfig) -> (Switch, DataPath, Events) {
        let _ = config;
        todo!()
    }

    /// Makes `pipeline` the forwarding one. Everything written to it so far is in force with the first packet
    /// after this call; the one before is retired. Committing the forwarding pipeline again does nothing.
    ///
    /// # Errors
    /// [`WriteError::InUse`] for a retired pipeline or one that another switch forwards with;
    /// [`WriteError::Busy`].
    pub fn commit(&self, pipeline: &Pipeline) -> Result<(), WriteError> {
        let _ = pipeline;
        todo!()
    }

    /// The forwarding pipeline.
    pub fn forwarding(&self) -> Option<Pipeline> {
        todo!()
    }

    /// The clock as the packet path last saw it, microseconds.
    pub fn now_us(&self) -> u64 {
        todo!()
    }

    /// Totals.
    pub fn stats(&self) -> Stats {
        todo!()
    }

    /// Rate in packets a second (`None`: no bound, and no queue at all) and depth in packets of the queues of
    /// a port, or of all ports; BMv2's `set_queue_rate` and `set_queue_depth`.
    pub fn set_queue(
        &self,
        port: Option<u32>,
        rate_pps: Option<u64>,
        depth: usize,
    ) -> Result<(), WriteError> {
        let _ = (port, rate_pps, depth);
        todo!()
    }

    /// Asks for a trace of the next packets, from one port or any; they arrive in order in the returned
    /// channel, at most `count`. A new request ends the one before.
    pub fn trace_next(&self, count: usize, port: Option<u32>) -> Receiver<Trace> {
        let _ = (count, port);
        todo!()
    }
}
