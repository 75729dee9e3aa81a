//! The queues from the server to one controller's stream. Arbitration messages must arrive and have
//! a separate queue. Packets, digests, notifications and stream errors share another queue and are
//! dropped when the controller does not read. No queue grows, and the server never waits for a
//! controller.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::{Notify, mpsc, oneshot};
use tonic::Status;

use crate::proto::p4::v1::stream_message_response::Update;

/// Arbitration messages that can wait for a controller; one that leaves more unread is
/// disconnected.
const CONTROL_DEPTH: usize = 64;
/// Other messages that can wait for a controller.
const DATA_DEPTH: usize = 1024;

/// The sending side of a stream's queues.
#[derive(Clone, Debug)]
pub struct Outbox {
    control: mpsc::Sender<Update>,
    data: mpsc::Sender<Update>,
    lost: Arc<AtomicU64>,
    end: Arc<End>,
}

/// The status with which the stream must end at once, once set.
#[derive(Debug, Default)]
struct End {
    status: OnceLock<Status>,
    ended: Notify,
}

/// The receiving side, which the stream's task drains.
#[derive(Debug)]
pub struct Inbox {
    control: mpsc::Receiver<Update>,
    data: mpsc::Receiver<Update>,
    end: Arc<End>,
}

/// The queues of a new stream.
pub fn outbox() -> (Outbox, Inbox) {
    let (control, control_out) = mpsc::channel(CONTROL_DEPTH);
    let (data, data_out) = mpsc::channel(DATA_DEPTH);
    let end = Arc::new(End::default());
    let outbox = Outbox { control, data, lost: Arc::default(), end: end.clone() };
    (outbox, Inbox { control: control_out, data: data_out, end })
}

impl Outbox {
    /// Queues a message that must arrive. A controller that does not read these is disconnected: it
    /// would act on a role that it no longer has.
    pub fn control(&self, update: Update) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.control.try_send(update) {
            self.end(Status::resource_exhausted("arbitration messages were not read"));
        }
    }

    /// Ends the stream at once, without sending anything more. The first status counts.
    pub fn end(&self, status: Status) {
        let _ = self.end.status.set(status);
        self.end.ended.notify_one();
    }

    /// Queues a message that may be dropped; returns false if it was.
    pub fn data(&self, update: Update) -> bool {
        let sent = self.data.try_send(update).is_ok();
        if !sent {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    /// Completes when the receiving side is gone, that is, the client has disconnected.
    pub async fn closed(&self) {
        self.control.closed().await;
    }

    /// Messages dropped so far because the controller did not read.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// Next action of a stream's writing side.
#[derive(Debug)]
pub enum Next {
    /// Send this message.
    Message(Update),
    /// The receiving side ended the stream, with an error or without.
    Ended(Option<Status>),
}

impl Inbox {
    /// Returns the next action: arbitration first, then the stream's end, then other messages.
    pub async fn next(&mut self, ended: &mut oneshot::Receiver<Option<Status>>) -> Next {
        tokio::select! {
            biased;
            () = self.end.ended.notified() => Next::Ended(self.end.status.get().cloned()),
            Some(update) = self.control.recv() => Next::Message(update),
            status = ended => Next::Ended(status.unwrap_or_default()),
            Some(update) = self.data.recv() => Next::Message(update),
        }
    }

    /// A waiting arbitration message.
    #[cfg(test)]
    pub fn try_control(&mut self) -> Option<Update> {
        self.control.try_recv().ok()
    }

    /// Whether the server has ended the stream.
    #[cfg(test)]
    pub fn was_ended(&self) -> bool {
        self.end.status.get().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::p4::v1::{MasterArbitrationUpdate, PacketIn};

    #[tokio::test]
    async fn packets_are_dropped_instead_of_waiting() {
        let (outbox, mut inbox) = outbox();
        let (_end, mut ended) = oneshot::channel();
        let packet = || Update::Packet(PacketIn::default());
        let sent = (0..DATA_DEPTH + 10).filter(|_| outbox.data(packet())).count();
        assert_eq!((sent, outbox.lost()), (DATA_DEPTH, 10));
        outbox.control(Update::Arbitration(MasterArbitrationUpdate::default()));
        let first = inbox.next(&mut ended).await;
        assert!(matches!(first, Next::Message(Update::Arbitration(_))), "arbitration overtakes packets");
    }

    #[tokio::test]
    async fn controller_that_ignores_arbitration_is_disconnected() {
        let (outbox, mut inbox) = outbox();
        let (_end, mut ended) = oneshot::channel();
        for _ in 0..=CONTROL_DEPTH {
            outbox.control(Update::Arbitration(MasterArbitrationUpdate::default()));
        }
        assert!(matches!(inbox.next(&mut ended).await, Next::Ended(Some(_))));
    }

    #[tokio::test]
    async fn the_end_comes_after_arbitration_and_before_packets() {
        let (outbox, mut inbox) = outbox();
        let (end, mut ended) = oneshot::channel();
        outbox.data(Update::Packet(PacketIn::default()));
        outbox.control(Update::Arbitration(MasterArbitrationUpdate::default()));
        end.send(Some(Status::not_found("x"))).unwrap();
        drop(outbox);
        assert!(matches!(inbox.next(&mut ended).await, Next::Message(Update::Arbitration(_))));
        match inbox.next(&mut ended).await {
            Next::Ended(Some(status)) => assert_eq!(status.code(), tonic::Code::NotFound),
            other => panic!("{other:?}"),
        }
    }
}
