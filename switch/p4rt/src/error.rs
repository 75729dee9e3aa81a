//! Errors in the canonical form of P4Runtime section 10: one `p4.v1.Error` for each update, in the
//! details of a `google.rpc.Status` with the code UNKNOWN.

use prost::Message as _;
use rivulet_engine::WriteError;
use tonic::{Code, Status};

use crate::proto::google::rpc;
use crate::proto::p4::v1 as p4;

/// The error space of the codes below, for `p4.v1.Error.space`.
pub const SPACE: &str = "rivulet-switch";

/// Type URL of the errors in the details.
const TYPE_URL: &str = "type.googleapis.com/p4.v1.Error";

/// Longest message of one update's error in bytes. The reply's trailers carry an error for each
/// update of a batch, and gRPC clients limit their size.
const MESSAGE_LIMIT: usize = 200;

/// Why one update of a batch, or one request of a read, failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct UpdateError {
    /// The canonical code.
    pub code: Code,
    /// The fault and its place, in English.
    pub message: String,
}

/// Result of every fallible step of an update.
pub type Result<T> = std::result::Result<T, UpdateError>;

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident = $code:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name(message: impl Into<String>) -> UpdateError {
            UpdateError { code: Code::$code, message: message.into() }
        }
    )*};
}

constructors! {
    /// INVALID_ARGUMENT
    invalid = InvalidArgument;
    /// NOT_FOUND
    not_found = NotFound;
    /// OUT_OF_RANGE
    out_of_range = OutOfRange;
    /// PERMISSION_DENIED
    denied = PermissionDenied;
    /// ALREADY_EXISTS
    exists = AlreadyExists;
    /// RESOURCE_EXHAUSTED
    exhausted = ResourceExhausted;
    /// UNIMPLEMENTED
    unimplemented = Unimplemented;
    /// INTERNAL
    internal = Internal;
    /// ABORTED: the update was not tried or was undone, because another one of its batch failed
    aborted = Aborted;
}

impl UpdateError {
    /// Prepends the place to the message.
    pub fn at(mut self, place: &dyn std::fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }
}

impl From<WriteError> for UpdateError {
    fn from(error: WriteError) -> Self {
        let (code, message) = match error {
            WriteError::NotFound(m) => (Code::NotFound, m),
            WriteError::AlreadyExists(m) => (Code::AlreadyExists, m),
            WriteError::Invalid(m) => (Code::InvalidArgument, m),
            WriteError::OutOfRange(m) => (Code::OutOfRange, m),
            WriteError::Const(m) => (Code::PermissionDenied, m),
            WriteError::Full(m) => (Code::ResourceExhausted, m),
            WriteError::InUse(m) => (Code::FailedPrecondition, m),
            WriteError::Busy => (Code::Unavailable, error.to_string()),
        };
        UpdateError { code, message }
    }
}

impl From<UpdateError> for Status {
    fn from(error: UpdateError) -> Self {
        Status::new(error.code, error.message)
    }
}

/// The status of a batch: OK if every element is, else UNKNOWN with one `p4.v1.Error` for each
/// element, in order.
pub fn batch_status(what: &str, results: &[Result<()>]) -> std::result::Result<(), Status> {
    let failed = results.iter().filter(|r| r.is_err()).count();
    if failed == 0 {
        return Ok(());
    }
    let message = format!("{failed} of {} {what} failed", results.len());
    let any = |r| prost_types::Any { type_url: TYPE_URL.to_owned(), value: detail(r).encode_to_vec() };
    let details = results.iter().map(any).collect();
    let status = rpc::Status { code: Code::Unknown as i32, message: message.clone(), details };
    Err(Status::with_details(Code::Unknown, message, status.encode_to_vec().into()))
}

fn detail(result: &Result<()>) -> p4::Error {
    match result {
        Ok(()) => p4::Error::default(),
        Err(error) => p4::Error {
            canonical_code: error.code as i32,
            message: shortened(&error.message),
            space: SPACE.to_owned(),
            code: error.code as i32,
            details: None,
        },
    }
}

fn shortened(message: &str) -> String {
    if message.len() <= MESSAGE_LIMIT {
        return message.to_owned();
    }
    let end = (0..=MESSAGE_LIMIT).rev().find(|i| message.is_char_boundary(*i)).unwrap_or(0);
    format!("{}...", &message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_error_an_update_in_order() {
        let results = [Err(exhausted("full")), Ok(()), Err(exists("there"))];
        let status = batch_status("updates", &results).unwrap_err();
        assert_eq!(status.code(), Code::Unknown);
        let inner = rpc::Status::decode(status.details()).unwrap();
        assert_eq!((inner.code, inner.message.as_str()), (2, status.message()));
        let errors: Vec<p4::Error> = inner
            .details
            .iter()
            .map(|any| {
                assert_eq!(any.type_url, "type.googleapis.com/p4.v1.Error");
                p4::Error::decode(&*any.value).unwrap()
            })
            .collect();
        assert_eq!(errors.iter().map(|e| e.canonical_code).collect::<Vec<_>>(), [8, 0, 6]);
        assert_eq!(errors[0].message, "full");
        assert_eq!(errors[1], p4::Error::default());
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let long = "ä".repeat(MESSAGE_LIMIT);
        let cut = shortened(&long);
        assert!(cut.len() <= MESSAGE_LIMIT + 3 && cut.ends_with("..."), "{cut}");
    }
}
