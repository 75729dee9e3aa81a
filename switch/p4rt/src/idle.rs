//! Idle timeouts (P4Runtime section 16.4): a notification when an entry was not hit for its
//! timeout, and again after each further timeout without a hit.

use std::collections::HashMap;

use rivulet_engine::{Entry, EntryKey, TableId};

use crate::config::Config;
use crate::proto::p4::v1 as p4;
use p4::entity::Entity;

/// Entries reported as idle and not hit since. The engine reports each idle period once; this
/// module times the further notifications.
#[derive(Default)]
pub struct Idle {
    pipeline: Option<u64>,
    /// When each entry was last reported, in nanoseconds.
    reported: HashMap<(TableId, EntryKey), u64>,
}

impl Idle {
    /// Finds idle entries and returns one notification for each table with any. `now` is in
    /// nanoseconds from any start.
    pub fn sweep(&mut self, config: &Config, now: u64) -> Vec<p4::IdleTimeoutNotification> {
        if self.pipeline != Some(config.pipeline.serial()) {
            self.reported.clear();
            self.pipeline = Some(config.pipeline.serial());
        }
        let mut idle: HashMap<(TableId, EntryKey), Entry> =
            config.pipeline.take_idle().into_iter().map(|(t, e)| ((t, e.spec.key.clone()), e)).collect();
        self.reported.retain(|key, last| {
            let Ok(entry) = config.pipeline.entry(key.0, &key.1) else { return false };
            let since = now.saturating_sub(*last);
            let timeout = entry.spec.idle_timeout_ns;
            if timeout == 0 || entry.idle_ns < since {
                return false; // hit or written again: the engine restarts the timeout
            }
            if since >= timeout {
                idle.insert(key.clone(), entry);
            }
            true
        });
        for key in idle.keys() {
            self.reported.insert(key.clone(), now);
        }
        notifications(config, idle)
    }
}

fn notifications(
    config: &Config,
    idle: HashMap<(TableId, EntryKey), Entry>,
) -> Vec<p4::IdleTimeoutNotification> {
    let mut by_table: HashMap<TableId, Vec<p4::TableEntry>> = HashMap::new();
    for ((engine, _), entry) in idle {
        let table = config.index.table_ids.get(&engine).and_then(|id| config.index.tables.get(id));
        if let Some(table) = table.filter(|t| t.idle_timeout) {
            let entry = config.table_entry(table, &entry, &p4::TableEntry::default());
            let mut entity = Entity::TableEntry(entry);
            config.to_controller(&mut entity);
            let Entity::TableEntry(entry) = entity else { continue };
            by_table.entry(engine).or_default().push(entry);
        }
    }
    let timestamp = crate::server::epoch_ns();
    by_table.into_values().map(|table_entry| p4::IdleTimeoutNotification { table_entry, timestamp }).collect()
}
