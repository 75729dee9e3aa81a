//! The device's configurations (P4Runtime sections 14 and 15): the forwarding one, and optionally
//! one that is saved but not committed, to which reads and writes then refer.

use std::sync::Arc;

use rivulet_engine::Switch;
use tonic::Status;

use crate::config::Config;
use crate::error::{Result, UpdateError, invalid, not_found};
use crate::ports::Ports;
use crate::proto::p4::v1 as p4;
use p4::entity::Entity;
use p4::set_forwarding_pipeline_config_request::Action;
use p4::update::Type;

/// The configurations. A running read keeps the configuration with which it started: later writes
/// go to a copy.
#[derive(Default)]
pub struct Device {
    /// The configuration that packets use.
    pub forwarding: Option<Arc<Config>>,
    /// The configuration of `VERIFY_AND_SAVE`.
    pub saved: Option<Arc<Config>>,
}

impl Device {
    /// The configuration for reads and writes.
    ///
    /// # Errors
    /// FAILED_PRECONDITION before the first pipeline.
    pub fn current(&self) -> std::result::Result<&Arc<Config>, Status> {
        self.saved.as_ref().or(self.forwarding.as_ref()).ok_or_else(unset)
    }

    /// As [`current`](Self::current), for writing.
    pub fn current_mut(&mut self) -> std::result::Result<&mut Config, Status> {
        self.saved.as_mut().or(self.forwarding.as_mut()).map(Arc::make_mut).ok_or_else(unset)
    }

    /// Applies a loaded configuration with the action, which must not be COMMIT. After an error
    /// everything is unchanged.
    pub fn apply(&mut self, action: Action, new: Config, switch: &Switch, ports: &dyn Ports) -> Result<()> {
        match action {
            Action::VerifyAndSave => {
                self.saved = Some(Arc::new(new));
                Ok(())
            }
            Action::VerifyAndCommit => self.forward(new, switch),
            Action::ReconcileAndCommit => {
                let mut new = new;
                if let Some(old) = &self.forwarding {
                    new = reconcile(old, new, ports)?;
                }
                self.forward(new, switch)
            }
            _ => Ok(()),
        }
    }

    /// Commits the saved configuration. Its tables already contain the writes, so there is nothing
    /// to replay as in the specification.
    ///
    /// # Errors
    /// NOT_FOUND if nothing is saved.
    pub fn commit(&mut self, switch: &Switch) -> Result<()> {
        let saved = self.saved.as_ref().ok_or_else(|| not_found("no pipeline config is saved"))?;
        switch.commit(&saved.pipeline)?;
        self.forwarding = self.saved.take();
        Ok(())
    }

    fn forward(&mut self, new: Config, switch: &Switch) -> Result<()> {
        switch.commit(&new.pipeline)?;
        self.forwarding = Some(Arc::new(new));
        self.saved = None;
        Ok(())
    }
}

fn unset() -> Status {
    Status::failed_precondition("no forwarding pipeline config has been set")
}

/// Transfers the state of one configuration to another. For the same program everything is kept;
/// otherwise entities are read from the old configuration and written to the new one, by their
/// identifiers. Changes that packets make meanwhile to counters, meters or registers are lost.
fn reconcile(old: &Config, mut new: Config, ports: &dyn Ports) -> Result<Config> {
    if old.stored.p4_device_config == new.stored.p4_device_config {
        let mut same = Config::over(old.pipeline.clone(), new.stored.clone())?;
        same.multicast.clone_from(&old.multicast);
        same.clones.clone_from(&old.clones);
        same.digests.clone_from(&old.digests);
        same.default_metadata.clone_from(&old.default_metadata);
        same.priority_shift.clone_from(&old.priority_shift);
        same.names.adopt(&same.index.name_types, &old.names, &old.index.name_types);
        same.profiles = old.profiles.iter().map(|(id, p)| (*id, p.clone())).collect();
        let known = |id: &u32| same.index.digests.contains_key(id) || !old.index.digests.contains_key(id);
        if let Some(lost) = old.digests.keys().find(|id| !known(id)) {
            return Err(invalid(format!(
                "the state cannot be preserved: digest {lost:#010x} is enabled but no longer exists"
            )));
        }
        same.count_uses();
        same.names.sweep();
        return Ok(same);
    }
    // A string keeps its value, which registers may hold.
    new.names.adopt(&new.index.name_types, &old.names, &old.index.name_types);
    for (request, r#type) in everything() {
        for mut entity in old.read(&request)? {
            if !carried(&mut entity, old, &new) {
                continue;
            }
            let update = p4::Update { r#type: r#type as i32, entity: Some(entity) };
            let failed = |e: UpdateError| invalid(format!("the state cannot be preserved: {}", e.message));
            new.update(&update, ports).map_err(failed)?;
        }
    }
    new.names.sweep();
    Ok(new)
}

/// Reads of all state in an order in which it can be written, with the type of update.
pub fn everything() -> Vec<(Entity, Type)> {
    let entries = p4::TableEntry {
        meter_config: Some(p4::MeterConfig::default()),
        counter_data: Some(p4::CounterData::default()),
        ..p4::TableEntry::default()
    };
    let defaults = p4::TableEntry { is_default_action: true, ..p4::TableEntry::default() };
    vec![
        (Entity::ActionProfileMember(Default::default()), Type::Insert),
        (Entity::ActionProfileGroup(Default::default()), Type::Insert),
        (Entity::TableEntry(entries), Type::Insert),
        (Entity::TableEntry(defaults), Type::Modify),
        (Entity::CounterEntry(Default::default()), Type::Modify),
        (Entity::MeterEntry(Default::default()), Type::Modify),
        (Entity::RegisterEntry(Default::default()), Type::Modify),
        (Entity::ValueSetEntry(Default::default()), Type::Modify),
        (Entity::PacketReplicationEngineEntry(Default::default()), Type::Insert),
        (Entity::DigestEntry(Default::default()), Type::Insert),
    ]
}

/// Whether an entity must be written to the new configuration: not if it is const, equals the state
/// of a fresh pipeline, or belongs to a counter that no longer exists.
fn carried(entity: &mut p4::Entity, old: &Config, new: &Config) -> bool {
    match entity.entity.as_mut() {
        Some(Entity::TableEntry(e)) => {
            let fixed = e.is_const || new.index.tables.get(&e.table_id).is_some_and(|t| t.is_const);
            // The default action of a table that no longer exists is not worth a refusal.
            let gone = e.is_default_action && !new.index.tables.contains_key(&e.table_id);
            !fixed && !gone && e.action.is_some()
        }
        Some(Entity::CounterEntry(e)) => {
            new.index.counters.contains_key(&e.counter_id) && e.data != Some(p4::CounterData::default())
        }
        Some(Entity::MeterEntry(e)) => e.config.is_some(),
        Some(Entity::RegisterEntry(e)) => {
            let zero = old
                .index
                .registers
                .get(&e.register_id)
                .map(|r| r.data.write(&mut std::iter::once(&[0u8][..]), &old.names.snapshot()));
            e.data != zero
        }
        Some(Entity::ValueSetEntry(e)) => !e.members.is_empty(),
        _ => true,
    }
}
