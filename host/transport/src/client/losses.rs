//! What a connection does about lost packets.

use core::ops::Range;

use super::connection::Connection;
use crate::time::Time;

impl Connection {
    /// Schedules input to be sent again, unless the stream was forgotten.
    pub(super) fn input_lost(&mut self, stream: u16, range: Range<u64>, fin: bool) {
        if let Some(s) = self.streams.get_mut(&stream) {
            s.input.lost(range, fin);
        }
    }

    pub(super) fn settle_want(&mut self, want: Range<u64>) {
        if let Some(s) = self.streams.get_mut(&((want.start >> 48) as u16)) {
            s.output.settle(want);
        }
    }

    /// Detects losses, and requests again what was requested with the lost numbers.
    pub(super) fn settle_declared(&mut self, now: Time) {
        let Some(generation) = self.generation.as_mut() else { return };
        self.detection = generation.detect(now, &self.rtt);
        let declared = core::mem::take(&mut generation.declared);
        for index in declared {
            self.statistics.declared += 1;
            let Some(generation) = self.generation.as_mut() else { return };
            if index >= self.recovering_until {
                self.recovering_until = index + generation.population() as u32;
                self.rtt.recovery();
            }
            let Some(slot) = generation.slot_mut(index) else { continue };
            let (want, input) = (slot.want.take(), slot.input.clone());
            if let Some(want) = want {
                self.settle_want(want);
            }
            if let Some((stream, range, fin)) = input {
                self.input_lost(stream, range, fin);
            }
        }
        if let Some(generation) = self.generation.as_mut() {
            generation.prune();
        }
    }
}
