//! Loads slots into registers and writes them back.

use super::registers::{Held, POOL, Registers, writes};
use super::*;

impl Assembler<'_> {
    fn place(&self, slot: u32) -> Option<usize> {
        self.registers.held.iter().position(|h| h.is_some_and(|h| h.slot == slot))
    }

    /// A register for a value: an unused one, or that of the value used longest ago.
    fn take(&mut self) -> usize {
        let used = |at: &usize| self.registers.held[*at].map_or(0, |h| h.used + 1);
        let at = (0..POOL.len()).min_by_key(used).unwrap_or(0);
        self.write_back(at);
        self.registers.held[at] = None;
        at
    }

    fn write_back(&mut self, at: usize) {
        if let Some(h) = &mut self.registers.held[at]
            && std::mem::take(&mut h.dirty)
        {
            let slot = h.slot;
            self.slot(&[0x89], POOL[at], slot);
        }
    }

    /// The register with a slot's value.
    pub(super) fn read(&mut self, slot: u32) -> u8 {
        let at = match self.place(slot) {
            Some(at) => at,
            None => {
                let at = self.take();
                self.load(POOL[at], slot);
                self.registers.held[at] = Some(Held { slot, dirty: false, used: self.pc });
                at
            }
        };
        self.registers.held[at].iter_mut().for_each(|h| h.used = self.pc);
        POOL[at]
    }

    /// A register for a slot's new value, which the caller puts into it.
    pub(super) fn write(&mut self, slot: u32) -> u8 {
        let at = self.place(slot).unwrap_or_else(|| self.take());
        self.registers.held[at] = Some(Held { slot, dirty: true, used: self.pc });
        POOL[at]
    }

    /// A register for a slot's new value that contains the value of another slot.
    pub(super) fn write_from(&mut self, slot: u32, from: u32) -> u8 {
        if let Some(at) = self.place(from)
            && (slot == from || self.temporaries.last_uses.contains(&(self.pc, from)))
        {
            // No copy: the other value is not needed any more.
            if slot != from
                && let Some(old) = self.place(slot)
            {
                self.registers.held[old] = None;
            }
            self.registers.held[at] = Some(Held { slot, dirty: true, used: self.pc });
            return POOL[at];
        }
        if self.immediate(from).is_some() && self.place(from).is_none() {
            let to = self.write(slot);
            self.load(to, from);
            return to;
        }
        let source = self.read(from);
        let to = self.write(slot);
        self.move_register(to, source);
        to
    }

    /// Frees the registers of temporaries that the current instruction was the last to read.
    pub(super) fn free_read(&mut self) {
        for h in &mut self.registers.held {
            if h.is_some_and(|h| {
                self.temporaries.last_uses.contains(&(self.pc, h.slot))
                    && writes(self.code.ins[self.pc as usize]) != Some(h.slot)
            }) {
                *h = None;
            }
        }
    }

    /// Writes all values to the frame that other pieces of code may read.
    pub(super) fn write_shared(&mut self) {
        for at in 0..POOL.len() {
            if self.registers.held[at].is_some_and(|h| !self.temporaries.is_local(h.slot)) {
                self.write_back(at);
            }
        }
    }

    /// Writes all values to the frame, and forgets the registers: before code that uses both.
    pub(super) fn write_all(&mut self) {
        (0..POOL.len()).for_each(|at| self.write_back(at));
        self.forget();
    }

    /// Forgets what the registers hold.
    pub(super) fn forget(&mut self) {
        self.registers = Registers::default();
    }
}
