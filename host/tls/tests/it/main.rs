//! The records against RFC 8448's trace, against themselves made from any place on, and at real clients.

mod clients;
mod receive;
mod stream;
mod vectors;
