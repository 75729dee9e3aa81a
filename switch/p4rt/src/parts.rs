//! Counts the parts of an encoded message, to limit its decoded size before decoding.

use std::collections::HashMap;
use std::sync::OnceLock;

use prost_reflect::{Kind, MessageDescriptor};
use tonic::Status;

use crate::p4info::pool;

/// Depth limit of the decoder.
const MAX_DEPTH: u32 = 100;

/// The message-typed fields of each message: field number to the index of its type.
struct Schema {
    messages: Vec<HashMap<u32, usize>>,
    by_name: HashMap<String, usize>,
}

impl Schema {
    fn get() -> Option<&'static Schema> {
        static SCHEMA: OnceLock<Option<Schema>> = OnceLock::new();
        SCHEMA.get_or_init(|| Some(Schema::new(pool().ok()?.all_messages()))).as_ref()
    }

    fn new(all: impl Iterator<Item = MessageDescriptor>) -> Schema {
        let all: Vec<MessageDescriptor> = all.collect();
        let name = |m: &MessageDescriptor| m.full_name().to_owned();
        let by_name: HashMap<String, usize> = all.iter().map(name).zip(0..).collect();
        let fields = |m: &MessageDescriptor| {
            let sub = |f: prost_reflect::FieldDescriptor| match f.kind() {
                Kind::Message(to) => Some((f.number(), *by_name.get(to.full_name())?)),
                _ => None,
            };
            m.fields().filter_map(sub).collect()
        };
        let messages = all.iter().map(fields).collect();
        Schema { messages, by_name }
    }
}

/// Checks that a message of this type has at most `limit` parts: length-delimited fields at any
/// depth.
///
/// # Errors
/// RESOURCE_EXHAUSTED if there are more; INVALID_ARGUMENT for malformed bytes.
pub fn check(message: &str, bytes: &[u8], limit: usize) -> Result<(), Status> {
    let schema = Schema::get().ok_or_else(|| Status::internal("this build has no descriptors"))?;
    let root = schema.by_name.get(message).copied();
    let root = root.ok_or_else(|| Status::internal(format!("the descriptors have no {message}")))?;
    let mut left = limit;
    match walk(schema, root, bytes, MAX_DEPTH, &mut left) {
        Some(()) => Ok(()),
        None if left == 0 => Err(Status::resource_exhausted(format!(
            "the request has more than {limit} parts: send it as several"
        ))),
        None => Err(Status::invalid_argument(format!("not a {message}"))),
    }
}

/// `None` if there are too many parts (then `left` is 0) or the bytes are malformed.
fn walk(schema: &Schema, message: usize, mut bytes: &[u8], depth: u32, left: &mut usize) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        match tag & 7 {
            0 => {
                varint(&mut bytes)?;
            }
            1 => bytes = bytes.get(8..)?,
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (part, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                *left = left.checked_sub(1)?;
                let field = u32::try_from(tag >> 3).ok()?;
                if let Some(to) = schema.messages[message].get(&field) {
                    walk(schema, *to, part, depth, left)?;
                }
            }
            5 => bytes = bytes.get(4..)?,
            // None of these messages has groups.
            _ => return None,
        }
    }
    Some(())
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use tonic::Code;

    use super::*;
    use crate::proto::p4::v1 as p4;

    fn code(bytes: &[u8], limit: usize) -> Code {
        check("p4.v1.WriteRequest", bytes, limit).map_or_else(|s| s.code(), |()| Code::Ok)
    }

    #[test]
    fn parts_are_counted_at_every_depth() {
        let exact = p4::field_match::Exact { value: vec![1] };
        let r#match = p4::FieldMatch {
            field_id: 1,
            field_match_type: Some(p4::field_match::FieldMatchType::Exact(exact)),
        };
        let entry = p4::TableEntry { table_id: 7, r#match: vec![r#match; 3], ..p4::TableEntry::default() };
        let entity = Some(p4::Entity { entity: Some(p4::entity::Entity::TableEntry(entry)) });
        let updates = vec![p4::Update { r#type: 1, entity }; 2];
        let request = p4::WriteRequest { device_id: 1, role: "r".into(), updates, ..Default::default() };
        // The role; for each update: itself, its entity, the entry, and for each of three matches
        // the match, its kind and its value.
        let parts = 1 + 2 * (3 + 3 * 3);
        let bytes = request.encode_to_vec();
        assert_eq!(code(&bytes, parts), Code::Ok);
        assert_eq!(code(&bytes, parts - 1), Code::ResourceExhausted);
    }

    #[test]
    fn malformed_messages_are_refused() {
        assert_eq!(code(&[], 0), Code::Ok);
        assert_eq!(code(&[0x1a, 0x00], 1), Code::Ok, "an unknown field");
        for bytes in [&[0x0a][..], &[0x0a, 5, 1], &[0x0b, 0x0c], &[0x80; 11], &[0x09, 1], &[0x0d, 1], &[0x0f]]
        {
            assert_eq!(code(bytes, 100), Code::InvalidArgument, "{bytes:x?}");
        }
    }
}
