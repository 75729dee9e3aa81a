//! Positions of headers, stacks and unions in the frame.

use std::collections::HashMap;

use crate::bits::limb_count;
use crate::json::{Json, Res};

/// Largest number of slots of a program. A header stack of a thousand wide headers fits.
const MAX_SLOTS: u32 = 1 << 18;
/// Longest variable-length field in bytes.
pub(crate) const MAX_VL: u32 = 4096;

/// Largest length of all headers that a deparser names, in bytes.
const MAX_HEAD: usize = 1 << 26;
/// Bytes behind the headers that writing them may touch: a piece of nine bytes can begin at the
/// last one.
pub(crate) const HEAD_ROOM: usize = 16;

/// A field of a header type.
#[derive(Clone, Debug)]
pub(crate) struct FieldType {
    pub(crate) name: String,
    /// Width in bits; for the variable-length field the largest one.
    pub(crate) width: u32,
    pub(crate) signed: bool,
    pub(crate) saturating: bool,
    pub(crate) vl: bool,
    /// First slot, relative to the header's base.
    pub(crate) offset: u32,
    /// Bit position in the header, with the variable-length field counted as empty.
    pub(crate) pos: u32,
}

/// A header type. A header's slots are its validity, the length in bits of its variable-length
/// field, and its fields. Headers of one type have the same layout, so that copying a header copies
/// slots.
#[derive(Clone)]
pub(crate) struct HeaderType<'a> {
    pub(crate) name: String,
    pub(crate) fields: Vec<FieldType>,
    pub(crate) slots: u32,
    /// Bits without the variable-length field.
    pub(crate) fixed_bits: u32,
    /// Index of the variable-length field.
    pub(crate) vl: Option<usize>,
    /// Largest size of the whole header in bytes, 0 for no limit.
    pub(crate) max_bytes: u32,
    pub(crate) length_exp: Option<Json<'a>>,
}

impl HeaderType<'_> {
    pub(crate) fn field(&self, name: &str) -> Option<&FieldType> {
        self.fields.iter().find(|f| f.name == name)
    }
}

/// One limb of a field in the packet, or a part of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) slot: u32,
    pub(crate) pos: u32,
    pub(crate) width: u32,
}

/// A header instance.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) name: String,
    pub(crate) ty: usize,
    pub(crate) metadata: bool,
    /// Slot of its validity, which is the header's first one.
    pub(crate) base: u32,
    pub(crate) slots: u32,
    /// Its fields before the variable-length one, and those after it.
    pub(crate) before: Vec<Piece>,
    pub(crate) after: Vec<Piece>,
    pub(crate) fixed_bytes: u32,
    /// Position and capacity of the bytes of its variable-length field.
    pub(crate) vl: Option<(u32, u32)>,
    /// Bit position of the variable-length field.
    pub(crate) vl_pos: u32,
    /// How to assemble the header, if it has no variable-length field: for each eight bytes the
    /// slots and their shifts to the left (negative: to the right).
    pub(crate) words: Vec<Vec<(u32, i8)>>,
    /// Validity slots of the other members of its union.
    pub(crate) siblings: Vec<u32>,
}

impl Header {
    pub(crate) fn valid(&self) -> u32 {
        self.base
    }

    pub(crate) fn vl_bits(&self) -> u32 {
        self.base + 1
    }
}

/// A stack of headers or of unions.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    /// Header type, or the union type.
    pub(crate) ty: usize,
    /// The headers of each element: one, or a union's members.
    pub(crate) elements: Vec<Vec<u32>>,
    /// Slot of the number of elements in use.
    pub(crate) next: u32,
}

/// The layout of all headers.
#[derive(Default)]
pub(crate) struct Layout<'a> {
    pub(crate) types: Vec<HeaderType<'a>>,
    pub(crate) headers: Vec<Header>,
    pub(crate) by_name: HashMap<String, u32>,
    pub(crate) stacks: Vec<Stack>,
    pub(crate) stack_by_name: HashMap<String, u32>,
    pub(crate) union_types: Vec<(String, Vec<(String, usize)>)>,
    /// Name, type and members of each union.
    pub(crate) unions: Vec<(String, usize, Vec<u32>)>,
    pub(crate) union_by_name: HashMap<String, u32>,
    pub(crate) union_stacks: Vec<Stack>,
    pub(crate) union_stack_by_name: HashMap<String, u32>,
    pub(crate) aliases: HashMap<String, (u32, String)>,
    /// Number of slots used so far.
    pub(crate) slots: u32,
    /// Bytes of variable-length fields.
    pub(crate) vl_bytes: u32,
}

/// A field of a header in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) header: u32,
    pub(crate) slot: u32,
    pub(crate) width: u32,
    pub(crate) signed: bool,
    pub(crate) saturating: bool,
    pub(crate) vl: bool,
}

impl<'a> Layout<'a> {
    pub(crate) fn read(root: &Json<'a>) -> Res<Layout<'a>> {
        let mut l = Layout::default();
        for t in root.list("header_types")? {
            let t = header_type(&t)?;
            l.types.push(t);
        }
        l.headers(root)?;
        l.stacks(root)?;
        l.unions(root)?;
        for alias in root.list("field_aliases")? {
            let from = alias.at(0)?.str()?;
            let to = alias.at(1)?;
            let field = l.field(&to)?;
            l.aliases.insert(from.into(), (field.header, to.at(1)?.str()?.into()));
        }
        Ok(l)
    }

    /// Allocates slots.
    pub(crate) fn take(&mut self, at: &Json, slots: u32) -> Res<u32> {
        let first = self.slots;
        self.slots = self.slots.saturating_add(slots);
        if self.slots > MAX_SLOTS { at.err("the headers take too much room") } else { Ok(first) }
    }

    fn headers(&mut self, root: &Json<'a>) -> Res<()> {
        for (i, h) in root.list("headers")?.iter().enumerate() {
            let name = h.name()?;
            let ty = self.type_index(&h.get("header_type")?)?;
            if h.get("id")?.int()? != i as i64 {
                return h.err(format!("its id is not its position, {i}"));
            }
            let slots = self.types[ty].slots;
            let base = self.take(h, slots)?;
            let t = &self.types[ty];
            let vl_pos = t.vl.map_or(t.fixed_bits, |i| t.fields[i].pos);
            let mut pieces = [Vec::new(), Vec::new()];
            for (i, f) in t.fields.iter().enumerate().filter(|(_, f)| !f.vl) {
                let side = usize::from(t.vl.is_some_and(|v| i > v));
                // The most significant limb is first in the packet.
                let mut pos = f.pos;
                for limb in (0..limb_count(f.width) as u32).rev() {
                    let width = (f.width - 64 * limb).min(64);
                    pieces[side].push(Piece { slot: base + f.offset + limb, pos, width });
                    pos += width;
                }
            }
            let [before, after] = pieces;
            let words = if t.vl.is_none() { words(&before, t.fixed_bits) } else { Vec::new() };
            let fixed_bytes = t.fixed_bits / 8;
            let vl = t.vl.map(|i| (self.vl_bytes, t.fields[i].width / 8));
            self.vl_bytes += vl.map_or(0, |(_, bytes)| bytes);
            if self.vl_bytes > 1 << 22 {
                return h.err("the variable-length fields take too much room");
            }
            let header = Header {
                name: name.into(),
                ty,
                metadata: h.flag("metadata")?,
                base,
                slots,
                before,
                after,
                fixed_bytes,
                vl,
                vl_pos,
                words,
                siblings: Vec::new(),
            };
            if !header.metadata && !t.fixed_bits.is_multiple_of(8) {
                return h.err(format!("its fields have {} bits, no whole number of bytes", t.fixed_bits));
            }
            if self.by_name.insert(name.into(), i as u32).is_some() {
                return h.err(format!("there are two headers `{name}`"));
            }
            self.headers.push(header);
        }
        Ok(())
    }

    fn stacks(&mut self, root: &Json<'a>) -> Res<()> {
        for s in root.list("header_stacks")? {
            let ty = self.type_index(&s.get("header_type")?)?;
            let mut elements = Vec::new();
            for id in s.get("header_ids")?.items()? {
                let h = self.header_id(&id)?;
                if self.headers[h as usize].ty != ty {
                    return id.err("a header of another type");
                }
                elements.push(vec![h]);
            }
            if elements.is_empty() {
                return s.err("a stack without elements");
            }
            let next = self.take(&s, 1)?;
            let name = s.name()?;
            self.stack_by_name.insert(name.into(), self.stacks.len() as u32);
            self.stacks.push(Stack { ty, elements, next });
        }
        Ok(())
    }

    fn unions(&mut self, root: &Json<'a>) -> Res<()> {
        for t in root.list("header_union_types")? {
            let mut members = Vec::new();
            for m in t.get("headers")?.items()? {
                members.push((m.at(0)?.str()?.to_string(), self.type_index(&m.at(1)?)?));
            }
            self.union_types.push((t.name()?.into(), members));
        }
        for (i, u) in root.list("header_unions")?.iter().enumerate() {
            let ty = self.union_type(&u.get("union_type")?)?;
            if u.get("id")?.int()? != i as i64 {
                return u.err(format!("its id is not its position, {i}"));
            }
            let mut members = Vec::new();
            for id in u.get("header_ids")?.items()? {
                members.push(self.header_id(&id)?);
            }
            let of_type = self.union_types[ty].1.iter().map(|(_, t)| *t);
            if !members.iter().map(|h| self.headers[*h as usize].ty).eq(of_type) {
                return u.err("its headers are not of its type's types");
            }
            for &h in &members {
                let valid = |m: &u32| self.headers[*m as usize].valid();
                let siblings = members.iter().filter(|m| **m != h).map(valid).collect();
                self.headers[h as usize].siblings = siblings;
            }
            self.union_by_name.insert(u.name()?.into(), i as u32);
            self.unions.push((u.name()?.into(), ty, members));
        }
        for s in root.list("header_union_stacks")? {
            let ty = self.union_type(&s.get("union_type")?)?;
            let mut elements = Vec::new();
            for id in s.get("header_union_ids")?.items()? {
                let n = id.uint(u32::MAX.into())? as usize;
                match self.unions.get(n) {
                    Some(u) if u.1 == ty => elements.push(u.2.clone()),
                    _ => return id.err("no union of this type has that id"),
                }
            }
            if elements.is_empty() {
                return s.err("a stack without elements");
            }
            let next = self.take(&s, 1)?;
            let name = s.name()?;
            self.union_stack_by_name.insert(name.into(), self.union_stacks.len() as u32);
            self.union_stacks.push(Stack { ty, elements, next });
        }
        Ok(())
    }

    fn header_id(&self, id: &Json) -> Res<u32> {
        let n = id.uint(u32::MAX.into())?;
        if (n as usize) < self.headers.len() { Ok(n as u32) } else { id.err("no header has that id") }
    }

    fn type_index(&self, at: &Json) -> Res<usize> {
        let name = at.str()?;
        let found = self.types.iter().position(|t| t.name == name);
        found.ok_or_else(|| at.error(format!("no header type `{name}`")))
    }

    fn union_type(&self, at: &Json) -> Res<usize> {
        let name = at.str()?;
        let found = self.union_types.iter().position(|t| t.0 == name);
        found.ok_or_else(|| at.error(format!("no header union type `{name}`")))
    }

    pub(crate) fn header(&self, at: &Json) -> Res<u32> {
        find(&self.by_name, at, "header")
    }

    pub(crate) fn stack(&self, at: &Json) -> Res<u32> {
        find(&self.stack_by_name, at, "header stack")
    }

    pub(crate) fn union(&self, at: &Json) -> Res<u32> {
        find(&self.union_by_name, at, "header union")
    }

    pub(crate) fn union_stack(&self, at: &Json) -> Res<u32> {
        find(&self.union_stack_by_name, at, "header union stack")
    }

    /// A field from `[header, field]`; `$valid$` is the validity.
    pub(crate) fn field(&self, at: &Json) -> Res<Field> {
        let header = self.header(&at.at(0)?)?;
        let name_at = at.at(1)?;
        let name = name_at.str()?;
        self.field_of(header, name).ok_or_else(|| {
            name_at.error(format!("header `{}` has no field `{name}`", self.headers[header as usize].name))
        })
    }

    pub(crate) fn field_of(&self, header: u32, name: &str) -> Option<Field> {
        let h = &self.headers[header as usize];
        if name == "$valid$" {
            let slot = h.valid();
            return Some(Field { header, slot, width: 1, signed: false, saturating: false, vl: false });
        }
        let f = self.types[h.ty].field(name)?;
        let (slot, width) = (h.base + f.offset, f.width);
        Some(Field { header, slot, width, signed: f.signed, saturating: f.saturating, vl: f.vl })
    }

    /// A field that simple_switch uses by name, possibly through an alias.
    pub(crate) fn special(&self, header: &str, field: &str) -> Option<Field> {
        if let Some((h, name)) = self.aliases.get(&format!("{header}.{field}")) {
            return self.field_of(*h, name);
        }
        self.field_of(*self.by_name.get(header)?, field)
    }
}

/// The headers that the deparser writes, in order, and the length of the buffer for them in bytes.
pub(crate) fn deparser_order(root: &Json, layout: &Layout) -> Res<(Vec<u32>, usize)> {
    let Some(d) = root.list("deparsers")?.into_iter().find(|d| d.name() == Ok("deparser")) else {
        return root.err("there is no deparser `deparser`");
    };
    let order = d.get("order")?;
    let headers: Vec<u32> = order.items()?.iter().map(|h| layout.header(h)).collect::<Res<_>>()?;
    let most = |h: &u32| {
        let h = &layout.headers[*h as usize];
        (h.fixed_bytes + h.vl.map_or(0, |(_, room)| room)) as usize
    };
    let bytes: usize = headers.iter().map(most).sum();
    if bytes > MAX_HEAD { order.err("these headers are too long") } else { Ok((headers, bytes + HEAD_ROOM)) }
}

/// Groups the pieces by 64-bit words.
fn words(pieces: &[Piece], bits: u32) -> Vec<Vec<(u32, i8)>> {
    let mut out = vec![Vec::new(); bits.div_ceil(64) as usize];
    for p in pieces.iter().filter(|p| p.width > 0) {
        let (first, last) = (p.pos / 64, (p.pos + p.width - 1) / 64);
        for word in first..=last {
            // Distance between the piece's end and the word's end.
            let shift = i64::from((word + 1) * 64) - i64::from(p.pos + p.width);
            out[word as usize].push((p.slot, shift as i8));
        }
    }
    out
}

fn find(map: &HashMap<String, u32>, at: &Json, what: &str) -> Res<u32> {
    let name = at.str()?;
    map.get(name).copied().ok_or_else(|| at.error(format!("no {what} `{name}`")))
}

fn header_type<'a>(t: &Json<'a>) -> Res<HeaderType<'a>> {
    let mut fields = Vec::new();
    let (mut offset, mut pos, mut vl) = (2, 0u32, None);
    let max_bytes = t.opt("max_length").map_or(Ok(0), |m| m.uint(u32::MAX.into()))? as u32;
    for f in t.get("fields")?.items()? {
        let name = f.at(0)?.str()?.to_string();
        let width_at = f.at(1)?;
        let variable = !width_at.is_number();
        if variable && (width_at.str()? != "*" || vl.is_some()) {
            return width_at.err("a number of bits, or `*` once");
        }
        let width = if variable { 0 } else { width_at.uint(16_384)? as u32 };
        let flag = |i| f.at(i).map_or(Ok(false), |v| v.bool());
        let (signed, saturating) = (flag(2)?, flag(3)?);
        if variable {
            vl = Some(fields.len());
        }
        fields.push(FieldType { name, width, signed, saturating, vl: variable, offset, pos });
        offset += if variable { 0 } else { limb_count(width) as u32 };
        pos += width;
        if pos > 1 << 20 {
            return t.err("too long");
        }
    }
    if let Some(i) = vl {
        let room = if max_bytes == 0 { MAX_VL } else { max_bytes.saturating_sub(pos / 8).min(MAX_VL) };
        fields[i].width = room * 8;
    }
    Ok(HeaderType {
        name: t.name()?.into(),
        fields,
        slots: offset,
        fixed_bits: pos,
        vl,
        max_bytes,
        length_exp: t.opt("length_exp"),
    })
}
