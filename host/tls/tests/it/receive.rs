//! Messages that clients may send after the handshake, and messages that they must not.

use proptest::prelude::*;
use rivulet_tls::{
    CipherSuite, ContentType, Error, KEY_UPDATE, MAX_PLAINTEXT_BYTES, MAX_RECORD_BYTES, Message,
    OVERHEAD_BYTES, Receiver, TrafficSecret, record_bytes,
};

fn secret() -> TrafficSecret {
    TrafficSecret::new(CipherSuite::Chacha20Poly1305Sha256, &[5; 32]).unwrap()
}

fn seal(secret: &TrafficSecret, number: u64, content: ContentType, plaintext: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    secret.record_key().seal(number, content, plaintext, &mut record).unwrap();
    record
}

#[test]
fn key_update_begins_the_next_generation_at_zero() {
    let mut receiver = Receiver::new(secret(), 7);
    let request = [24, 0, 0, 1, 1];
    let mut record = seal(&secret(), 7, ContentType::Handshake, &request);
    assert_eq!(receiver.receive(&mut record), Ok(Message::KeyUpdate { requested: true }));
    let next = secret().next_generation();
    let mut record = seal(&next, 0, ContentType::Handshake, &KEY_UPDATE);
    assert_eq!(receiver.receive(&mut record), Ok(Message::KeyUpdate { requested: false }));
    let mut record = seal(&next.next_generation(), 0, ContentType::ApplicationData, b"data");
    assert_eq!(receiver.receive(&mut record), Ok(Message::Data(b"data")));
    assert_eq!(receiver.next_record(), 1);
    // Another replica continues from the secret and the record number.
    let mut adopter = Receiver::new(receiver.secret().clone(), receiver.next_record());
    let mut record = seal(&next.next_generation(), 1, ContentType::ApplicationData, b"");
    assert_eq!(adopter.receive(&mut record), Ok(Message::Data(b"")));
}

#[test]
fn unexpected_messages_are_refused() {
    let no_messages: [(ContentType, &[u8]); 8] = [
        (ContentType::Handshake, b""),
        (ContentType::Handshake, &[24, 0, 0, 1]),
        (ContentType::Handshake, &[24, 0, 0, 1, 2]),
        (ContentType::Handshake, &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0]),
        (ContentType::Handshake, &[1, 0, 0, 0]),
        (ContentType::Alert, b""),
        (ContentType::Alert, &[1]),
        (ContentType::Alert, &[1, 1, 1]),
    ];
    for (content, plaintext) in no_messages {
        let mut receiver = Receiver::new(secret(), 0);
        let mut record = seal(&secret(), 0, content, plaintext);
        assert_eq!(receiver.receive(&mut record), Err(Error::UnexpectedMessage), "{content:?} {plaintext:?}");
        assert_eq!(receiver.next_record(), 0);
    }
    let mut plain_alert = [21, 3, 3, 0, 2, 1, 0];
    assert_eq!(Receiver::new(secret(), 0).receive(&mut plain_alert), Err(Error::UnexpectedMessage));
}

#[test]
fn last_record_number_is_refused() {
    let mut record = vec![23; 40];
    assert_eq!(Receiver::new(secret(), u64::MAX).receive(&mut record), Err(Error::KeySpent));
}

#[test]
fn longest_record_is_known_by_its_header() {
    let longest = seal(&secret(), 0, ContentType::ApplicationData, &vec![1; MAX_PLAINTEXT_BYTES]);
    assert_eq!(record_bytes(&longest), Ok(Some(MAX_PLAINTEXT_BYTES + OVERHEAD_BYTES as usize)));
    for short in 0..5 {
        assert_eq!(record_bytes(&longest[..short]), Ok(None));
    }
    let [high, low] = (MAX_RECORD_BYTES as u16 - 5).to_be_bytes();
    assert_eq!(record_bytes(&[23, 3, 3, high, low]), Ok(Some(MAX_RECORD_BYTES)));
    assert_eq!(record_bytes(&[23, 3, 3, high, low + 1]), Err(Error::RecordTooLong));
    assert_eq!(record_bytes(&[23, 3, 3, 255, 255]), Err(Error::RecordTooLong));
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..100), number: u64) {
        let _ = record_bytes(&bytes);
        prop_assert!(Receiver::new(secret(), number).receive(&mut bytes).is_err());
    }

    #[test]
    fn authentic_records_of_any_content_are_read_without_panic(
        content in 0..3_usize, plaintext in prop::collection::vec(any::<u8>(), 0..20), padding in 0..3_usize,
    ) {
        let content = [ContentType::Alert, ContentType::Handshake, ContentType::ApplicationData][content];
        // Zeros at the end of the data are data: the content type follows them.
        let plaintext = [plaintext, vec![0; padding]].concat();
        let mut record = seal(&secret(), 0, content, &plaintext);
        let mut receiver = Receiver::new(secret(), 0);
        match receiver.receive(&mut record) {
            Ok(Message::Data(data)) => prop_assert_eq!(data, &plaintext),
            Ok(_) => prop_assert!(content != ContentType::ApplicationData),
            Err(error) => prop_assert_eq!(error, Error::UnexpectedMessage),
        }
    }

    #[test]
    fn changed_records_are_refused(
        plaintext in prop::collection::vec(any::<u8>(), 0..100), place: prop::sample::Index, bit in 0..8_u8,
    ) {
        let record = seal(&secret(), 3, ContentType::ApplicationData, &plaintext);
        let mut changed = record.clone();
        changed[place.index(record.len())] ^= 1 << bit;
        prop_assert!(Receiver::new(secret(), 3).receive(&mut changed).is_err());
        prop_assert!(Receiver::new(secret(), 3).receive(&mut record[..place.index(record.len())].to_vec()).is_err());
        let replayed = Receiver::new(secret(), 4).receive(&mut record.clone()).err();
        prop_assert_eq!(replayed, Some(Error::BadRecord));
    }
}
