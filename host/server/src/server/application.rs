//! What the event loop asks of a program.

use rivulet_transport::server::Refusal;

use crate::minisocket::Minisocket;

/// A server application: the Rust form of the `msk_*` programs. It keeps no state of a connection
/// between two calls, and puts what it needs later into user continuations.
pub trait Application {
    /// Handles an event. REQUEST events arrive at least once and in any order. An error refuses the
    /// request: there is no answer, and the refusal is counted.
    fn event(&mut self, msk: &mut Minisocket<'_, '_>) -> Result<(), Refusal>;
}
