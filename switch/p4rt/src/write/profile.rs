//! Members and groups of action profiles (P4Runtime section 9.2).

use std::collections::HashSet;

use rivulet_engine::{Group, GroupMember};

use crate::config::Config;
use crate::error::{Result, exhausted, invalid, unimplemented};
use crate::index::Profile;
use crate::ports::Ports;
use crate::proto::p4::v1 as p4;
use crate::write::action::{check_weights, group_size, pack_watch};
use crate::write::table::absent;
use p4::update::Type;

impl Config {
    /// Applies an update of a member.
    pub fn write_member(&mut self, r#type: Type, entry: &p4::ActionProfileMember) -> Result<()> {
        let profile = self.profile(entry.action_profile_id)?;
        let place = format_args!("action profile {}: member {}", profile.name, entry.member_id);
        if entry.member_id == 0 {
            return Err(invalid(format!("{place}: the id cannot be 0")));
        }
        let engine = profile.engine;
        if r#type == Type::Delete {
            self.pipeline.delete_member(engine, entry.member_id)?;
            let used = self.profile_use(entry.action_profile_id);
            used.members = used.members.saturating_sub(1);
            return Ok(());
        }
        self.no_one_shots(profile)?;
        let action = entry.action.as_ref().ok_or_else(|| invalid(format!("{place}: has no action")))?;
        let allowed = profile
            .actions
            .get(&action.action_id)
            .ok_or_else(|| invalid(format!("{place}: no action with id {:#010x}", action.action_id)))?;
        let call = self.read_call(action, *allowed, &place)?;
        if r#type == Type::Modify {
            return Ok(self.pipeline.modify_member(engine, entry.member_id, &call)?);
        }
        let members = self.profiles.get(&entry.action_profile_id).map_or(0, |p| p.members);
        if profile.size > 0 && members as u64 >= profile.size {
            return Err(exhausted(format!("{place}: the profile holds {} members", profile.size)));
        }
        self.pipeline.insert_member(engine, entry.member_id, &call)?;
        self.profile_use(entry.action_profile_id).members += 1;
        Ok(())
    }

    /// Applies an update of a group.
    pub fn write_group(
        &mut self,
        r#type: Type,
        entry: &p4::ActionProfileGroup,
        ports: &dyn Ports,
    ) -> Result<()> {
        let profile = self.profile(entry.action_profile_id)?;
        let place = format_args!("action profile {}: group {}", profile.name, entry.group_id);
        if entry.group_id == 0 {
            return Err(invalid(format!("{place}: the id cannot be 0")));
        }
        if !profile.with_selector {
            return Err(invalid(format!("{place}: the profile has no selector, hence no groups")));
        }
        let engine = profile.engine;
        if r#type == Type::Delete {
            self.pipeline.delete_group(engine, entry.group_id)?;
            self.profile_use(entry.action_profile_id).groups.remove(&entry.group_id);
            return Ok(());
        }
        self.no_one_shots(profile)?;
        let before = self.profiles.get(&entry.action_profile_id).and_then(|p| p.groups.get(&entry.group_id));
        if r#type == Type::Modify {
            match before {
                None => return Err(absent("group", entry.group_id)),
                Some(size) if *size != entry.max_size => {
                    return Err(invalid(format!("{place}: max_size is {size} and cannot change")));
                }
                Some(_) => {}
            }
        }
        let group = read_group(profile, entry, ports, &place)?;
        if r#type == Type::Modify {
            return Ok(self.pipeline.modify_group(engine, entry.group_id, &group)?);
        }
        self.pipeline.insert_group(engine, entry.group_id, &group)?;
        self.profile_use(entry.action_profile_id).groups.insert(entry.group_id, entry.max_size);
        Ok(())
    }

    fn no_one_shots(&self, profile: &Profile) -> Result<()> {
        match self.profiles.get(&profile.id) {
            Some(p) if p.one_shots > 0 => {
                Err(invalid(format!("action profile {}: is programmed with one-shots", profile.name)))
            }
            _ => Ok(()),
        }
    }
}

fn read_group(
    profile: &Profile,
    entry: &p4::ActionProfileGroup,
    ports: &dyn Ports,
    place: &dyn std::fmt::Display,
) -> Result<Group> {
    let max_size = u32::try_from(entry.max_size)
        .map_err(|_| invalid(format!("{place}: a max_size of {}", entry.max_size)))?;
    if profile.max_group_size > 0 && !(1..=profile.max_group_size).contains(&max_size) {
        return Err(invalid(format!("{place}: max_size has to be 1 to {}", profile.max_group_size)));
    }
    let weights: Vec<i32> = entry.members.iter().map(|m| m.weight).collect();
    let weights = check_weights(profile, &weights, place)?;
    if max_size > 0 && group_size(profile, &weights) > u64::from(max_size) {
        return Err(exhausted(format!("{place}: larger than its max_size {max_size}")));
    }
    let mut seen = HashSet::new();
    let mut members = Vec::new();
    for (member, weight) in entry.members.iter().zip(weights) {
        if !seen.insert(member.member_id) {
            return Err(invalid(format!("{place}: member {} is there twice", member.member_id)));
        }
        let watch_port = pack_watch(member.watch_kind.clone().map(Into::into), ports, place)?;
        members.push(GroupMember { member: member.member_id, weight, watch_port });
    }
    // The size is checked here, as the selector counts it; the engine needs no limit.
    Ok(Group { members, max_size: 0 })
}

/// UNIMPLEMENTED for an entity that v1model lacks.
pub fn no_extern() -> crate::error::UpdateError {
    unimplemented("v1model has no externs of other types")
}
