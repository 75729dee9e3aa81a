//! The stream to the controllers. It is reopened whenever it ends, and moves to the next address
//! when one does not answer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use crate::address::Controllers;
use crate::proto::agent_message::Message as FromAgent;
use crate::proto::agents_client::AgentsClient;
use crate::proto::controller_message::Message as FromController;
use crate::proto::{AgentMessage, Hello, Report, Update};

/// Longest time between two reports.
const REPORT: Duration = Duration::from_millis(500);
/// Delay after a change of the report, so that several changes make one report.
const SOON: Duration = Duration::from_millis(20);
/// Pause after all addresses failed; doubles up to the second value.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Longest message accepted, in bytes: 1,024 services with 1,024 slots each and the largest number
/// of keys are about 8 MB.
pub(crate) const MAX_MESSAGE: usize = 16 << 20;

/// Keeps a stream open. `hello` and `report` may change at any time; a new hello reopens the
/// stream. `take` receives every update and ends everything by returning false.
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
            Ok(channel) => match run_stream(channel, &mut hello, report, &mut take).await {
                Ok(End::Dropped) => return,
                Ok(End::NewHello) => {
                    (pause, failures) = (RETRY.0, 0);
                    continue;
                }
                Ok(End::Closed { received }) => {
                    tracing::info!(controller = name, "the controller ended the stream");
                    if received {
                        (pause, failures) = (RETRY.0, 0);
                    }
                }
                Err(e) => {
                    tracing::warn!(controller = name, error = %e.message(), "the stream to the controller failed")
                }
            },
            Err(e) => tracing::debug!(controller = name, error = %e, "the controller does not answer"),
        }
        // The last controller may be back soon, but another one may lead now.
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
        // The reason is the innermost error of the chain.
        let mut text = e.to_string();
        let mut source = std::error::Error::source(&e);
        while let Some(inner) = source {
            text = inner.to_string();
            source = inner.source();
        }
        text
    })
}

/// The receiver of updates was dropped.
enum End {
    /// The hello changed.
    Dropped,
    /// The controller closed the stream, before or after it sent a message.
    NewHello,
    /// By the controller, before or after it said something.
    Closed { received: bool },
}

/// Runs one stream from its first message to its end.
async fn run_stream(
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
    let mut received = false;
    loop {
        tokio::select! {
            message = incoming.message() => {
                let Some(message) = message? else { return Ok(End::Closed { received }) };
                received = true;
                if let Some(FromController::Update(update)) = message.message && !take(update) {
                    return Ok(End::Dropped);
                }
                // The packet path applies it within milliseconds; report that soon.
                tick.reset_after(SOON);
            }
            changed = report.changed() => match changed {
                Ok(()) => tick.reset_after(SOON),
                Err(_) => return Ok(End::Dropped),
            },
            changed = hello.changed() => match changed {
                Ok(()) => return Ok(End::NewHello),
                Err(_) => return Ok(End::Dropped),
            },
            _ = tick.tick() => {
                let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
                let clock_ms = u64::try_from(clock).unwrap_or(0);
                let report = Report { clock_ms, ..report.borrow_and_update().clone() };
                to_controller.send(AgentMessage { message: Some(FromAgent::Report(report)) }).await.map_err(gone)?;
            }
        }
    }
}
