//! The device's configurations (P4Runtime sections 14 and 15): one that forwards, and perhaps one that was
//! saved and not yet committed, which then is the one that reads and writes refer to.

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

/// The configurations. A read that is under way keeps the one that it began with: what is written meanwhile goes into
/// a copy.
#[derive(Default)]
pub struct Device {
    /// What packets see.
    pub forwarding: Option<Arc<Config>>,
    /// What `VERIFY_AND_SAVE` left.
    pub saved: Option<Arc<Config>>,
}

impl Device {
    /// The configuration that reads and writes refer to.
    ///
    /// # Errors
    /// FAILED_PRECONDITION before the first pipeline.
    pub fn current(&self) -> std::result::Result<&Arc<Config>, Status> {
        self.saved.as_ref().or(self.forwarding.as_ref()).ok_or_else(unset)
    }

    /// As [`current`](Self::current), to be written.
    pub fn current_mut(&mut self) -> std::result::Result<&mut Config, Status> {
        self.saved.as_mut().or(self.forwarding.as_mut()).map(Arc::make_mut).ok_or_else(unset)
    }

    /// Takes a configuration that was loaded for the action, which must not be COMMIT. On an error everything
    /// stays as it was.
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

    /// Commits what was saved. Its writes are in its tables already: what the specification calls replaying
    /// them takes no time.
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

/// Carries the state of one configuration over to another. Of the same program everything stays where it is;
/// otherwise entities are read from the old and written to the new one, by their identifiers. Packets that
/// change counters, meters or registers meanwhile are not seen.
fn reconcile(old: &Config, mut new: Config, ports: &dyn Ports) -> Result<Config> {
    if old.stored.p4_device_config == new.stored.p4_device_config {
        let mut same = Config::over(old.pipeline.clone(), new.stored.clone())?;
        same.multicast.clone_from(&old.multicast);
        same.clones.clone_from(&old.clones);
        same.digests.clone_from(&old.digests);
        same.default_metadata.clone_from(&old.default_metadata);
        same.priority_shift.clone_from(&old.priority_shift);
        same.profiles = old.profiles.iter().map(|(id, p)| (*id, p.clone())).collect();
        let known = |id: &u32| same.index.digests.contains_key(id) || !old.index.digests.contains_key(id);
        if let Some(lost) = old.digests.keys().find(|id| !known(id)) {
            return Err(invalid(format!(
                "the state cannot be preserved: digest {lost:#010x} is on and gone"
            )));
        }
        return Ok(same);
    }
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
    Ok(new)
}

/// Reads of all state, in an order in which it can be written, and how.
fn everything() -> Vec<(Entity, Type)> {
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

/// Whether an entity has to be written to the new configuration: not if it is const, or nothing but what a
/// fresh pipeline holds, or counts for a counter that is gone.
fn carried(entity: &mut p4::Entity, old: &Config, new: &Config) -> bool {
    match entity.entity.as_mut() {
        Some(Entity::TableEntry(e)) => {
            let fixed = e.is_const || new.index.tables.get(&e.table_id).is_some_and(|t| t.is_const);
            // Of a table that is gone, its default action is no state worth refusing for.
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
                .map(|r| r.data.write(&mut std::iter::once(&[0u8][..])));
            e.data != zero
        }
        Some(Entity::ValueSetEntry(e)) => !e.members.is_empty(),
        _ => true,
    }
}
