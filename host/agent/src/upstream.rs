//! The stream to the controllers: opened again whenever it ends, at the next address when one does not answer.

use std::time::Duration;

use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use crate::address::Controllers;
use crate::proto::agent_message::Message as FromAgent;
use crate::proto::agents_client::AgentsClient;
use crate::proto::controller_message::Message as FromController;
use crate::proto::{AgentMessage, Hello, Report, Update};

/// A report goes out at least this often.
const REPORT: Duration = Duration::from_millis(500);
/// A change of the report goes out after this time: several changes make one report.
const SOON: Duration = Duration::from_millis(20);
/// Pause when no address answered, doubled up to the second value.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Longest message taken, octets: 1,024 services with 1,024 slots each and as many keys as there can be are about 8 MB.
pub(crate) const MAX_MESSAGE: usize = 16 << 20;

/// Keeps a stream open for good. `hello` and `report` are what is said, and may change at any time: a new
/// hello opens the stream anew. `take` gets every update; false from it ends everything.
pub(crate) async fn keep(
    controllers: &Controllers,
    hello: watch::Receiver<Hello>,
    report: watch::Receiver<Report>,
    mut take: impl FnMut(Update) -> bool,
) {
    let (mut index, mut pause, mut failures) = (0, RETRY.0, 0);
    loop {
        let name = controllers.name(index).to_owned();
        let (mut hello, report) = (hello.clone(), report.clone());
        match connect(controllers, index).await {
            Ok(channel) => match converse(channel, &mut hello, report, &mut take).await {
                Ok(End::Wanted) => return,
                Ok(End::NewHello) => {
                    (pause, failures) = (RETRY.0, 0);
                    continue;
                }
                Ok(End::Closed { heard }) => {
                    tracing::info!(controller = name, "the controller ended the stream");
                    if heard {
                        (pause, failures) = (RETRY.0, 0);
                    }
                }
                Err(e) => {
                    tracing::warn!(controller = name, error = %e.message(), "the controller's stream broke")
                }
            },
            Err(e) => tracing::debug!(controller = name, error = %e, "the controller does not answer"),
        }
        // Who just spoke may be back in a moment, but another one may lead now.
        index = (index + 1) % controllers.count();
        failures += 1;
        if failures >= controllers.count() {
            failures = 0;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }
}

async fn connect(controllers: &Controllers, index: usize) -> Result<Channel, String> {
    let endpoint = controllers.endpoint(index).map_err(|e| e.to_string())?;
    endpoint.connect().await.map_err(|e| {
        // The reason stands at the end of the chain.
        let mut text = e.to_string();
        let mut source = std::error::Error::source(&e);
        while let Some(inner) = source {
            text = inner.to_string();
            source = inner.source();
        }
        text
    })
}

/// How a stream ended.
enum End {
    /// Nobody takes updates any more.
    Wanted,
    /// Somebody else is to speak.
    NewHello,
    /// By the controller, before or after it said something.
    Closed { heard: bool },
}

/// One stream from its first message to its end.
async fn converse(
    channel: Channel,
    hello: &mut watch::Receiver<Hello>,
    mut report: watch::Receiver<Report>,
    take: &mut impl FnMut(Update) -> bool,
) -> Result<End, tonic::Status> {
    let mut client = AgentsClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
    let (to_controller, outgoing) = tokio::sync::mpsc::channel(4);
    let gone = |_| tonic::Status::cancelled("the stream ended");
    let first = hello.borrow_and_update().clone();
    to_controller.send(AgentMessage { message: Some(FromAgent::Hello(first)) }).await.map_err(gone)?;
    let mut incoming = client.register(ReceiverStream::new(outgoing)).await?.into_inner();
    let mut tick = tokio::time::interval(REPORT);
    let mut heard = false;
    loop {
        tokio::select! {
            message = incoming.message() => {
                let Some(message) = message? else { return Ok(End::Closed { heard }) };
                heard = true;
                if let Some(FromController::Update(update)) = message.message && !take(update) {
                    return Ok(End::Wanted);
                }
                // The packet path takes it up within milliseconds; the report says so then.
                tick.reset_after(SOON);
            }
            changed = report.changed() => match changed {
                Ok(()) => tick.reset_after(SOON),
                Err(_) => return Ok(End::Wanted),
            },
            changed = hello.changed() => match changed {
                Ok(()) => return Ok(End::NewHello),
                Err(_) => return Ok(End::Wanted),
            },
            _ = tick.tick() => {
                let report = report.borrow_and_update().clone();
                to_controller.send(AgentMessage { message: Some(FromAgent::Report(report)) }).await.map_err(gone)?;
            }
        }
    }
}
