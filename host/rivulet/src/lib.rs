//! The parts of the `rivulet` command: the file server's HTTP, and code that several subcommands
//! use.

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
mod tls_services;
