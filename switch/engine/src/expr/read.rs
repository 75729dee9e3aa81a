//! Reads expressions from JSON.

use super::*;

/// Context for reading expressions.
pub(crate) struct Scope<'l, 'a> {
    pub(crate) layout: &'l Layout<'a>,
    /// Name and cell width of each register array.
    pub(crate) registers: &'l [(String, u32)],
    /// Widths of the parameters of the enclosing action.
    pub(crate) params: &'l [u32],
}

/// Kinds of values that an expression can denote.
pub(crate) enum Value {
    Data(Expr),
    /// The variable-length field of a header.
    Vl(u32),
    Header(Hdr),
    Stack(u32),
    Union(u32),
    UnionAt(u32, Expr),
    UnionStack(u32),
}

impl Scope<'_, '_> {
    /// A number or a boolean.
    pub(crate) fn data(&self, j: &Json) -> Res<Expr> {
        match self.value(j)? {
            Value::Data(e) if e.depth > MAX_DEPTH => j.err("an expression nested too deep"),
            Value::Data(e) => Ok(e),
            _ => j.err("a number or a boolean was expected"),
        }
    }

    pub(crate) fn boolean(&self, j: &Json) -> Res<Expr> {
        let e = self.data(j)?;
        if e.bool { Ok(e) } else { j.err("a boolean was expected") }
    }

    pub(crate) fn header(&self, j: &Json) -> Res<Hdr> {
        match self.value(j)? {
            Value::Header(h) => Ok(h),
            _ => j.err("a header was expected"),
        }
    }

    pub(crate) fn register(&self, at: &Json) -> Res<(u32, u32)> {
        let name = at.str()?;
        match self.registers.iter().position(|r| r.0 == name) {
            Some(i) => Ok((i as u32, self.registers[i].1)),
            None => at.err(format!("no register array `{name}`")),
        }
    }

    fn param(&self, v: &Json) -> Res<Expr> {
        let i = v.uint(u32::MAX.into())? as usize;
        match self.params.get(i) {
            Some(&w) => Ok(Expr::param(i as u32, w)),
            None => v.err(format!("the action has {} parameters", self.params.len())),
        }
    }

    /// A value of any kind.
    pub(crate) fn value(&self, j: &Json) -> Res<Value> {
        let v = j.get("value")?;
        let l = self.layout;
        Ok(match j.get("type")?.str()? {
            // Action parameters are wrapped in another expression.
            "expression" if v.opt("type").is_some() => return self.value(&v),
            "expression" => return self.operation(&v),
            "field" => {
                let f = l.field(&v)?;
                if f.vl { Value::Vl(f.header) } else { Value::Data(Expr::field(f)) }
            }
            "hexstr" => Value::Data(Expr::constant(v.hex()?)),
            "bool" => Value::Data(Expr { bool: true, ..Expr::number(v.bool()?.into()) }),
            "local" | "runtime_data" => Value::Data(self.param(&v)?),
            "register" => {
                let (array, width) = self.register(&v.at(0)?)?;
                Value::Data(Expr::register(array, width, self.data(&v.at(1)?)?))
            }
            "header" => Value::Header(Hdr::Fixed(l.header(&v)?)),
            "header_stack" => Value::Stack(l.stack(&v)?),
            "header_union" => Value::Union(l.union(&v)?),
            "header_union_stack" => Value::UnionStack(l.union_stack(&v)?),
            "stack_field" => {
                let stack = l.stack(&v.at(0)?)?;
                Value::Data(self.stack_field(stack, &v.at(1)?, self.last(l.stacks[stack as usize].next))?)
            }
            "union_stack_field" => {
                let stack = l.union_stack(&v.at(0)?)?;
                let s = &l.union_stacks[stack as usize];
                let member = self.member(s.ty, &v.at(1)?)?;
                let ty = l.union_types[s.ty].1[member as usize].1;
                let name = v.at(2)?;
                let Some(f) = l.types[ty].field(name.str()?) else { return name.err("no such field") };
                let (offset, signed, width) = (f.offset, f.signed, f.width);
                let index = Box::new(self.last(s.next));
                let kind = Kind::UnionField { stack, member, offset, signed, width, index };
                Value::Data(Expr::of_width(kind, width, signed))
            }
            other => return j.err(format!("no value has the type `{other}`")),
        })
    }

    /// Index of the last element in use.
    fn last(&self, next: u32) -> Expr {
        Expr::slot(next, 32).minus_one()
    }

    fn member(&self, union_type: usize, at: &Json) -> Res<u32> {
        let name = at.str()?;
        let found = self.layout.union_types[union_type].1.iter().position(|m| m.0 == name);
        found.map(|i| i as u32).ok_or_else(|| at.error(format!("the union has no member `{name}`")))
    }

    fn stack_field(&self, stack: u32, name: &Json, index: Expr) -> Res<Expr> {
        let ty = self.layout.stacks[stack as usize].ty;
        let Some(f) = self.layout.types[ty].field(name.str()?).filter(|f| !f.vl) else {
            return name.err("no such field");
        };
        let (offset, signed, width) = (f.offset, f.signed, f.width);
        let kind = Kind::StackField { stack, offset, signed, width, index: Box::new(index) };
        Ok(Expr::of_width(kind, width, signed))
    }

    fn operation(&self, v: &Json) -> Res<Value> {
        let op_at = v.get("op")?;
        let op = op_at.str()?;
        let l = self.layout;
        let right = || v.get("right");
        let unary = || self.data(&v.get("right")?);
        let bin = match op {
            "+" => Bin::Add,
            "-" => Bin::Sub,
            "*" => Bin::Mul,
            "/" => Bin::Div,
            "%" => Bin::Mod,
            "<<" => Bin::Shl,
            ">>" => Bin::Shr,
            "&" => Bin::And,
            "|" => Bin::Or,
            "^" => Bin::Xor,
            "<" => Bin::Lt,
            "<=" => Bin::Le,
            ">" => Bin::Gt,
            ">=" => Bin::Ge,
            "and" => Bin::AndB,
            "or" => Bin::OrB,
            "two_comp_mod" => Bin::TwoComp,
            "usat_cast" => Bin::USat,
            "sat_cast" => Bin::Sat,
            "==" | "!=" => return self.equality(v, op == "!="),
            "~" => {
                let e = unary()?;
                let (lo, hi) = (-&e.hi - 1, -&e.lo - 1);
                return Ok(Value::Data(Expr::new(Kind::Not(Box::new(e)), lo, hi)));
            }
            "not" => return Ok(Value::Data(Expr::truth(Kind::NotB(Box::new(self.boolean(&right()?)?))))),
            "d2b" => return Ok(Value::Data(Expr::truth(Kind::NonZero(Box::new(unary()?))))),
            "b2d" => return Ok(Value::Data(Expr { bool: false, ..self.boolean(&right()?)? })),
            "valid" => return Ok(Value::Data(Expr::truth(Kind::Valid(self.header(&right()?)?)))),
            "valid_union" => return Ok(Value::Data(self.union_valid(&right()?)?)),
            "?" => {
                let cond = self.boolean(&v.get("cond")?)?;
                let (a, b) = (self.data(&v.get("left")?)?, self.data(&right()?)?);
                if a.bool != b.bool {
                    return v.err("a boolean against a number");
                }
                let (lo, hi, bool) = ((&a.lo).min(&b.lo).clone(), (&a.hi).max(&b.hi).clone(), a.bool);
                let kind = Kind::Cond(Box::new(cond), Box::new(a), Box::new(b));
                return Ok(Value::Data(Expr { bool, ..Expr::new(kind, lo, hi) }));
            }
            "access_field" => return self.access_field(v),
            "dereference_header_stack" => {
                return match self.value(&v.get("left")?)? {
                    Value::Stack(s) => Ok(Value::Header(Hdr::Stack(s, Box::new(unary()?)))),
                    _ => v.err("a header stack was expected"),
                };
            }
            "dereference_union_stack" => {
                return match self.value(&v.get("left")?)? {
                    Value::UnionStack(s) => Ok(Value::UnionAt(s, unary()?)),
                    _ => v.err("a union stack was expected"),
                };
            }
            "access_union_header" => {
                let n = right()?.uint(u32::MAX.into())? as u32;
                let (ty, header) = match self.value(&v.get("left")?)? {
                    Value::Union(u) => {
                        let u = &l.unions[u as usize];
                        (u.1, u.2.get(n as usize).map(|h| Hdr::Fixed(*h)))
                    }
                    Value::UnionAt(s, i) => {
                        (l.union_stacks[s as usize].ty, Some(Hdr::Union(s, Box::new(i), n)))
                    }
                    _ => return v.err("a union was expected"),
                };
                return match header {
                    Some(h) if (n as usize) < l.union_types[ty].1.len() => Ok(Value::Header(h)),
                    _ => v.err("the union has no such member"),
                };
            }
            "last_stack_index" | "size_stack" => {
                let next = match self.value(&right()?)? {
                    Value::Stack(s) => l.stacks[s as usize].next,
                    Value::UnionStack(s) => l.union_stacks[s as usize].next,
                    _ => return v.err("a stack was expected"),
                };
                let size = Expr::slot(next, 32);
                return Ok(Value::Data(if op == "size_stack" { size } else { size.minus_one() }));
            }
            other => return op_at.err(format!("no operation `{other}`")),
        };
        let left = v.get("left")?;
        let a = match bin {
            // Unary plus and minus.
            Bin::Add | Bin::Sub if left.is_null() => Expr::number(0),
            _ => self.data(&left)?,
        };
        let b = self.data(&right()?)?;
        let booleans = matches!(bin, Bin::AndB | Bin::OrB);
        if a.bool != booleans || b.bool != booleans {
            return v.err("a boolean against a number");
        }
        if matches!(bin, Bin::TwoComp | Bin::USat | Bin::Sat)
            && !b.small().is_some_and(|n| (1..=MAX_BITS).contains(&n))
        {
            return v.err("the width of a cast is a constant from 1 to 4096");
        }
        Ok(Value::Data(Expr::bin(bin, a, b)))
    }

    fn equality(&self, v: &Json, negated: bool) -> Res<Value> {
        let (a, b) = (self.value(&v.get("left")?)?, self.value(&v.get("right")?)?);
        let kind = match (a, b) {
            (Value::Data(a), Value::Data(b)) if a.bool == b.bool => {
                let op = if negated { Bin::Ne } else { Bin::Eq };
                return Ok(Value::Data(Expr::bin(op, a, b)));
            }
            (Value::Header(a), Value::Header(b)) => Kind::EqHdr(a, b),
            (Value::Vl(a), Value::Vl(b)) => Kind::EqVl(a, b),
            (Value::Union(a), Value::Union(b)) => Kind::EqUnion(a, b),
            _ => return v.err("values that cannot be compared"),
        };
        let e = Expr::truth(kind);
        Ok(Value::Data(if negated { Expr::truth(Kind::NotB(Box::new(e))) } else { e }))
    }

    fn union_valid(&self, j: &Json) -> Res<Expr> {
        let l = self.layout;
        let headers: Vec<Hdr> = match self.value(j)? {
            Value::Union(u) => l.unions[u as usize].2.iter().map(|h| Hdr::Fixed(*h)).collect(),
            Value::UnionAt(s, i) => {
                let members = l.union_types[l.union_stacks[s as usize].ty].1.len() as u32;
                (0..members).map(|m| Hdr::Union(s, Box::new(i.clone()), m)).collect()
            }
            _ => return j.err("a union was expected"),
        };
        let mut any = Expr { bool: true, ..Expr::number(0) };
        for h in headers {
            any = Expr::bin(Bin::OrB, any, Expr::truth(Kind::Valid(h)));
        }
        Ok(any)
    }

    fn access_field(&self, v: &Json) -> Res<Value> {
        let l = self.layout;
        let at = v.get("right")?;
        let n = at.uint(u32::MAX.into())? as usize;
        let hdr = self.header(&v.get("left")?)?;
        let ty = match &hdr {
            Hdr::Fixed(h) => l.headers[*h as usize].ty,
            Hdr::Stack(s, _) => l.stacks[*s as usize].ty,
            Hdr::Union(s, _, m) => l.union_types[l.union_stacks[*s as usize].ty].1[*m as usize].1,
        };
        let t = &l.types[ty];
        if n == t.fields.len() {
            return Ok(Value::Data(Expr { bool: false, ..Expr::truth(Kind::Valid(hdr)) }));
        }
        let Some(f) = t.fields.get(n).filter(|f| !f.vl) else {
            return at.err("the header has no such field");
        };
        let (offset, signed, width) = (f.offset, f.signed, f.width);
        Ok(Value::Data(match hdr {
            Hdr::Fixed(h) => match l.field_of(h, &f.name) {
                Some(f) => Expr::field(f),
                None => return at.err("the header has no such field"),
            },
            Hdr::Stack(stack, index) => {
                Expr::of_width(Kind::StackField { stack, offset, signed, width, index }, width, signed)
            }
            Hdr::Union(stack, index, member) => {
                let kind = Kind::UnionField { stack, member, offset, signed, width, index };
                Expr::of_width(kind, width, signed)
            }
        }))
    }
}
