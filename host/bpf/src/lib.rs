//! The BPF programs of this project: C in `src/bpf`, compiled by clang when this crate is built, loaded by libbpf.
//!
//! A program is a file `src/bpf/NAME.c`, a header `NAME.h` with the layouts of its maps, and a module of this crate that
//! includes the object, opens it by [`open`] and gives its maps types ([`redirect`], [`trods`] and [`cm`] are such). Licence string "Dual
//! BSD/GPL"; types by hand or from the kernel's uapi headers, so that nothing depends on the BTF of the machine that builds.
//! What a program needs of the kernel is a [`kernel::Feature`], asked for where the program is first used.
//!
//! Everything that is loaded is a descriptor and goes with the process, however that ends; what TRODS attached a few seconds later, what
//! the Congestion Manager pinned not.

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
