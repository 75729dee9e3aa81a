//! What timestamps name when a replica drains is recorded, where there is a store: by its record it moves (`docs/moves.md`).

use std::net::SocketAddr;

use rivulet_bpf::trods::Phase;

use super::{Names, read, reading};
use crate::hold::{HoldError, Keeper, Watch, now_ms};

/// Connections that are recorded at once: the store has others to keep.
const AT_ONCE: usize = 256;

impl Names {
    /// Gives connections of these services to the watch, of which a client has at least the head of its response, and has said so.
    /// The others have one a moment later, or ask for more.
    pub fn record<K: Keeper>(&self, services: &[SocketAddr], watch: &mut Watch<K>) -> Result<(), HoldError> {
        let mut keys = Vec::new();
        watch.hold().programs().stamps().each(|key, stamped| {
            if stamped.phase == Phase::Echoed && services.contains(&key.service()) {
                keys.push(key);
            }
        });
        let mut room = AT_ONCE;
        for key in keys {
            if room == 0 {
                break;
            }
            let programs = watch.hold().programs();
            // It may have changed while the others were looked at.
            let stamped = programs.stamps().get(&key)?.filter(|stamped| stamped.phase == Phase::Echoed);
            let (Some(stamped), Some(limits)) = (stamped, programs.limits(&key)?) else { continue };
            let record = reading(&self.services, &self.at, &key)
                .and_then(|with| read::named(&key, &stamped, limits.acked, with, now_ms()));
            if let Some(record) = record {
                watch.record(&record, &stamped, limits.acked)?;
                room -= 1;
            }
        }
        Ok(())
    }
}
