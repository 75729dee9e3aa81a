//! Keys and records against the trace of RFC 8448 section 3, and what is refused.

use rivulet_tls::{
    CLOSE_NOTIFY, CipherSuite, ContentType, Error, MAX_PLAINTEXT_BYTES, MAX_RECORDS, OVERHEAD_BYTES,
    TrafficSecret,
};

const SERVER_SECRET: &str = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";
/// Record 1, behind the session ticket: the bytes 0 to 49.
const DATA_RECORD: &str = "17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb501a59a8fc\
                           c49c4bf2e5f0a21c0047c2abf332540dd032e167c2955d";
/// Record 2.
const ALERT_RECORD: &str = "1703030013b58fd67166ebf599d24720cfbe7efa7a8864a9";

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn secret() -> TrafficSecret {
    TrafficSecret::new(CipherSuite::Aes128GcmSha256, &bytes(SERVER_SECRET)).unwrap()
}

#[test]
fn records_equal_the_rfc_8448_trace() {
    let key = secret().record_key();
    let data: Vec<u8> = (0..50).collect();
    let mut record = Vec::new();
    key.seal(1, ContentType::ApplicationData, &data, &mut record).unwrap();
    assert_eq!(record, bytes(DATA_RECORD));
    assert_eq!(record.len() as u64, 50 + OVERHEAD_BYTES);
    record.clear();
    key.seal(2, ContentType::Alert, &CLOSE_NOTIFY, &mut record).unwrap();
    assert_eq!(record, bytes(ALERT_RECORD));
}

#[test]
fn oversized_plaintext_and_spent_key_are_refused() {
    let key = secret().record_key();
    let mut out = vec![7];
    let long = vec![0; MAX_PLAINTEXT_BYTES + 1];
    let data = ContentType::ApplicationData;
    assert_eq!(key.seal(0, data, &long, &mut out), Err(Error::PlaintextTooLong));
    assert_eq!(key.seal(MAX_RECORDS, data, b"a", &mut out), Err(Error::KeySpent));
    assert_eq!(key.seal(u64::MAX, data, b"a", &mut out), Err(Error::KeySpent));
    assert_eq!(out, [7]);
    key.seal(MAX_RECORDS - 1, data, &long[1..], &mut out).unwrap();
    assert_eq!(out.len() as u64, 1 + MAX_PLAINTEXT_BYTES as u64 + OVERHEAD_BYTES);
}

#[test]
fn secrets_of_wrong_length_are_refused() {
    for (number, length) in [(0x1301, 32), (0x1302, 48), (0x1303, 32)] {
        let suite = CipherSuite::from_number(number).unwrap();
        for actual in (0..100).filter(|&n| n != length) {
            let error = TrafficSecret::new(suite, &vec![1; actual]).unwrap_err();
            assert_eq!(error, Error::SecretLength { expected: length, actual });
        }
        TrafficSecret::new(suite, &vec![1; length]).unwrap();
    }
    let known = (0..=u16::MAX).filter_map(CipherSuite::from_number).count();
    assert_eq!(known, 3);
}

#[test]
fn debug_output_hides_secrets_and_keys() {
    let secret = TrafficSecret::new(CipherSuite::Aes128GcmSha256, &[0xab; 32]).unwrap();
    assert_eq!(format!("{secret:?}"), "TrafficSecret { suite: Aes128GcmSha256, .. }");
    assert_eq!(format!("{:?}", secret.record_key()), "RecordKey { algorithm: AES_128_GCM, .. }");
}
