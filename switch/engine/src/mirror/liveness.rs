//! Liveness of group members: a member counts if it watches no port, or a port that is up.

use super::*;

impl Ctl {
    /// Slots of the live members, each repeated by its weight.
    pub(super) fn counted<'m>(&self, members: impl Iterator<Item = (u32, u32, &'m [u8])>) -> Vec<u32> {
        members
            .filter(|(_, _, watch)| watch.is_empty() || !self.down.contains(*watch))
            .flat_map(|(slot, weight, _)| std::iter::repeat_n(slot, weight as usize))
            .collect()
    }

    /// Slots of a group's live members, in BMv2's order. The members exist.
    pub(super) fn group_members(&self, profile: ProfileId, group: &Group) -> Vec<u32> {
        let members = &self.profiles[profile.index()].members;
        let known = group.members.iter().filter_map(|m| Some((members.get(&m.member)?.slot, m)));
        let mut out = self.counted(known.map(|(slot, m)| (slot, m.weight, &m.watch_port[..])));
        out.sort_unstable();
        out
    }

    pub(super) fn one_shot_members(&self, list: &[OneShotMember], made: &OneShot) -> Vec<u32> {
        self.counted(list.iter().zip(&made.members).map(|(m, slot)| (*slot, m.weight, &m.watch_port[..])))
    }

    /// Queries all watched ports; updates the groups with changed liveness.
    pub(crate) fn follow_liveness(
        &mut self,
        program: &Program,
        up: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), WriteError> {
        let groups = self.profiles.iter().flat_map(|p| p.groups.values());
        let mut watched: BTreeSet<&[u8]> =
            groups.flat_map(|g| &g.group.members).map(|m| &m.watch_port[..]).collect();
        let selecting = |t: &usize| program.info.tables[*t].profile.is_some();
        let tables: Vec<usize> = (0..self.tables.len()).filter(selecting).collect();
        for table in &tables {
            for e in self.tables[*table].entries.iter().flatten() {
                if let EntryAction::OneShot(list) = &e.action {
                    watched.extend(list.iter().map(|m| &m.watch_port[..]));
                }
            }
        }
        let down: BTreeSet<Vec<u8>> =
            watched.into_iter().filter(|w| !w.is_empty() && !up(w)).map(<[u8]>::to_vec).collect();
        if down == self.down {
            return Ok(());
        }
        self.ready()?;
        let before = std::mem::replace(&mut self.down, down);
        let changed: BTreeSet<&[u8]> = before.symmetric_difference(&self.down).map(Vec::as_slice).collect();
        let mut ops = Vec::new();
        for (i, p) in self.profiles.iter().enumerate() {
            let profile = ProfileId(i as u32);
            for g in p.groups.values() {
                if g.group.members.iter().any(|m| changed.contains(&m.watch_port[..])) {
                    let members = self.group_members(profile, &g.group);
                    ops.push(Op::Group { profile: profile.0, group: g.slot, members });
                }
            }
        }
        for table in tables {
            let Some(profile) = program.info.tables[table].profile else { continue };
            for e in self.tables[table].entries.iter().flatten() {
                let (EntryAction::OneShot(list), Some(made)) = (&e.action, &e.one_shot) else { continue };
                if list.iter().any(|m| changed.contains(&m.watch_port[..])) {
                    let members = self.one_shot_members(list, made);
                    ops.push(Op::Group { profile: profile.0, group: made.group, members });
                }
            }
        }
        ops.into_iter().for_each(|op| self.push(op));
        Ok(())
    }
}
