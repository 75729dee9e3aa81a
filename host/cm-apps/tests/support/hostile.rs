//! The check that the fuzz target runs on arbitrary bytes.

use rivulet_cm_apps::outstanding::Outstanding;
use rivulet_cm_apps::receiver::Receiver;
use rivulet_cm_apps::wire::{CONTROL, Feedback, HEADER, Message};

/// A datagram is refused or encodes again to the same bytes, and neither end fails on it.
pub fn message(bytes: &[u8]) {
    let Ok(message) = Message::parse(bytes) else { return };
    let mut again = [0; CONTROL];
    let length = message.write(&mut again);
    assert_eq!(
        Message::parse(&again[..length]).map(|m| std::mem::discriminant(&m)),
        Ok(std::mem::discriminant(&message))
    );
    match message {
        Message::Data { layer, number, sent, content } => {
            assert_eq!(content.len() + HEADER, bytes.len());
            let mut receiver = Receiver::new([0; 16], Feedback { every: 1, delay_ms: 0 });
            for (n, at) in [(number, 1), (number.wrapping_add(1), 1 << 60), (0, 5)] {
                receiver.data(at, layer, n, sent, bytes.len());
                receiver.report(at);
                receiver.line(at);
                let _ = receiver.due();
            }
            let _ = receiver.end();
        }
        Message::Report(report) => {
            let mut outstanding = Outstanding::default();
            (0..10).for_each(|n| outstanding.sent(n, 1000));
            for _ in 0..2 {
                let before = outstanding.bytes();
                if let Some(mut learnt) = outstanding.report(100, &report) {
                    assert!(learnt.arrived <= learnt.resolved && learnt.resolved <= before);
                    while learnt.part(1000).is_some() {}
                }
            }
        }
        other => assert_eq!(Message::parse(&again[..length]), Ok(other)),
    }
}
