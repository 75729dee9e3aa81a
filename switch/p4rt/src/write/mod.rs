//! `Write`: single updates, and batches with their atomicity (P4Runtime section 12).

pub mod action;
pub mod matching;
pub mod profile;
pub mod replication;
pub mod state;
pub mod table;
mod undo;

use tonic::Status;

use crate::config::Config;
use crate::error::{Result, UpdateError, aborted, batch_status, invalid};
use crate::ports::Ports;
use crate::proto::p4::v1 as p4;
use p4::entity::Entity;
use p4::update::Type;
use p4::write_request::Atomicity;

impl Config {
    /// Applies one update. Strings of translated types that nothing uses any more keep their values
    /// until the caller sweeps them, so that an update can be undone.
    pub fn update(&mut self, update: &p4::Update, ports: &dyn Ports) -> Result<()> {
        if !self.index.translates {
            return self.update_data_plane(update, ports);
        }
        let mut update = update.clone();
        if let Some(entity) = update.entity.as_mut().and_then(|e| e.entity.as_mut()) {
            let assign = update.r#type != Type::Delete as i32 && !is_direct(entity);
            self.translate_update(entity, assign)?;
        }
        let entity = update.entity.as_ref().and_then(|e| e.entity.as_ref());
        let Some(entity) = entity.filter(|_| !self.names.0.is_empty()) else {
            return self.update_data_plane(&update, ports);
        };
        let before = self.uses_now(entity);
        self.update_data_plane(&update, ports)?;
        let after = self.uses_now(entity);
        self.follow_uses(before, after);
        Ok(())
    }

    fn update_data_plane(&mut self, update: &p4::Update, ports: &dyn Ports) -> Result<()> {
        let r#type = match Type::try_from(update.r#type) {
            Ok(Type::Unspecified) | Err(_) => return Err(invalid("the update has no type")),
            Ok(r#type) => r#type,
        };
        let entity = update.entity.as_ref().and_then(|e| e.entity.as_ref());
        match entity.ok_or_else(|| invalid("the update has no entity"))? {
            Entity::TableEntry(e) => self.write_table_entry(r#type, e, ports),
            Entity::ActionProfileMember(e) => self.write_member(r#type, e),
            Entity::ActionProfileGroup(e) => self.write_group(r#type, e, ports),
            Entity::MeterEntry(e) => self.write_meter(r#type, e),
            Entity::DirectMeterEntry(e) => self.write_direct_meter(r#type, e),
            Entity::CounterEntry(e) => self.write_counter(r#type, e),
            Entity::DirectCounterEntry(e) => self.write_direct_counter(r#type, e),
            Entity::PacketReplicationEngineEntry(e) => self.write_replication(r#type, e),
            Entity::ValueSetEntry(e) => self.write_value_set(r#type, e),
            Entity::RegisterEntry(e) => self.write_register(r#type, e),
            Entity::DigestEntry(e) => self.write_digest(r#type, e),
            Entity::ExternEntry(_) => Err(profile::no_extern()),
        }
    }

    /// Applies a batch. With CONTINUE_ON_ERROR the updates are independent; otherwise the first
    /// error undoes all updates before it, and later ones are not tried. With DATAPLANE_ATOMIC
    /// packets see all updates or none.
    ///
    /// # Errors
    /// UNKNOWN with an error for each update; UNIMPLEMENTED for an unknown atomicity.
    pub fn batch(
        &mut self,
        request: &p4::WriteRequest,
        ports: &dyn Ports,
    ) -> std::result::Result<(), Status> {
        let results = match Atomicity::try_from(request.atomicity) {
            Ok(Atomicity::ContinueOnError) => {
                let one = |u| {
                    let result = self.update(u, ports);
                    self.names.sweep();
                    result
                };
                request.updates.iter().map(one).collect::<Vec<_>>()
            }
            Ok(Atomicity::RollbackOnError) => self.all_or_none(&request.updates, ports),
            Ok(Atomicity::DataplaneAtomic) => {
                let pipeline = self.pipeline.clone();
                pipeline.atomically(|| self.all_or_none(&request.updates, ports))
            }
            Err(_) => return Err(Status::unimplemented(format!("unknown atomicity {}", request.atomicity))),
        };
        self.names.sweep();
        // Reads of state that packets change access the packet path: wait until it has the writes.
        if request.updates.iter().any(is_volatile)
            && let Err(error) = self.pipeline.settle()
        {
            tracing::warn!(%error, "writes wait for the packet path");
        }
        batch_status("updates", &results)
    }

    fn all_or_none(&mut self, updates: &[p4::Update], ports: &dyn Ports) -> Vec<Result<()>> {
        let mut undo: Vec<p4::Update> = Vec::new();
        for (at, update) in updates.iter().enumerate() {
            let inverse = self.inverse(update);
            match self.update(update, ports) {
                Ok(()) => undo.extend(inverse),
                Err(error) => {
                    let undone = self.roll_back(undo, ports);
                    return results_of_a_rollback(updates.len(), at, error, undone);
                }
            }
        }
        vec![Ok(()); updates.len()]
    }

    /// Undoes updates, last first; returns the first error, if one cannot be undone.
    fn roll_back(&mut self, undo: Vec<p4::Update>, ports: &dyn Ports) -> Result<()> {
        let mut result = Ok(());
        for update in undo.iter().rev() {
            if let Err(error) = self.update(update, ports) {
                tracing::error!(%error, "an update could not be undone");
                result = result.and(Err(error));
            }
        }
        result
    }
}

/// Whether an entity only names a table entry.
fn is_direct(entity: &Entity) -> bool {
    matches!(entity, Entity::DirectCounterEntry(_) | Entity::DirectMeterEntry(_))
}

/// Whether an update writes state that the packet path changes too.
fn is_volatile(update: &p4::Update) -> bool {
    match update.entity.as_ref().and_then(|e| e.entity.as_ref()) {
        Some(Entity::CounterEntry(_) | Entity::DirectCounterEntry(_) | Entity::RegisterEntry(_)) => true,
        Some(Entity::TableEntry(e)) => e.counter_data.is_some(),
        _ => false,
    }
}

/// The failed update's error, and ABORTED for the others; INTERNAL if undoing failed.
fn results_of_a_rollback(count: usize, at: usize, error: UpdateError, undone: Result<()>) -> Vec<Result<()>> {
    let other = |i: usize| match &undone {
        Err(e) if i < at => Err(crate::error::internal(format!("not undone: {e}"))),
        _ if i < at => Err(aborted("undone, a later update failed")),
        _ => Err(aborted("not tried, an earlier update failed")),
    };
    (0..count).map(|i| if i == at { Err(error.clone()) } else { other(i) }).collect()
}
