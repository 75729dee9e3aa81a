//! The deparser: checksums, calls, and the headers in their order.

use crate::code::{Ins, Op};
use crate::emit::{Label, Params};
use crate::json::Res;
use crate::load::Loader;

impl Loader<'_, '_> {
    /// Compiles the deparser: checksums, then calls, then the headers.
    pub(super) fn deparser(&mut self) -> Res<Label> {
        let start = self.asm.label();
        self.asm.bind(start);
        self.params.clear();
        self.asm.params = Params::Known(Vec::new());
        for (i, c) in self.root.list("checksums")?.iter().enumerate() {
            if !c.opt("update").map_or(Ok(true), |v| v.bool())? {
                continue;
            }
            let skip = self.asm.label();
            if let Some(cond) = c.opt("if_cond") {
                let cond = self.scope().boolean(&cond)?;
                self.asm.branch(&cond, false, skip);
            }
            self.asm.put(Ins::new(Op::Update, i as u32, 0, 0));
            self.asm.bind(skip);
            self.asm.end_statement();
        }
        for d in self.root.list("deparsers")? {
            if d.name()? == "deparser" {
                self.primitives_apart(&d.list("primitives")?)?;
            }
        }
        for header in self.deparse {
            self.asm.put(Ins::new(Op::Emit, *header, 0, 0));
        }
        self.asm.put(Ins::new(Op::End, 0, 0, 0));
        Ok(start)
    }
}
