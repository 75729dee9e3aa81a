//! Converts actions between messages and the engine (P4Runtime section 9.1.2): direct ones, members
//! and groups, and one-shot action sets.

use std::fmt::Display;

use prost::Message as _;
use rivulet_engine::{ActionCall, ActionId, EntryAction, OneShotMember};

use crate::bytestring::{canonical, unsigned};
use crate::config::Config;
use crate::error::{Result, denied, exhausted, invalid, unimplemented};
use crate::index::{Profile, Table};
use crate::ports::Ports;
use crate::proto::p4::config::v1::action_ref::Scope;
use crate::proto::p4::v1 as p4;
use p4::action_profile_action_set::{ActionSelectionMode, SizeSemantics};
use p4::table_action::Type;

/// Intended use of an action, which its scope may forbid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// In an entry.
    Entry,
    /// As default action.
    Default,
}

impl Config {
    /// Reads an action call with its arguments.
    pub fn read_call(
        &self,
        action: &p4::Action,
        engine: ActionId,
        place: &dyn Display,
    ) -> Result<ActionCall> {
        let known = self
            .index
            .actions
            .get(&action.action_id)
            .ok_or_else(|| invalid(format!("{place}: no action with id {:#010x}", action.action_id)))?;
        let mut params: Vec<Option<Vec<u8>>> = vec![None; known.params.len()];
        for p in &action.params {
            let at = known.params.iter().position(|k| k.id == p.param_id).ok_or_else(|| {
                invalid(format!("{place}: action {} has no parameter with id {}", known.name, p.param_id))
            })?;
            let param = &known.params[at];
            let place = format_args!("{place}: action {}: parameter {}", known.name, param.name);
            if params[at].replace(unsigned(&p.value, param.width, &place)?).is_some() {
                return Err(invalid(format!("{place} is there twice")));
            }
        }
        let missing = |at: usize| {
            invalid(format!("{place}: action {}: parameter {} is missing", known.name, known.params[at].name))
        };
        let params: Result<Vec<_>> =
            params.into_iter().enumerate().map(|(i, p)| p.ok_or_else(|| missing(i))).collect();
        Ok(ActionCall { action: engine, params: params? })
    }

    /// Builds the message for a call of the engine.
    pub fn write_call(&self, call: &ActionCall) -> p4::Action {
        let action_id = self.index.action_ids.get(&call.action).copied().unwrap_or(0);
        let params = self.index.actions.get(&action_id).map_or(&[][..], |a| &a.params);
        let param = |(p, value): (&crate::index::Param, &Vec<u8>)| p4::action::Param {
            param_id: p.id,
            value: canonical(value).to_vec(),
        };
        p4::Action { action_id, params: params.iter().zip(&call.params).map(param).collect() }
    }

    /// Reads the action of an entry.
    pub fn read_action(
        &self,
        table: &Table,
        action: &p4::TableAction,
        for_: Use,
        ports: &dyn Ports,
    ) -> Result<EntryAction> {
        let place = format_args!("table {}", table.name);
        let profile = table.profile.map(|id| self.profile(id)).transpose()?;
        match (action.r#type.as_ref(), profile) {
            (Some(Type::Action(a)), None) => {
                Ok(EntryAction::Call(self.read_call(a, allowed(table, a.action_id, for_)?, &place)?))
            }
            (Some(Type::ActionProfileMemberId(id)), Some(_)) => Ok(EntryAction::Member(nonzero(*id, table)?)),
            (Some(Type::ActionProfileGroupId(id)), Some(p)) if p.with_selector => {
                Ok(EntryAction::Group(nonzero(*id, table)?))
            }
            (Some(Type::ActionProfileActionSet(set)), Some(p)) if p.with_selector => {
                self.read_one_shot(table, p, set, ports)
            }
            (None, _) => Err(invalid(format!("{place}: the action is not set"))),
            (_, Some(p)) => Err(invalid(format!(
                "{place}: its entries take {} of {}",
                if p.with_selector { "a member, a group or an action set" } else { "a member" },
                p.name
            ))),
            (_, None) => {
                Err(invalid(format!("{place}: its entries take an action, it has no action profile")))
            }
        }
    }

    fn read_one_shot(
        &self,
        table: &Table,
        profile: &Profile,
        set: &p4::ActionProfileActionSet,
        ports: &dyn Ports,
    ) -> Result<EntryAction> {
        let place = format_args!("table {}: action set", table.name);
        let selected = match profile.sum_of_members {
            Some(_) => SizeSemantics::SumOfMembers,
            None => SizeSemantics::SumOfWeights,
        };
        let asked = (set.action_selection_mode, set.size_semantics);
        // Zero means "as in the selector" for both.
        let by_selector = asked == (0, 0);
        if !by_selector && asked != (ActionSelectionMode::Hash as i32, selected as i32) {
            return Err(unimplemented(format!("{place}: selection mode and size are the selector's")));
        }
        let weights: Vec<i32> = set.action_profile_actions.iter().map(|a| a.weight).collect();
        let weights = check_weights(profile, &weights, &place)?;
        if profile.max_group_size > 0 && group_size(profile, &weights) > u64::from(profile.max_group_size) {
            return Err(invalid(format!("{place}: larger than max_group_size {}", profile.max_group_size)));
        }
        let mut members = Vec::new();
        for (member, weight) in set.action_profile_actions.iter().zip(weights) {
            let action =
                member.action.as_ref().ok_or_else(|| invalid(format!("{place}: a member has no action")))?;
            let call = self.read_call(action, allowed(table, action.action_id, Use::Entry)?, &place)?;
            let watch = member.watch_kind.clone().map(Watch::from);
            members.push(OneShotMember { call, weight, watch_port: pack_watch(watch, ports, &place)? });
        }
        if !by_selector && let Some(first) = members.first_mut() {
            // Returned as written; the engine stores these bytes without reading them.
            let mut packed = Packed::decode(&*first.watch_port).unwrap_or_default();
            packed.explicit = true;
            first.watch_port = packed.encode_to_vec();
        }
        Ok(EntryAction::OneShot(members))
    }

    /// Builds the message for the action of a table entry.
    pub fn write_action(&self, table: &Table, action: &EntryAction) -> p4::TableAction {
        let profile = table.profile.and_then(|p| self.index.profiles.get(&p));
        let weight = |w: u32| if profile.is_some_and(|p| p.weights_disallowed) { 0 } else { w as i32 };
        let r#type = match action {
            EntryAction::Call(call) => Type::Action(self.write_call(call)),
            EntryAction::Member(id) => Type::ActionProfileMemberId(*id),
            EntryAction::Group(id) => Type::ActionProfileGroupId(*id),
            EntryAction::OneShot(members) => {
                let mut set = p4::ActionProfileActionSet::default();
                for m in members {
                    let packed = Packed::decode(&*m.watch_port).unwrap_or_default();
                    if packed.explicit {
                        set.action_selection_mode = ActionSelectionMode::Hash as i32;
                        set.size_semantics = match profile.and_then(|p| p.sum_of_members) {
                            Some(_) => SizeSemantics::SumOfMembers as i32,
                            None => SizeSemantics::SumOfWeights as i32,
                        };
                    }
                    set.action_profile_actions.push(p4::ActionProfileAction {
                        action: Some(self.write_call(&m.call)),
                        weight: weight(m.weight),
                        watch_kind: packed.watch().map(Into::into),
                    });
                }
                Type::ActionProfileActionSet(set)
            }
        };
        p4::TableAction { r#type: Some(r#type) }
    }
}

fn nonzero(id: u32, table: &Table) -> Result<u32> {
    if id == 0 { Err(invalid(format!("table {}: member or group id 0", table.name))) } else { Ok(id) }
}

/// The engine's action, if the table has it and its scope allows this use.
pub fn allowed(table: &Table, action: u32, for_: Use) -> Result<ActionId> {
    let found = table
        .actions
        .get(&action)
        .ok_or_else(|| invalid(format!("table {}: no action with id {action:#010x}", table.name)))?;
    match (found.scope, for_) {
        (Scope::TableOnly, Use::Default) => {
            Err(denied(format!("table {}: the action is not for the default entry", table.name)))
        }
        (Scope::DefaultOnly, Use::Entry) => {
            Err(denied(format!("table {}: the action is for the default entry only", table.name)))
        }
        _ => Ok(found.engine),
    }
}

/// Checks the weights of a group or an action set and returns the engine's weights.
pub fn check_weights(profile: &Profile, weights: &[i32], place: &dyn Display) -> Result<Vec<u32>> {
    let one = |w: &i32| match (u32::try_from(*w), profile.weights_disallowed) {
        (Ok(0), true) => Ok(1),
        (_, true) => Err(invalid(format!("{place}: {} does not take weights", profile.name))),
        (Ok(0) | Err(_), false) => Err(invalid(format!("{place}: a weight of {w}"))),
        (Ok(w), false) => match profile.sum_of_members {
            Some(max) if max > 0 && w > max => {
                Err(invalid(format!("{place}: a weight of {w} is above {max}")))
            }
            _ => Ok(w),
        },
    };
    let weights = weights.iter().map(one).collect::<Result<Vec<_>>>()?;
    if weights.iter().map(|w| u64::from(*w)).sum::<u64>() > MAX_TOTAL_WEIGHT {
        return Err(exhausted(format!("{place}: weights above {MAX_TOTAL_WEIGHT} in all")));
    }
    Ok(weights)
}

/// Largest sum of the weights of one group on this target.
const MAX_TOTAL_WEIGHT: u64 = 1 << 20;

/// Size of a group as its selector counts it.
pub fn group_size(profile: &Profile, weights: &[u32]) -> u64 {
    match profile.sum_of_members {
        Some(_) => weights.len() as u64,
        None => weights.iter().map(|w| u64::from(*w)).sum(),
    }
}

/// The watched port of a member, in the client's form.
#[derive(Clone, Debug, PartialEq)]
pub enum Watch {
    /// `watch`, from clients older than 1.2.
    Number(i32),
    /// `watch_port`
    Port(Vec<u8>),
}

/// Data that the engine stores with a member without reading it.
#[derive(Clone, PartialEq, prost::Message)]
struct Packed {
    #[prost(int32, optional, tag = "1")]
    number: Option<i32>,
    #[prost(bytes = "vec", optional, tag = "2")]
    port: Option<Vec<u8>>,
    #[prost(bool, tag = "3")]
    explicit: bool,
}

impl Packed {
    fn watch(&self) -> Option<Watch> {
        self.number.map(Watch::Number).or_else(|| self.port.clone().map(Watch::Port))
    }
}

/// Checks a watched port and packs it for the engine: an unset or empty one for none, otherwise an
/// existing port.
pub fn pack_watch(watch: Option<Watch>, ports: &dyn Ports, place: &dyn Display) -> Result<Vec<u8>> {
    let port = match &watch {
        None => None,
        Some(Watch::Number(0)) => None,
        Some(Watch::Number(n)) => Some(u32::try_from(*n).ok()),
        Some(Watch::Port(p)) if p.is_empty() => None,
        Some(Watch::Port(p)) => Some(crate::bytestring::to_u32(p)),
    };
    let Some(port) = port else { return Ok(Vec::new()) };
    if port.is_none_or(|p| ports.is_up(p).is_none()) {
        return Err(invalid(format!("{place}: the watched port does not exist")));
    }
    let packed = match watch {
        Some(Watch::Number(n)) => Packed { number: Some(n), ..Packed::default() },
        Some(Watch::Port(p)) => Packed { port: Some(canonical(&p).to_vec()), ..Packed::default() },
        None => Packed::default(),
    };
    Ok(packed.encode_to_vec())
}

/// Whether a member's watched port is up; a removed port counts as down.
pub fn watched_is_up(packed: &[u8], ports: &dyn Ports) -> bool {
    let port = match unpack_watch(packed) {
        None => return true,
        Some(Watch::Number(n)) => u32::try_from(n).ok(),
        Some(Watch::Port(p)) => crate::bytestring::to_u32(&p),
    };
    port.and_then(|p| ports.is_up(p)) == Some(true)
}

/// Reverses [`pack_watch`].
pub fn unpack_watch(packed: &[u8]) -> Option<Watch> {
    Packed::decode(packed).ok()?.watch()
}

macro_rules! watch_kinds {
    ($($kind:ty),*) => {$(
        #[allow(deprecated)]
        const _: () = {
            use $kind as Kind;
            impl From<Kind> for Watch {
                fn from(kind: Kind) -> Self {
                    match kind {
                        Kind::Watch(n) => Watch::Number(n),
                        Kind::WatchPort(p) => Watch::Port(p),
                    }
                }
            }
            impl From<Watch> for Kind {
                fn from(watch: Watch) -> Self {
                    match watch {
                        Watch::Number(n) => Kind::Watch(n),
                        Watch::Port(p) => Kind::WatchPort(p),
                    }
                }
            }
        };
    )*};
}

watch_kinds!(p4::action_profile_action::WatchKind, p4::action_profile_group::member::WatchKind);
