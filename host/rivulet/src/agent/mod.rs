//! `rivulet agent`: the replica's channel to the controllers, as a separate process.
//!
//! It keeps services and keys for the serving processes of this host, which come and go, and passes
//! these on through a Unix socket. If only the kernel's TCP serves (for example with nginx), it
//! also sends the heartbeats, which are ready while the service accepts connections; otherwise the
//! serving process sends them. It also protects the connections of such services, if configured.

use std::path::{Path, PathBuf};

mod args;
mod command;
mod incarnation;
mod moves;
mod plain;
mod predecessor;
mod stand_in;
mod trods;
mod trouble;

pub use args::{AgentArgs, ControllerArgs};
pub use command::run;
pub use stand_in::{StandInArgs, run as stand_in};

/// The agent's socket for TLS terminators, beside its socket for serving processes.
pub(crate) fn tls_door(socket: &Path) -> PathBuf {
    beside(socket, ".tls")
}

/// Path of a file that an agent leaves for the next one: the path of its socket with a suffix.
fn beside(socket: &Path, suffix: &str) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}
