//! The frame before a packet.

use super::*;

impl Vm {
    /// Prepares the frame for a program.
    pub(crate) fn load(&mut self, program: &Program, code: &Code, drop_port: u32) {
        self.frame.clear();
        self.frame.resize(code.slots as usize, 0);
        for (slot, value) in &code.constants {
            self.frame[*slot as usize] = *value;
        }
        self.frame[code.drop_port as usize] = drop_port.into();
        self.vl.clear();
        self.vl.resize(program.vl_bytes as usize, 0);
        self.head.resize(program.head_bytes, 0);
        self.clear(program);
    }

    /// Resets a packet's slots to their state before the parser: all zero, metadata valid.
    pub(crate) fn clear(&mut self, program: &Program) {
        self.frame[..program.phv_slots as usize].fill(0);
        for (base, _) in &program.metadata {
            self.frame[*base as usize] = 1;
        }
        self.frame[program.special.truncate as usize] = u64::MAX;
        self.frame[program.special.error as usize] = program.errors.none;
    }
}
