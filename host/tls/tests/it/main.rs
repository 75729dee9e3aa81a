//! Tests of the records: against the trace in RFC 8448, from any position on, and with real
//! clients; and of the stored form of a connection.

mod adoption;
mod clients;
mod corpus;
mod plan;
mod receive;
mod state;
mod stream;
mod vectors;

use rivulet_tls::{ContentType, RecordKey, Response};

/// The ciphertext that a replica sends from `offset` on.
fn ciphertext_from(response: Response, offset: u64, key: &RecordKey, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let Some(first) = response.record_at(offset) else { return out };
    for record in response.records_from(offset) {
        let plaintext = &content[record.plaintext.start as usize..record.plaintext.end as usize];
        key.seal(record.number, ContentType::ApplicationData, plaintext, &mut out).unwrap();
    }
    out.split_off((offset - first.offset) as usize)
}
