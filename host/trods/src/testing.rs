//! Records and keys for tests.

use crate::record::{Handshake, Record, Tuple};
use crate::store::RecordKeys;

/// The record keys that all replicas of a test share.
#[must_use]
pub fn keys() -> RecordKeys {
    RecordKeys::new(5, 1, &[(1, [7; 16])])
}

/// An idle connection: `response_at` is the service's next sequence number, `request_at` the
/// client's.
#[must_use]
pub fn idle(tuple: Tuple, response_at: u32, request_at: u32) -> Record {
    let handshake = Handshake {
        client_isn: 1,
        service_isn: 2,
        mss: 1460,
        scales: None,
        sack: true,
        timestamp: None,
        first_timestamp: None,
        stamps: None,
        at_ms: 0,
    };
    Record {
        tuple,
        handshake,
        version: 1,
        unprotected: false,
        response_at,
        responses: Vec::new(),
        request_at,
        requests: Vec::new(),
        client_fin: false,
        tls: None,
    }
}
