//! Tables: keys, defaults and const entries; action profiles.

use crate::expr::limbs_mod;
use crate::info::*;
use crate::json::{Json, Res};
use crate::key::{CanonKey, KeyPlan};
use crate::layout::Layout;
use crate::load::{algorithm, calculation, inputs};
use crate::program::*;
use crate::types::*;
use num_bigint::BigInt;
use std::collections::HashMap;

type Tables = (Vec<TablePlan>, Vec<(TableId, CanonKey, ActionWords)>, Vec<Option<u32>>);

/// Largest number of entries of a table.
const MAX_TABLE: u64 = 1 << 24;

struct TableReader<'l, 'a> {
    root: &'l Json<'a>,
    layout: &'l Layout<'a>,
    action_ids: &'l HashMap<i64, u32>,
    action_plans: &'l [ActionPlan],
}

/// Reads all tables of all pipelines with their defaults and const entries, and the selectors of
/// the action profiles, which become calculations.
pub(super) fn tables(
    root: &Json,
    layout: &Layout,
    info: &mut ProgramInfo,
    action_ids: &HashMap<i64, u32>,
    action_plans: &[ActionPlan],
    calculations: &mut Vec<Calculation>,
) -> Res<Tables> {
    let reader = TableReader { root, layout, action_ids, action_plans };
    let (mut plans, mut entries, mut selectors) = (Vec::new(), Vec::new(), Vec::new());
    let pipelines = root.list("pipelines")?;
    for p in &pipelines {
        for a in p.list("action_profiles")? {
            let selector = match a.opt("selector") {
                Some(s) => {
                    let (inputs, payload) = inputs(&s.get("input")?, layout)?;
                    calculations.push(calculation(algorithm(&s.get("algo")?)?, inputs, payload, layout));
                    Some(calculations.len() as u32 - 1)
                }
                None => None,
            };
            info.profiles.push(ProfileInfo {
                name: a.name()?.into(),
                has_selector: selector.is_some(),
                max_size: a.opt("max_size").map_or(Ok(0), |m| m.uint(u64::MAX))? as usize,
                actions: Vec::new(),
            });
            selectors.push(selector);
        }
        for t in p.list("tables")? {
            if info.table(t.name()?).is_some() {
                return t.err("there are two tables of this name");
            }
            let plan = reader.table(&t, info)?;
            let id = TableId(plans.len() as u32);
            plans.push(plan);
            let list = t.list("entries")?;
            if !list.is_empty() {
                info.tables[id.index()].const_entries = true;
                info.tables[id.index()].max_size = list.len();
            }
            for e in &list {
                let (key, call) = reader.const_entry(e, &plans[id.index()], &info.tables[id.index()])?;
                entries.push((id, key, call));
            }
        }
    }
    Ok((plans, entries, selectors))
}

impl TableReader<'_, '_> {
    fn table(&self, t: &Json, info: &mut ProgramInfo) -> Res<TablePlan> {
        let kind = match t.get("match_type")?.str()? {
            "exact" => TableKind::Exact,
            "lpm" => TableKind::Lpm,
            "ternary" => TableKind::Ternary,
            "range" => TableKind::Range,
            other => return t.err(format!("no table matches `{other}`")),
        };
        let (mut key, mut fields, mut lpm) = (KeyPlan::default(), Vec::new(), 0);
        for k in t.list("key")? {
            let at = k.get("match_type")?;
            let kind = match at.str()? {
                "exact" => MatchKind::Exact,
                "lpm" => MatchKind::Lpm,
                "ternary" | "optional" => MatchKind::Ternary,
                "range" => MatchKind::Range,
                "valid" => MatchKind::Valid,
                other => return at.err(format!("no key is matched `{other}`")),
            };
            lpm += usize::from(kind == MatchKind::Lpm);
            let target = k.get("target")?;
            let (slot, width, name) = if kind == MatchKind::Valid {
                let h = &self.layout.headers[self.layout.header(&target)? as usize];
                (h.valid(), 1, h.name.clone())
            } else {
                let f = self.layout.field(&target)?;
                if f.vl {
                    return target.err("a variable-length field is no key");
                }
                (f.slot, f.width, format!("{}.{}", target.at(0)?.str()?, target.at(1)?.str()?))
            };
            let mask = match k.opt("mask") {
                Some(m) => {
                    if m.hex_bytes()?.len() != (width as usize).div_ceil(8) {
                        return m.err(format!("a mask for {width} bits was expected"));
                    }
                    Some(limbs_mod(&m.hex()?, width))
                }
                None => None,
            };
            key.push(slot, width, kind, mask);
            let name = k.opt("name").map_or(Ok(name.as_str()), |n| n.str())?.to_string();
            fields.push(KeyField { name, kind, width });
        }
        let is = |k: MatchKind| fields.iter().any(|f: &KeyField| f.kind == k);
        let fits = match kind {
            TableKind::Exact => !is(MatchKind::Lpm) && !is(MatchKind::Ternary) && !is(MatchKind::Range),
            TableKind::Lpm => lpm == 1 && !is(MatchKind::Ternary) && !is(MatchKind::Range),
            TableKind::Ternary => !is(MatchKind::Range),
            TableKind::Range => true,
        };
        if !fits {
            return t.get("key")?.err("its match kinds do not go with the table's");
        }
        if key.words > crate::table::MAX_WORDS {
            return t.get("key")?.err("the key is too wide");
        }
        let actions = self.action_list(t, info)?;
        let action_names: Vec<String> =
            actions.iter().map(|a| info.actions[a.index()].name.clone()).collect();
        let profile = match t.opt("action_profile").or_else(|| t.opt("act_prof_name")) {
            Some(p) => {
                let name = p.str()?;
                let Some(id) = info.profile(name) else {
                    return p.err(format!("no action profile `{name}`"));
                };
                let list = &mut info.profiles[id.index()].actions;
                for a in &actions {
                    if !list.contains(a) {
                        list.push(*a);
                    }
                }
                Some(id)
            }
            None => None,
        };
        let kind_at = t.get("type")?;
        match (kind_at.str()?, profile) {
            ("simple", None) => {}
            ("indirect", Some(_)) => {}
            ("indirect_ws", Some(p)) if info.profiles[p.index()].has_selector => {}
            _ => return kind_at.err("the type does not go with the table's action profile"),
        }
        let meter = match t.opt("direct_meters") {
            Some(m) => Some(self.direct_meter(&m)?),
            None => None,
        };
        let max_size = match t.opt("max_size") {
            Some(n) => n.uint(u64::MAX)?.min(MAX_TABLE),
            None => 0,
        };
        let name = t.name()?;
        let (default, const_default, const_action) = self.default_entry(t, &actions)?;
        if const_default && default.is_none() {
            return t.err("a const default action that is none");
        }
        info.tables.push(TableInfo {
            name: name.into(),
            kind,
            key: fields,
            actions,
            action_names,
            max_size: max_size as usize,
            profile,
            has_counters: t.flag("with_counters")?,
            direct_meter: meter.as_ref().map(|m: &(String, _, MeterUnit)| (m.0.clone(), m.2)),
            support_timeout: t.flag("support_timeout")?,
            const_entries: false,
            hidden: name.starts_with("tbl_") && key.fields.is_empty(),
        });
        let meter = meter.map(|(_, field, unit)| (field, unit == MeterUnit::Packets));
        Ok(TablePlan { key, default, const_default, const_action, meter })
    }

    fn action_list(&self, t: &Json, info: &ProgramInfo) -> Res<Vec<ActionId>> {
        let mut out = Vec::new();
        if let Some(ids) = t.opt("action_ids") {
            for id in ids.items()? {
                out.push(self.action(&id)?);
            }
        } else {
            for name in t.get("actions")?.items()? {
                let n = name.str()?;
                let Some(i) = info.actions.iter().position(|a| a.name == n) else {
                    return name.err("no such action");
                };
                out.push(ActionId(i as u32));
            }
        }
        Ok(out)
    }

    fn action(&self, id: &Json) -> Res<ActionId> {
        match self.action_ids.get(&id.int()?) {
            Some(i) => Ok(ActionId(*i)),
            None => id.err("no action has this id"),
        }
    }

    fn direct_meter(&self, name: &Json) -> Res<(String, crate::layout::Field, MeterUnit)> {
        let wanted = name.str()?;
        for m in self.root.list("meter_arrays")? {
            if m.flag("is_direct")? && m.name()? == wanted {
                let target = m.get("result_target")?;
                let field = self.layout.field(&target)?;
                if field.width > 64 || field.vl {
                    return target.err("a colour does not go there");
                }
                let unit = match m.get("type")?.str()? {
                    "packets" => MeterUnit::Packets,
                    _ => MeterUnit::Bytes,
                };
                return Ok((wanted.into(), field, unit));
            }
        }
        name.err(format!("no direct meter `{wanted}`"))
    }

    fn call(&self, at: &Json, actions: &[ActionId]) -> Res<ActionWords> {
        let id = at.get("action_id")?;
        let action = self.action(&id)?;
        let Some(local) = actions.iter().position(|a| *a == action) else {
            return id.err("the table does not have this action");
        };
        let plan = &self.action_plans[action.index()];
        let data = at.get("action_data")?;
        let values = data.items()?;
        if values.len() != plan.limbs.len() {
            return data.err(format!("the action takes {} parameters", plan.limbs.len()));
        }
        let mut words = smallvec::SmallVec::new();
        for (v, n) in values.iter().zip(&plan.limbs) {
            words.extend(limbs_mod(&v.hex()?, n * 64));
        }
        Ok(ActionWords { action, local: local as u32, words })
    }

    fn default_entry(
        &self,
        t: &Json,
        actions: &[ActionId],
    ) -> Res<(Option<ActionWords>, bool, Option<ActionId>)> {
        let Some(d) = t.opt("default_entry") else { return Ok((None, false, None)) };
        // p4c may name a default that is missing in the list of actions.
        let call = self.call(&d, actions)?;
        let const_action = d.flag("action_const")?.then_some(call.action);
        Ok((Some(call), d.flag("action_entry_const")?, const_action))
    }

    fn const_entry(&self, e: &Json, plan: &TablePlan, info: &TableInfo) -> Res<(CanonKey, ActionWords)> {
        let mut fields = Vec::new();
        for k in e.get("match_key")?.items()? {
            let bytes = |name: &'static str| -> Res<Vec<u8>> {
                Ok(k.get(name)?.hex()?.to_biguint().ok_or_else(|| k.error("negative"))?.to_bytes_be())
            };
            fields.push(match k.get("match_type")?.str()? {
                "exact" => KeyMatch::Exact(bytes("key")?),
                "valid" => KeyMatch::Exact(vec![k.get("key")?.bool()?.into()]),
                "lpm" => {
                    let prefix_len = k.get("prefix_length")?.uint(16_384)? as u32;
                    let width = plan.key.fields.get(fields.len()).map_or(0, |f| f.width);
                    // Bits below the prefix are ignored.
                    let below = width.saturating_sub(prefix_len);
                    let value: BigInt = (k.get("key")?.hex()? >> below) << below;
                    KeyMatch::Lpm { value: value.to_bytes_be().1, prefix_len }
                }
                "ternary" | "optional" => {
                    // Bits outside the mask are ignored.
                    let (v, m) = (k.get("key")?.hex()?, k.get("mask")?.hex()?);
                    let v: BigInt = v & &m;
                    KeyMatch::Ternary { value: v.to_bytes_be().1, mask: m.to_bytes_be().1 }
                }
                "range" => KeyMatch::Range { low: bytes("start")?, high: bytes("end")? },
                other => return k.err(format!("no key is matched `{other}`")),
            });
        }
        // In the JSON the smaller number has the higher priority.
        let priority = match info.kind.has_priority() {
            true => e.opt("priority").map_or(Ok(0), |p| p.int())?.clamp(-(1 << 30), 1 << 30) as i32,
            false => 0,
        };
        let key = EntryKey { fields, priority: -priority };
        let canon = plan.key.canon(info, &key).map_err(|w| e.error(w.to_string()))?;
        Ok((canon, self.call(&e.get("action_entry")?, &info.actions)?))
    }
}
