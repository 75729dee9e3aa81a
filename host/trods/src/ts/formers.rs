//! Clients of a process that died here: of what it named last it may not have told anybody, and a client that only receives would
//! never speak by itself. They are asked where they are; whoever gets the answer listens to clients of which nobody told
//! ([`HUNT`](super::HUNT)), and goes on.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::time::{Duration, Instant};

use rivulet_bpf::trods::FlowKey;

use super::lost::{BURST, PACE, probes};
use super::{Names, Service};
use crate::hold::{HoldError, Keeper, Watch};

/// When they are asked, milliseconds after their sockets here were ended. Others tell within a second what they have.
const ASKED: [u64; 5] = [100, 500, 1100, 2000, 3500];
/// Of the timestamps in which they are asked: an object that is nobody's.
const BASE: u32 = u32::MAX >> 5;

/// Those that are to be asked, when, and how often they were.
#[derive(Debug, Default)]
pub(super) struct Questions(BinaryHeap<Reverse<(Instant, usize, FlowKey)>>);

impl Names {
    /// The sockets of these connections were ended here, since their process died.
    pub fn ask_formers(&mut self, formers: Vec<FlowKey>, now: Instant) {
        let paced = (0..).flat_map(|n| (0..BURST).map(move |_| now + PACE * n));
        for (key, at) in formers.into_iter().zip(paced) {
            self.questions.0.push(Reverse((at + Duration::from_millis(ASKED[0]), 0, key)));
        }
    }

    /// Asks those of which nobody has told by now.
    pub(super) fn ask_due<K: Keeper>(&mut self, now: Instant, watch: &mut Watch<K>) {
        while let Some(&Reverse((at, asked, key))) = self.questions.0.peek()
            && at <= now
        {
            self.questions.0.pop();
            let Some(&n) = self.at.get(&key.service()) else { continue };
            if self.hints.holder(&key).is_some() {
                continue;
            }
            if let Some(next) = ASKED.get(asked + 1) {
                let at = at + Duration::from_millis(next - ASKED[asked]);
                self.questions.0.push(Reverse((at, asked + 1, key)));
            }
            if let Err(e) = ask(&key, &self.services[n], watch) {
                tracing::debug!(error = %e, client = %key.client(), "not asked");
            }
        }
    }
}

fn ask<K: Keeper>(key: &FlowKey, of: &Service, watch: &mut Watch<K>) -> Result<(), HoldError> {
    // The client's own numbers nobody here knows: they are looked at behind those of what it is sent (RFC 9293 section 3.10.7.4).
    let keys = of.named.keys.iter().map(|(isn_key, _)| *isn_key);
    let packets = probes(key, keys, 0, BASE).map_err(io::Error::other)?;
    packets.iter().try_for_each(|packet| watch.hold_mut().send_past(key, of.named.tor, packet))
}
