//! Checks actions with their arguments and makes them canonical.

use super::*;

/// Action words of a call, checked against the permitted actions.
pub(super) fn words(
    program: &Program,
    allowed: &[ActionId],
    call: &ActionCall,
) -> Result<ActionWords, WriteError> {
    let Some(local) = allowed.iter().position(|a| *a == call.action) else {
        return Err(WriteError::Invalid("the action may not be used here".into()));
    };
    let info = &program.info.actions[call.action.index()];
    if call.params.len() != info.params.len() {
        return Err(WriteError::Invalid(format!(
            "action {} takes {} parameters",
            info.name,
            info.params.len()
        )));
    }
    let mut out = SmallVec::new();
    for (p, v) in info.params.iter().zip(&call.params) {
        let limbs = limbs_of(v, p.width).ok_or_else(|| {
            WriteError::OutOfRange(format!(
                "parameter {} of {}: more than {} bits",
                p.name, info.name, p.width
            ))
        })?;
        out.extend(limbs);
    }
    Ok(ActionWords { action: call.action, local: local as u32, words: out })
}

pub(super) fn canonical_bytes(b: &[u8]) -> Vec<u8> {
    let zeros = b.iter().take_while(|x| **x == 0).count().min(b.len().saturating_sub(1));
    if b.is_empty() { vec![0] } else { b[zeros..].to_vec() }
}

pub(super) fn canonical_call(call: &ActionCall) -> ActionCall {
    ActionCall { action: call.action, params: call.params.iter().map(|p| canonical_bytes(p)).collect() }
}

/// The call for a program's action words.
pub(super) fn call_of(program: &Program, w: &ActionWords) -> ActionCall {
    let mut words = &w.words[..];
    let mut params = Vec::new();
    for n in &program.actions[w.action.index()].limbs {
        let (limbs, rest) = words.split_at(*n as usize);
        words = rest;
        params.push(canonical(limbs));
    }
    ActionCall { action: w.action, params }
}
