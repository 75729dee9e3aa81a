//! Action profiles: members and groups.

use super::*;

impl Ctl {
    pub(crate) fn insert_member(
        &mut self,
        program: &Program,
        profile: ProfileId,
        id: u32,
        call: &ActionCall,
    ) -> Result<(), WriteError> {
        let p = self.profile(profile)?;
        let info = &program.info.profiles[profile.index()];
        if p.members.contains_key(&id) {
            return Err(WriteError::AlreadyExists(format!("member {id} of {}", info.name)));
        }
        if info.max_size != 0 && p.members.len() >= info.max_size {
            return Err(WriteError::Full(format!("{} holds {} members", info.name, info.max_size)));
        }
        let w = words(program, &info.actions, call)?;
        self.ready()?;
        let p = self.profile(profile)?;
        let slot = p.member_slots.take();
        p.members.insert(id, CtlMember { slot, call: canonical_call(call), refs: 0 });
        self.push(Op::Member { profile: profile.0, member: slot, call: Some((w.action.0, w.words)) });
        Ok(())
    }

    pub(crate) fn modify_member(
        &mut self,
        program: &Program,
        profile: ProfileId,
        id: u32,
        call: &ActionCall,
    ) -> Result<(), WriteError> {
        self.profile(profile)?;
        let w = words(program, &program.info.profiles[profile.index()].actions, call)?;
        self.ready()?;
        let p = self.profile(profile)?;
        let m = p.members.get_mut(&id).ok_or_else(|| WriteError::NotFound(format!("member {id}")))?;
        m.call = canonical_call(call);
        let member = m.slot;
        self.push(Op::Member { profile: profile.0, member, call: Some((w.action.0, w.words)) });
        Ok(())
    }

    pub(crate) fn delete_member(&mut self, profile: ProfileId, id: u32) -> Result<(), WriteError> {
        self.ready()?;
        let p = self.profile(profile)?;
        let m = p.members.get(&id).ok_or_else(|| WriteError::NotFound(format!("member {id}")))?;
        if m.refs > 0 {
            return Err(WriteError::InUse(format!("member {id}")));
        }
        let member = m.slot;
        p.members.remove(&id);
        p.member_slots.give(member);
        self.push(Op::Member { profile: profile.0, member, call: None });
        Ok(())
    }

    pub(crate) fn member(&self, profile: ProfileId, id: u32) -> Option<ActionCall> {
        self.profiles.get(profile.index())?.members.get(&id).map(|m| m.call.clone())
    }

    pub(crate) fn members(&self, profile: ProfileId) -> Vec<(u32, ActionCall)> {
        let list = self.profiles.get(profile.index()).map(|p| &p.members);
        list.into_iter().flatten().map(|(id, m)| (*id, m.call.clone())).collect()
    }

    /// Checks a group; returns its members' slots, each repeated by its weight.
    pub(super) fn expand(
        &mut self,
        program: &Program,
        profile: ProfileId,
        group: &Group,
    ) -> Result<Vec<u32>, WriteError> {
        let p = self.profile(profile)?;
        let info = &program.info.profiles[profile.index()];
        if !info.has_selector {
            return Err(WriteError::Invalid(format!("{} has no selector", info.name)));
        }
        let mut total = 0;
        for m in &group.members {
            if m.weight == 0 {
                return Err(WriteError::Invalid("a member of weight 0".into()));
            }
            if !p.members.contains_key(&m.member) {
                return Err(WriteError::NotFound(format!("member {}", m.member)));
            }
            total += u64::from(m.weight);
        }
        if total > MAX_GROUP || group.max_size != 0 && total > group.max_size.into() {
            return Err(WriteError::Full("the group's members weigh more than it holds".into()));
        }
        Ok(self.group_members(profile, group))
    }

    pub(super) fn count_members(&mut self, profile: ProfileId, group: &Group, up: bool) {
        for m in &group.members {
            if let Some(m) = self.profiles[profile.index()].members.get_mut(&m.member) {
                if up { m.refs += 1 } else { m.refs -= 1 }
            }
        }
    }

    pub(crate) fn insert_group(
        &mut self,
        program: &Program,
        profile: ProfileId,
        id: u32,
        group: &Group,
    ) -> Result<(), WriteError> {
        let members = self.expand(program, profile, group)?;
        self.ready()?;
        let p = self.profile(profile)?;
        if p.groups.contains_key(&id) {
            return Err(WriteError::AlreadyExists(format!("group {id}")));
        }
        let slot = p.group_slots.take();
        p.groups.insert(id, CtlGroup { slot, group: group.clone(), refs: 0 });
        self.count_members(profile, group, true);
        self.push(Op::Group { profile: profile.0, group: slot, members });
        Ok(())
    }

    pub(crate) fn modify_group(
        &mut self,
        program: &Program,
        profile: ProfileId,
        id: u32,
        group: &Group,
    ) -> Result<(), WriteError> {
        let members = self.expand(program, profile, group)?;
        self.ready()?;
        let p = self.profile(profile)?;
        let g = p.groups.get_mut(&id).ok_or_else(|| WriteError::NotFound(format!("group {id}")))?;
        let old = std::mem::replace(&mut g.group, group.clone());
        let slot = g.slot;
        self.count_members(profile, group, true);
        self.count_members(profile, &old, false);
        self.push(Op::Group { profile: profile.0, group: slot, members });
        Ok(())
    }

    pub(crate) fn delete_group(&mut self, profile: ProfileId, id: u32) -> Result<(), WriteError> {
        self.ready()?;
        let p = self.profile(profile)?;
        let g = p.groups.get(&id).ok_or_else(|| WriteError::NotFound(format!("group {id}")))?;
        if g.refs > 0 {
            return Err(WriteError::InUse(format!("group {id}")));
        }
        let slot = g.slot;
        let old = p.groups.remove(&id).map(|g| g.group).unwrap_or_default();
        p.group_slots.give(slot);
        self.count_members(profile, &old, false);
        self.push(Op::Group { profile: profile.0, group: slot, members: Vec::new() });
        Ok(())
    }

    pub(crate) fn groups(&self, profile: ProfileId) -> Vec<(u32, Group)> {
        let list = self.profiles.get(profile.index()).map(|p| &p.groups);
        list.into_iter().flatten().map(|(id, g)| (*id, g.group.clone())).collect()
    }
}
