//! The BPF programs of this project: C in `src/bpf`, compiled by clang when this crate is built, loaded by libbpf.
//!
//! Each program is a file `src/bpf/NAME.c`, a header `NAME.h` with the layouts of its maps, and a
//! module of this crate that includes the object file, opens it by [`open`] and gives its maps
//! types (such as [`redirect`], [`trods`] and [`cm`]). Their licence string is "Dual BSD/GPL".
//! Kernel types are written by hand or come from the uapi headers, so that the build does not
//! depend on the BTF of its machine. A kernel feature that a program needs is a
//! [`kernel::Feature`], probed where the program is first used.
//!
//! Everything that is loaded is a descriptor and ends with the process, however the process ends.
//! Exceptions: the programs that TRODS attached end a few seconds later, and those that the
//! Congestion Manager pinned stay.

pub mod cm;
mod dying;
mod error;
pub mod kernel;
mod linger;
mod object;
pub mod redirect;
pub mod trods;

pub use error::Error;
pub use libbpf_rs;
pub use object::open;
