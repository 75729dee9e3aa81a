//! Serves connections that the kernel's TCP took over from stateless TCP: each gets a thread, which
//! the packet path must not create itself.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::Builder;

use rivulet_server::{Adopted, Door, Doorway};

use super::connections::{Connections, Guest, MAX_CONNECTIONS};

/// Limit on adopted connections that wait until an open one is closed.
const WAITING: usize = 64;

struct Queue(SyncSender<Adopted>);

impl Door for Queue {
    fn accept(&self, connection: Adopted) {
        // The channel has room for all admitted connections; if it were full, the connection would
        // be closed.
        if self.0.try_send(connection).is_err() {
            tracing::warn!("an adopted connection found no room");
        }
    }
}

/// The channel for connections that `serve` is to serve, each in a thread with this name.
///
/// # Errors
/// The thread that receives them cannot be started.
pub(super) fn doorway(
    name: &'static str,
    connections: Connections,
    serve: impl Fn(Adopted, &Guest) -> io::Result<()> + Clone + Send + 'static,
) -> io::Result<Doorway> {
    let (sender, receiver) = sync_channel(MAX_CONNECTIONS + WAITING);
    Builder::new().name(format!("{name}-adopt")).spawn(move || {
        for connection in receiver {
            admit(name, connection, &connections, serve.clone());
        }
    })?;
    Ok(Doorway::new(Arc::new(Queue(sender)), MAX_CONNECTIONS + WAITING))
}

fn admit(
    name: &str,
    connection: Adopted,
    connections: &Connections,
    serve: impl Fn(Adopted, &Guest) -> io::Result<()> + Send + 'static,
) {
    let guest = match connection.handle().map(|other| connections.admit(connection.peer(), other)) {
        Ok(Some(guest)) => guest,
        Ok(None) => return,
        Err(e) => return tracing::warn!(error = %e, "an adopted TCP connection"),
    };
    let spawned = Builder::new().name(name.into()).stack_size(256 << 10).spawn(move || {
        if let Err(e) = serve(connection, &guest) {
            tracing::debug!(error = %e, "adopted TCP connection");
        }
    });
    if let Err(e) = spawned {
        tracing::warn!(error = %e, "no thread for an adopted TCP connection");
    }
}
