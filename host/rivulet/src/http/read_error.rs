//! Why bytes of an answer cannot be read here.

/// Why bytes of an answer are not available here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// This replica does not have the content with that identity.
    #[error("this replica does not hold that content")]
    NotMine,
    /// The hash of the content is being computed.
    #[error("the content is being hashed")]
    NotYet,
    /// Offset or length lie beyond the answer.
    #[error("beyond the end of the answer")]
    Beyond,
}
