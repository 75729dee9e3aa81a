//! Reads P4Info from a file in p4c's binary or text form.

use std::sync::OnceLock;

use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage};

use crate::error::{UpdateError, internal, invalid};
use crate::proto::DESCRIPTORS;
use crate::proto::p4::config::v1::P4Info;

/// The descriptors of all messages.
pub fn pool() -> Result<&'static DescriptorPool, UpdateError> {
    static POOL: OnceLock<Option<DescriptorPool>> = OnceLock::new();
    POOL.get_or_init(|| DescriptorPool::decode(DESCRIPTORS).ok())
        .as_ref()
        .ok_or_else(|| internal("the descriptors of this build cannot be read"))
}

/// Parses P4Info in binary or text form (`.txtpb`). Valid UTF-8 without control characters counts
/// as text.
///
/// # Errors
/// INVALID_ARGUMENT with the parser's message, which contains line and column for text.
pub fn parse(bytes: &[u8]) -> Result<P4Info, UpdateError> {
    let is_text = |s: &&str| !s.chars().any(|c| c.is_control() && !c.is_ascii_whitespace());
    match std::str::from_utf8(bytes).ok().filter(is_text) {
        Some(text) => parse_text(text),
        None => P4Info::decode(bytes).map_err(|e| invalid(format!("P4Info: {e}"))),
    }
}

fn parse_text(text: &str) -> Result<P4Info, UpdateError> {
    let descriptor = pool()?
        .get_message_by_name("p4.config.v1.P4Info")
        .ok_or_else(|| internal("the descriptors of this build have no P4Info"))?;
    let message = DynamicMessage::parse_text_format(descriptor, text)
        .map_err(|e| invalid(format!("P4Info in text form: {e}")))?;
    message.transcode_to().map_err(|e| internal(format!("P4Info: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "pkg_info { arch: \"v1model\" }\n\
        actions { preamble { id: 16777217 name: \"NoAction\" annotations: \"@noWarn(\\\"unused\\\")\" } }\n";

    #[test]
    fn text_and_binary_read_alike() {
        let text = parse(TEXT.as_bytes()).unwrap();
        assert_eq!(text.actions[0].preamble.as_ref().unwrap().name, "NoAction");
        assert_eq!(parse(&text.encode_to_vec()).unwrap(), text);
    }

    #[test]
    fn errors_name_the_place() {
        let error = parse(b"pkg_info { arch: \"v1model\" }\nnonsense { }\n").unwrap_err();
        assert!(error.message.contains("nonsense"), "{error}");
        assert!(parse(&[0x0a, 0xff, 0x01]).is_err());
    }
}
