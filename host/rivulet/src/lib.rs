//! The pieces of the `rivulet` command: the file server's HTTP, and what the subcommands share.

pub mod agent;
pub mod cm;
pub mod cm_udp;
pub mod get;
pub mod http;
mod process;
pub mod run;
mod second_chance;
pub mod serve;
pub mod tls;
