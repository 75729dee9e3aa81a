//! Value sets, multicast groups and clone sessions.

use super::*;

impl Ctl {
    pub(crate) fn set_value_set(
        &mut self,
        program: &Program,
        set: ValueSetId,
        members: &[ValueSetMember],
    ) -> Result<(), WriteError> {
        let info = program.info.value_sets.get(set.index()).ok_or_else(|| unknown("value set"))?;
        let mut out = Vec::new();
        for m in members {
            if m.len() != info.fields.len() {
                return Err(WriteError::Invalid(format!("{} has {} fields", info.name, info.fields.len())));
            }
            out.push(
                m.iter().zip(&info.fields).map(|(k, w)| vset_field(k, *w)).collect::<Result<Vec<_>, _>>()?,
            );
        }
        self.send(Op::ValueSet { set: set.0, members: out })?;
        self.value_sets[set.index()] = members.to_vec();
        Ok(())
    }

    pub(crate) fn set_multicast_group(
        &mut self,
        group: u16,
        replicas: Option<&[Replica]>,
    ) -> Result<(), WriteError> {
        if group == 0 {
            return Err(WriteError::Invalid("multicast group 0 means no multicast".into()));
        }
        if replicas.is_some_and(|r| r.len() > MAX_REPLICAS) {
            return Err(WriteError::Full(format!("a group has at most {MAX_REPLICAS} replicas")));
        }
        if replicas.is_none() && !self.multicast.contains_key(&group) {
            return Err(WriteError::NotFound(format!("multicast group {group}")));
        }
        self.send(Op::Multicast { group, replicas: replicas.map(<[_]>::to_vec) })?;
        match replicas {
            Some(r) => self.multicast.insert(group, r.to_vec()),
            None => self.multicast.remove(&group),
        };
        Ok(())
    }

    pub(crate) fn set_clone_session(
        &mut self,
        session: u32,
        config: Option<&CloneSession>,
    ) -> Result<(), WriteError> {
        if session > MAX_SESSION {
            return Err(WriteError::OutOfRange(format!("sessions go up to {MAX_SESSION}")));
        }
        if config.is_some_and(|c| c.replicas.len() > MAX_REPLICAS) {
            return Err(WriteError::Full(format!("a session has at most {MAX_REPLICAS} replicas")));
        }
        if config.is_none() && !self.clones.contains_key(&session) {
            return Err(WriteError::NotFound(format!("clone session {session}")));
        }
        let rt = config.map(|c| RtClone {
            replicas: c.replicas.clone(),
            group: c.multicast_group,
            truncate: if c.packet_length_bytes == 0 { u64::MAX } else { c.packet_length_bytes.into() },
            class_of_service: c.class_of_service,
        });
        self.send(Op::Clone { session, config: rt })?;
        match config {
            Some(c) => self.clones.insert(session, c.clone()),
            None => self.clones.remove(&session),
        };
        Ok(())
    }
}

fn vset_field(m: &KeyMatch, width: u32) -> Result<VsetField, WriteError> {
    let limbs = |b: &[u8]| {
        limbs_of(b, width).ok_or_else(|| WriteError::OutOfRange(format!("more than {width} bits")))
    };
    let full = || (0..crate::bits::limb_count(width)).map(|_| u64::MAX).collect();
    Ok(match m {
        KeyMatch::Exact(v) => VsetField::Masked(limbs(v)?, full()),
        KeyMatch::Ternary { value, mask } => VsetField::Masked(limbs(value)?, limbs(mask)?),
        KeyMatch::Lpm { value, prefix_len } if *prefix_len <= width => {
            VsetField::Masked(limbs(value)?, crate::key::prefix_mask(width, *prefix_len))
        }
        KeyMatch::Range { low, high } => VsetField::Range(limbs(low)?, limbs(high)?),
        KeyMatch::Any => VsetField::Masked(limbs(&[])?, limbs(&[])?),
        KeyMatch::Lpm { .. } => return Err(WriteError::Invalid("a prefix longer than the field".into())),
    })
}
