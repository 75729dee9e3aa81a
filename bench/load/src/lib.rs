//! HTTP load for the benches: clients that fetch one object again and again, over Rivulet or kernel TCP, and
//! report as JSON; and attackers ([`flood`]).

pub mod flood;
pub mod report;
pub mod response;
pub mod swarm;
pub mod target;
