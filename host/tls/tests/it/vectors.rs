//! Keys and records compared with the trace of RFC 8448 section 3, and arguments that are refused.

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rivulet_tls::{
    CLOSE_NOTIFY, CipherSuite, ContentType, Error, MAX_PLAINTEXT_BYTES, MAX_RECORDS, Message, OVERHEAD_BYTES,
    Receiver, TrafficSecret,
};

const SERVER_SECRET: &str = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";
/// Record 1 of the server, after the session ticket: the bytes 0 to 49.
const DATA_RECORD: &str = "17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb501a59a8fc\
                           c49c4bf2e5f0a21c0047c2abf332540dd032e167c2955d";
/// Record 2.
const ALERT_RECORD: &str = "1703030013b58fd67166ebf599d24720cfbe7efa7a8864a9";

const CLIENT_SECRET: &str = "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";
/// Record 0 of the client: the bytes 0 to 49.
const CLIENT_DATA_RECORD: &str = "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20441e2b62\
                                  974e1f5a6292a2977014bd1e3deae63aeebb21694915e4";
/// Record 1.
const CLIENT_ALERT_RECORD: &str = "1703030013c9872760655666b74d7ff1153efd6db6d0b0e3";

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
fn client_records_of_the_rfc_8448_trace_open() {
    let secret = TrafficSecret::new(CipherSuite::Aes128GcmSha256, &bytes(CLIENT_SECRET)).unwrap();
    let mut receiver = Receiver::new(secret, 0);
    let data: Vec<u8> = (0..50).collect();
    assert_eq!(receiver.receive(&mut bytes(CLIENT_DATA_RECORD)), Ok(Message::Data(&data)));
    assert_eq!(receiver.receive(&mut bytes(CLIENT_ALERT_RECORD)), Ok(Message::CloseNotify));
    assert_eq!(receiver.next_record(), 2);
}

/// Record 0 with the server's key of the trace. `inner`: plaintext, content type and padding.
fn seal_inner(inner: &[u8]) -> Vec<u8> {
    let key = UnboundKey::new(&AES_128_GCM, &bytes("9f02283b6c9c07efc26bb9f2ac92e356")).unwrap();
    let nonce = Nonce::try_assume_unique_for_key(&bytes("cf782b88dd83549aadf1e984")).unwrap();
    let [high, low] = (inner.len() as u16 + 16).to_be_bytes();
    let header = [23, 3, 3, high, low];
    let mut sealed = inner.to_vec();
    LessSafeKey::new(key).seal_in_place_append_tag(nonce, Aad::from(header), &mut sealed).unwrap();
    [&header[..], &sealed].concat()
}

#[test]
fn padding_is_removed_and_bounded() {
    let receive = |inner: &[u8]| {
        let mut record = seal_inner(inner);
        Receiver::new(secret(), 0).receive(&mut record).map(|message| format!("{message:?}"))
    };
    assert_eq!(receive(&[8, 0, 23, 0, 0]), Ok("Data([8, 0])".into()));
    assert_eq!(receive(&[23, 0]), Ok("Data([])".into()));
    assert_eq!(receive(&[1, 0, 21, 0]), Ok("CloseNotify".into()));
    assert_eq!(receive(&[2, 40, 21]), Ok("Alert(40)".into()));
    assert_eq!(receive(&[8, 20]), Err(Error::UnexpectedMessage));
    for only_padding in [0, 1, 100] {
        assert_eq!(receive(&vec![0; only_padding]), Err(Error::UnexpectedMessage));
    }
    let mut inner = vec![0; MAX_PLAINTEXT_BYTES + 1];
    inner[0] = 23;
    assert_eq!(receive(&inner), Ok("Data([])".into()));
    inner.push(0);
    assert_eq!(receive(&inner), Err(Error::RecordTooLong));
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
