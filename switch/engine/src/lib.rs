//! v1model programs from BMv2 JSON, compiled when they are loaded.
//!
//! [`Program::from_json`] reads the output of `p4c --target bmv2 --arch v1model`. A [`Pipeline`] is
//! a program with its tables and other state, and the interface to control it. A [`Switch`]
//! forwards packets through one pipeline at a time with a [`DataPath`], which one thread owns.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rivulet_engine::{Pipeline, Program, Switch, SwitchConfig};
//! let program = Program::from_json(&std::fs::read("program.json")?)?;
//! let pipeline = Pipeline::new(program);
//! let (switch, mut path, _events) = Switch::new(SwitchConfig::default());
//! switch.commit(&pipeline)?;
//! path.process(0, 1, &[0; 64], &mut |port: u32, head: &[u8], rest: &[u8]| {
//!     println!("{port}: {} bytes", head.len() + rest.len());
//! });
//! # Ok(())
//! # }
//! ```

mod bits;
mod calc;
mod code;
mod control;
mod datapath;
mod emit;
mod expr;
mod hash;
mod headers;
mod info;
mod jit;
mod json;
mod key;
mod layout;
mod load;
mod mirror;
mod program;
mod queue;
mod runtime;
mod state;
mod switch;
mod table;
mod trace;
mod types;
mod vm;
mod wide;
mod workers;

pub use control::Pipeline;
pub use datapath::{DataPath, Output};
pub use info::*;
pub use program::Program;
pub use switch::{Events, Stats, Switch, SwitchConfig};
pub use trace::{Step, Trace};
pub use types::*;
