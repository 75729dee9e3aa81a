//! TRODS: a plain HTTP connection to an unmodified server outlives its replica (`docs/trods.md`; Lloyd and Freedman, "Coercing
//! Clients into Facilitating Failover for Object Delivery", DSN 2011).
//!
//! - [`Flow`] reads what client and server say on one connection and tells what may pass: nothing is acknowledged to the
//!   client, and nothing of the server's is let out, before a [`Record`] of what it means is stored. No sockets, no clock.
//! - [`hold`] is what has them pass on a real interface, and what does as flows say.
//! - [`Record`] is what another replica needs to go on with the connection.

pub mod adopt;
mod chunked;
pub mod digest;
pub mod flow;
pub mod head;
pub mod hold;
pub mod lease;
pub mod record;
pub mod replica;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod ts;
pub mod wake;

pub use flow::{Action, AdoptAs, Flow, Limits, Reason, Settings, Unknown, Wake};
pub use record::{Age, Record, Tuple};
