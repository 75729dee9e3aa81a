//! Table lookups, selectors and value sets at run time; messages and traces.

use super::*;

impl Vm {
    /// Builds a table's key and looks it up.
    #[inline]
    pub(crate) fn apply(
        &mut self,
        program: &Program,
        rt: &Runtime,
        packet: &Packet,
        id: u32,
    ) -> (bool, Option<(u32, u32)>) {
        program.tables[id as usize].key.build(&self.frame, &mut self.key);
        self.look_up(program, rt, packet, id)
    }

    /// Looks up the key in a table. Returns whether it was hit, and the action with its index in the
    /// table's list. The action's parameters are then in their slots.
    #[inline]
    pub(crate) fn look_up(
        &mut self,
        program: &Program,
        rt: &Runtime,
        packet: &Packet,
        id: u32,
    ) -> (bool, Option<(u32, u32)>) {
        let plan = &program.tables[id as usize];
        let table = &rt.tables[id as usize];
        let slot = table.lookup.find(&self.key[..plan.key.words]);
        if let Some(slot) = slot {
            if let Some((field, packets)) = plan.meter {
                let amount = if packets { 1 } else { packet.ingress_length };
                let colour = table.meters.get(&slot).map_or(0, |m| m.lock().execute(self.now_us, amount));
                self.frame[field.slot as usize] = colour & ones(field.width);
            }
            if (table.counted || table.timed)
                && let Some(cell) = rt.shared.tables[id as usize].get(slot)
            {
                if table.counted {
                    cell.count(packet.ingress_length, self.many);
                }
                if table.timed {
                    cell.last_us.store(self.now_us, Relaxed);
                }
            }
        }
        let act = slot.map_or(&table.default, |s| &table.entries[s as usize]);
        let called = match act {
            Act::Call { action, local, words } => {
                let first = program.actions[*action as usize].params as usize;
                // Few words: a loop is faster than a call of memcpy.
                for (to, word) in self.frame[first..first + words.len()].iter_mut().zip(words) {
                    *to = *word;
                }
                Some((*action, *local))
            }
            Act::None => None,
            indirect => {
                let member = match indirect {
                    Act::Member(m) => Some(*m),
                    Act::Group(g) => self.select(program, rt, packet, id, *g),
                    _ => None,
                };
                self.call_member(program, rt, id, member)
            }
        };
        if self.trace.is_some() {
            self.trace_table(program, id, slot, called);
        }
        (slot.is_some(), called)
    }

    /// Puts a member's parameters into their slots.
    pub(super) fn call_member(
        &mut self,
        program: &Program,
        rt: &Runtime,
        table: u32,
        member: Option<u32>,
    ) -> Option<(u32, u32)> {
        let profile = rt.tables[table as usize].profile?;
        let (action, words) = rt.profiles[profile as usize].members.get(member? as usize)?.as_ref()?;
        let first = program.actions[*action as usize].params as usize;
        self.frame[first..first + words.len()].copy_from_slice(words);
        let local = program.info.tables[table as usize].actions.iter().position(|a| a.0 == *action)?;
        Some((*action, local as u32))
    }

    /// Selects a group's member by the selector's hash.
    pub(super) fn select(
        &mut self,
        program: &Program,
        rt: &Runtime,
        packet: &Packet,
        table: u32,
        group: u32,
    ) -> Option<u32> {
        let profile = rt.tables[table as usize].profile? as usize;
        let members = rt.profiles[profile].groups.get(group as usize)?;
        if members.is_empty() {
            return None;
        }
        let hash = self.calculate(program, program.selectors[profile]?, packet);
        Some(members[(hash % members.len() as u64) as usize])
    }

    pub(super) fn in_value_set(&self, program: &Program, rt: &Runtime, key: usize) -> bool {
        let key = &program.vset_keys[key];
        rt.value_sets[key.set as usize].iter().any(|member| {
            member.iter().zip(&key.fields).enumerate().all(|(f, (want, (slots, _)))| {
                let mask_of =
                    |l: usize| key.masks.as_ref().map_or(u64::MAX, |m| m[f].get(l).copied().unwrap_or(0));
                let value = |l: usize| self.frame[slots[l] as usize] & mask_of(l);
                match want {
                    VsetField::Masked(v, m) => {
                        (0..slots.len()).all(|l| value(l) & m[l] == v[l] & mask_of(l) & m[l])
                    }
                    VsetField::Range(low, high) => {
                        let all = || (0..slots.len()).rev().map(value);
                        all().ge(low.iter().rev().copied()) && all().le(high.iter().rev().copied())
                    }
                }
            })
        })
    }

    pub(super) fn log(&mut self, program: &Program, id: usize) {
        let plan = &program.logs[id];
        let mut text = String::new();
        for (i, part) in plan.parts.iter().enumerate() {
            text.push_str(part);
            if let Some((first, limbs, signed)) = plan.values.get(i) {
                let limbs = &self.frame[*first as usize..(*first + *limbs) as usize];
                text.push_str(&crate::wide::integer(limbs, *signed).to_string());
            }
        }
        self.note(|| Step::Log { text: text.clone() });
        if self.logs.len() < 64 {
            self.logs.push(text);
        }
    }

    #[cold]
    pub(super) fn trace_table(
        &mut self,
        program: &Program,
        id: u32,
        slot: Option<u32>,
        called: Option<(u32, u32)>,
    ) {
        let (info, plan) = (&program.info.tables[id as usize], &program.tables[id as usize]);
        let fields = info.key.iter().zip(&plan.key.fields);
        let key = &self.key;
        let key = fields
            .map(|(f, p)| format!("{}=0x{:x}", f.name, crate::wide::integer(&plan.key.field(p, key), false)));
        let action = called.map_or("no action".to_string(), |(action, _)| {
            let a = &program.info.actions[action as usize];
            let p = &program.actions[action as usize];
            let mut at = p.params as usize;
            let args = a.params.iter().zip(&p.limbs).map(|(param, n)| {
                let limbs = &self.frame[at..at + *n as usize];
                at += *n as usize;
                format!("{}=0x{:x}", param.name, crate::wide::integer(limbs, false))
            });
            format!("{}({})", a.name, args.collect::<Vec<_>>().join(", "))
        });
        let entry = slot.map(|s| format!("entry {s}"));
        let step = Step::Table { name: info.name.clone(), key: key.collect(), entry, action };
        self.note(|| step);
    }
}
