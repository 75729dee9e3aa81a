//! `rivulet agent`: the replica's channel to the controllers as a separate process.
//!
//! It keeps services and keys for the serving processes of this host, which start and stop, and
//! passes them on by a Unix socket. Where only the kernel's TCP serves (for example nginx), it also
//! sends the heartbeats, ready while the service accepts connections; elsewhere only the serving
//! process sends them. It also protects the connections of such services, if configured.

use std::path::{Path, PathBuf};

mod args;
mod command;
mod incarnation;
mod moves;
mod plain;
mod predecessor;
mod stand_in;
mod trods;

pub use args::{AgentArgs, ControllerArgs};
pub use command::run;
pub use stand_in::{StandInArgs, run as stand_in};

/// Path of a file that an agent leaves for the next one: that of its socket with a suffix.
fn beside(socket: &Path, suffix: &str) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}
