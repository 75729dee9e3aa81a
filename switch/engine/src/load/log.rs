//! `log_msg`: a message with placeholders for values.

use crate::bits::limb_count;
use crate::code::{Ins, Op};
use crate::json::{Json, Res};
use crate::load::Loader;
use crate::program::LogPlan;

impl<'a> Loader<'_, 'a> {
    /// Puts the values into slots, and emits the instruction that logs them.
    pub(super) fn log(&mut self, format: &Json<'a>, values: &Json<'a>) -> Res<()> {
        let at = format.get("value")?;
        let parts = split_format(at.str()?);
        let mut plan = LogPlan { parts, values: Vec::new() };
        for v in values.get("value")?.items()? {
            let e = self.scope().data(&v)?;
            let signed = e.lo < num_bigint::BigInt::from(0);
            let bits = crate::expr::bits_of(&e.hi).clamp(1, 4096) + u32::from(signed);
            let width = if signed { bits.next_multiple_of(64) } else { bits };
            let n = limb_count(width) as u32;
            let first = self.row(&e, width, n);
            plan.values.push((first, n, signed));
        }
        if plan.parts.len() != plan.values.len() + 1 {
            return format.err(format!(
                "the message has {} places for {} values",
                plan.parts.len() - 1,
                plan.values.len()
            ));
        }
        self.logs.push(plan);
        self.asm.put(Ins::new(Op::Log, self.logs.len() as u32 - 1, 0, 0));
        Ok(())
    }
}

/// The text around the `{}` of a message; `\{` is a brace.
fn split_format(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if matches!(chars.peek(), Some('{' | '}')) => parts.extend_last(chars.next()),
            '{' => {
                for c in chars.by_ref() {
                    if c == '}' {
                        break;
                    }
                }
                parts.push(String::new());
            }
            c => parts.extend_last(Some(c)),
        }
    }
    parts
}

trait ExtendLast {
    fn extend_last(&mut self, c: Option<char>);
}

impl ExtendLast for Vec<String> {
    fn extend_last(&mut self, c: Option<char>) {
        if let Some(last) = self.last_mut() {
            last.extend(c);
        }
    }
}
