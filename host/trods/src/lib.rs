//! TRODS: a plain HTTP connection to an unmodified server outlives its replica (`docs/trods.md`; Lloyd and Freedman, "Coercing
//! Clients into Facilitating Failover for Object Delivery", DSN 2011).
//!
//! - [`Flow`] reads what client and server send on one connection and decides which bytes may pass: nothing is
//!   acknowledged to the client, and no byte of the server leaves, before a [`Record`] with its meaning is stored. It
//!   has neither sockets nor a clock.
//! - [`hold`] carries out these decisions on a real interface.
//! - [`Record`] has everything that another replica needs to resume the connection.

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
pub mod terminator;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod ts;
pub mod wake;

pub use flow::{Action, AdoptAs, Asked, Flow, Limits, Reason, Settings, StoreOutcome, Unknown, Wake};
pub use record::{Age, Record, Tuple};
