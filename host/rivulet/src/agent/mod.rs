//! `rivulet agent`: the replica's channel to the controllers as a process of its own.
//!
//! It keeps services and keys for the serving processes of this host, which come and go, and hands them out on
//! a Unix socket. Where nothing of ours serves but the kernel's TCP (nginx, say), it also sends the heartbeats,
//! ready while the service accepts connections; elsewhere heartbeats come from the serving process alone. It protects such
//! services' connections too, where they are to outlive their replica.

use std::path::{Path, PathBuf};

mod args;
mod command;
mod incarnation;
mod moves;
mod plain;
mod stand_in;
mod trods;

pub use args::{AgentArgs, ControllerArgs};
pub use command::run;
pub use stand_in::{StandInArgs, run as stand_in};

/// What an agent leaves for the next one stands beside its socket, under its name and a suffix.
fn beside(socket: &Path, suffix: &str) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}
