//! The record rule, compared with a simple loop over a whole response, and with streams made from
//! any offset on.

use proptest::prelude::*;
use rivulet_tls::{CipherSuite, Error, MAX_RESPONSE_RECORD, OVERHEAD_BYTES, Record, Response, TrafficSecret};

use crate::ciphertext_from;

const SUITES: [(CipherSuite, usize); 3] = [
    (CipherSuite::Aes128GcmSha256, 32),
    (CipherSuite::Aes256GcmSha384, 48),
    (CipherSuite::Chacha20Poly1305Sha256, 32),
];

/// The records of a response, divided by a simple loop.
fn cut(first: u64, head: u64, body: u64) -> Vec<Record> {
    let mut records = Vec::new();
    let (mut done, mut offset) = (0, 0);
    while done < head + body {
        let size = if done < head {
            (head - done).min(16_384)
        } else if done < head + 65_536 {
            (head + body - done).min(4_096)
        } else {
            (head + body - done).min(16_384)
        };
        records.push(Record { number: first + records.len() as u64, offset, plaintext: done..done + size });
        done += size;
        offset += size + OVERHEAD_BYTES;
    }
    records
}

/// Lengths at the limits of records, and other lengths.
fn length(max: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        0..max,
        (0..=max / 4_096, -1..=1_i64).prop_map(move |(n, by)| (n * 4_096).saturating_add_signed(by).min(max)),
    ]
}

proptest! {
    #[test]
    fn every_offset_finds_its_record(first in 0..1_000_u64, head in length(40_000), body in length(150_000)) {
        let response = Response::new(0, first, head, body).unwrap();
        let records = cut(first, head, body);
        prop_assert_eq!(&response.records_from(0).collect::<Vec<_>>(), &records);
        for record in &records {
            for offset in [record.offset, record.offset + 1, record.end() - 1] {
                let found = response.record_at(offset);
                prop_assert_eq!(found.as_ref(), Some(record));
            }
        }
        let end = records.last().map_or(0, Record::end);
        prop_assert_eq!(response.ciphertext_bytes(), end);
        prop_assert_eq!(response.record_at(end), None);
        prop_assert_eq!(response.next_record(), first + records.len() as u64);
    }

    #[test]
    fn stream_from_any_offset_equals_the_whole(
        suite in 0..3_usize,
        sequence: u32,
        first in 0..1_000_u64,
        head in length(20_000),
        body in length(150_000),
        places in prop::collection::vec(0.0..=1.0_f64, 4),
    ) {
        let (suite, secret_bytes) = SUITES[suite];
        let key = || TrafficSecret::new(suite, &vec![9; secret_bytes]).unwrap().record_key();
        let content: Vec<u8> = (0..head + body).map(|i| ((i * 31) >> 3) as u8).collect();
        let response = Response::new(sequence, first, head, body).unwrap();
        let whole = ciphertext_from(response, 0, &key(), &content);
        prop_assert_eq!(whole.len() as u64, response.ciphertext_bytes());
        prop_assert_eq!(response.next_sequence(), sequence.wrapping_add(whole.len() as u32));
        for place in places {
            let offset = (whole.len() as f64 * place) as u64;
            let acknowledged = sequence.wrapping_add(offset as u32);
            prop_assert_eq!(response.offset_of(acknowledged, whole.len() as u64), Some(offset));
            let rest = ciphertext_from(response, offset, &key(), &content);
            prop_assert!(rest == whole[offset as usize..], "differs from offset {}", offset);
        }
    }

    #[test]
    fn any_numbers_give_records_within_bounds(
        sequence: u32, record: u64, head: u64, body: u64, shifts in (0..64_u32, 0..64_u32, 0..64_u32), offset: u64,
    ) {
        let (record, head, body) = (record >> shifts.0, head >> shifts.1, body >> shifts.2);
        let Ok(response) = Response::new(sequence, record, head, body) else { return Ok(()) };
        prop_assert!(response.next_record() <= MAX_RESPONSE_RECORD + 1);
        let total = response.ciphertext_bytes();
        for offset in [offset, offset % (total + 1), total.saturating_sub(1)] {
            match response.record_at(offset) {
                None => prop_assert!(offset >= total),
                Some(found) => {
                    prop_assert!(found.offset <= offset && offset < found.end() && found.end() <= total);
                    prop_assert!((record..response.next_record()).contains(&found.number));
                    prop_assert!(!found.plaintext.is_empty() && found.plaintext.end <= head + body);
                    let back = response.offset_of(sequence.wrapping_add(offset as u32), offset);
                    prop_assert_eq!(back, Some(offset));
                }
            }
        }
    }
}

#[test]
fn sequence_number_beyond_sent_bytes_has_no_offset() {
    let response = Response::new(u32::MAX - 9, 0, 100, 1_000).unwrap();
    assert_eq!(response.offset_of(u32::MAX - 9, 50), Some(0));
    assert_eq!(response.offset_of(40, 50), Some(50));
    assert_eq!(response.offset_of(41, 50), None);
    assert_eq!(response.offset_of(u32::MAX - 10, 50), None);
}

#[test]
fn ambiguous_sequence_number_means_last_sent_offset() {
    let response = Response::new(7, 0, 100, 20 << 30).unwrap();
    let sent = (13 << 30) + 5;
    assert_eq!(response.offset_of(7_u32.wrapping_add(sent as u32), sent), Some(sent));
    assert_eq!(response.offset_of(7_u32.wrapping_add(sent as u32 - 1), sent), Some(sent - 1));
    // One byte later modulo 2^32 is one byte less than 4 GB earlier.
    assert_eq!(response.offset_of(7_u32.wrapping_add(sent as u32 + 1), sent), Some(sent + 1 - (1 << 32)));
}

#[test]
fn response_beyond_its_key_is_refused() {
    let large = 16_384;
    // The head, 16 small records, and large ones.
    let longest = 65_536 + (MAX_RESPONSE_RECORD + 1 - 17) * large;
    assert_eq!(Response::new(0, 0, 1, longest).unwrap().next_record(), MAX_RESPONSE_RECORD + 1);
    for (record, head, body) in [
        (0, 1, longest + 1),
        (1, 1, longest),
        (MAX_RESPONSE_RECORD + 1, 1, 0),
        (u64::MAX, 1, 0),
        (0, u64::MAX, u64::MAX),
    ] {
        assert_eq!(Response::new(0, record, head, body), Err(Error::ResponseTooLong));
    }
}
