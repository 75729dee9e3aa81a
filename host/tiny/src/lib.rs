//! A Rivulet server for devices with some tens of kilobytes of memory: the paper's "tiny embedded devices" (section 1).
//!
//! [`Server`] takes Ethernet frames and the time, and makes Ethernet frames. It answers ARP requests for its address, and
//! HTTP requests over Rivulet for the pages of a [`Site`], which stay in read-only memory. It needs `alloc` only to start.
//! After that its memory is constant: what a connection needs is sealed into continuations, which the client returns.
//!
//! `src/linux` is the program `rivulet-tiny`, which puts this between a TAP and a static heap without linking the standard
//! library. On a device a network driver takes the place of the TAP.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod answer;
mod arp;
mod counters;
mod server;
mod session;
mod site;

pub use counters::Counters;
pub use server::{Keys, Server};
pub use site::{Page, Report, Site, TEXT_BYTES};
