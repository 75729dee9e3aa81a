//! Code under construction: instructions, labels, and the slots of constants and temporaries.

use std::collections::HashMap;

use num_bigint::BigInt;
use smallvec::SmallVec;

use crate::code::{Ins, Op};
use crate::expr::Expr;
use crate::layout::Layout;

/// Slots of a value, least significant first.
pub(crate) type Limbs = SmallVec<[u32; 2]>;

/// A jump target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(u32);

/// A field of a stack's elements, selected by an index at run time.
#[derive(Clone, Debug)]
pub(crate) struct StackField {
    /// The field's first slot in each element.
    pub(crate) slots: Vec<u32>,
    pub(crate) limbs: u32,
}

/// A wide expression, calculated with big integers.
#[derive(Clone, Debug)]
pub(crate) struct WideExpr {
    pub(crate) expr: Expr,
    /// First slots of the action's parameters, within an action.
    pub(crate) params: Vec<u32>,
}

/// Values of an action's parameters.
#[derive(Clone, Debug)]
pub(crate) enum Params {
    /// First slot of each one.
    Slots(Vec<u32>),
    /// Known at compile time.
    Known(Vec<BigInt>),
}

/// Code under construction.
pub(crate) struct Asm<'l, 'a> {
    pub(crate) layout: &'l Layout<'a>,
    pub(crate) code: Vec<Ins>,
    labels: Vec<u32>,
    consts: HashMap<u64, u32>,
    pub(crate) slots: u32,
    temps: HashMap<u32, (Vec<u32>, usize)>,
    pub(crate) stack_fields: Vec<StackField>,
    stack_field_ids: HashMap<(bool, u32, u32, u32), u32>,
    pub(crate) wides: Vec<WideExpr>,
    pub(crate) params: Params,
    /// Cell widths of the registers in limbs.
    pub(crate) register_limbs: Vec<u32>,
}

impl<'l, 'a> Asm<'l, 'a> {
    pub(crate) fn new(layout: &'l Layout<'a>, first_slot: u32) -> Self {
        Asm {
            layout,
            code: Vec::new(),
            labels: Vec::new(),
            consts: HashMap::new(),
            slots: first_slot,
            temps: HashMap::new(),
            stack_fields: Vec::new(),
            stack_field_ids: HashMap::new(),
            wides: Vec::new(),
            params: Params::Known(Vec::new()),
            register_limbs: Vec::new(),
        }
    }

    pub(crate) fn put(&mut self, ins: Ins) {
        self.code.push(ins);
    }

    pub(crate) fn here(&self) -> u32 {
        self.code.len() as u32
    }

    /// The constants with their slots.
    pub(crate) fn constants(&self) -> Vec<(u32, u64)> {
        self.consts.iter().map(|(v, s)| (*s, *v)).collect()
    }

    /// The slot of a constant.
    pub(crate) fn imm(&mut self, value: u64) -> u32 {
        let next = self.slots;
        let slot = *self.consts.entry(value).or_insert(next);
        if slot == next {
            self.slots += 1;
        }
        slot
    }

    /// One slot or several consecutive ones, until the statement ends.
    pub(crate) fn temp(&mut self, limbs: u32) -> u32 {
        let (pool, used) = self.temps.entry(limbs).or_default();
        if *used == pool.len() {
            pool.push(self.slots);
            self.slots += limbs;
        }
        *used += 1;
        pool[*used - 1]
    }

    /// Ends a statement and frees its temporaries.
    pub(crate) fn end_statement(&mut self) {
        self.temps.values_mut().for_each(|(_, used)| *used = 0);
    }

    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(u32::MAX);
        Label(self.labels.len() as u32 - 1)
    }

    pub(crate) fn bind(&mut self, label: Label) {
        self.labels[label.0 as usize] = self.here();
    }

    pub(crate) fn jump(&mut self, op: Op, label: Label, b: u32, c: u32) {
        self.put(Ins::new(op, label.0, b, c));
    }

    pub(crate) fn address(&self, label: Label) -> u32 {
        self.labels[label.0 as usize]
    }

    /// Replaces labels by addresses. All must be bound.
    pub(crate) fn link(&mut self) {
        for ins in self.code.iter_mut().filter(|i| i.jumps()) {
            ins.a = self.labels[ins.a as usize];
        }
    }

    pub(super) fn op(&mut self, op: Op, w: u32, dst: Option<u32>, b: u32, c: u32, x: u32) -> u32 {
        let a = dst.unwrap_or_else(|| self.temp(1));
        self.put(Ins::new(op, a, b, c).w(w).x(x));
        a
    }

    pub(super) fn param(&self, index: u32, limb: u32) -> u32 {
        match &self.params {
            Params::Slots(slots) => slots[index as usize] + limb,
            Params::Known(_) => 0,
        }
    }

    /// The number of a field of a stack's elements.
    pub(crate) fn stack_field(
        &mut self,
        union: bool,
        stack: u32,
        member: u32,
        offset: u32,
        limbs: u32,
    ) -> u32 {
        let l = self.layout;
        let s = if union { &l.union_stacks[stack as usize] } else { &l.stacks[stack as usize] };
        let slots = s.elements.iter().map(|e| l.headers[e[member as usize] as usize].base + offset).collect();
        let next = self.stack_fields.len() as u32;
        let id = *self.stack_field_ids.entry((union, stack, member, offset)).or_insert(next);
        if id == next {
            self.stack_fields.push(StackField { slots, limbs });
        }
        id
    }
}
