//! The server's listeners, and the connections of requests.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::Extensions;
use tonic::service::Routes;
use tonic::transport::Server as Transport;
use tonic::transport::server::{Connected, TlsConnectInfo};

use crate::server::Shared;

/// Longest wait at shutdown for clients to close their connections.
const GRACE: Duration = Duration::from_secs(2);

/// Listening socket of a server. A Unix socket works across network namespaces.
#[derive(Debug)]
pub enum Listener {
    /// HOST:PORT.
    Tcp(TcpListener),
    /// A path in the file system.
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Listener::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Listener::Unix(listener)
    }
}

/// A connection's number, unique in this process.
#[derive(Clone, Copy, Debug)]
struct ConnectionId(u64);

/// The connection of a request, with TLS or without.
pub fn connection(extensions: &Extensions) -> u64 {
    let tls = || extensions.get::<TlsConnectInfo<ConnectionId>>().map(TlsConnectInfo::get_ref);
    extensions.get::<ConnectionId>().or_else(tls).map_or(0, |id| id.0)
}

/// A connection and its number.
struct Numbered<C> {
    io: C,
    id: ConnectionId,
}

impl<C> Numbered<C> {
    fn new(io: C) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Numbered { io, id: ConnectionId(NEXT.fetch_add(1, Ordering::Relaxed)) }
    }
}

impl<C> Connected for Numbered<C> {
    type ConnectInfo = ConnectionId;

    fn connect_info(&self) -> ConnectionId {
        self.id
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Numbered<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Numbered<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Serves on the listener until the server stops, and then until clients close their connections or
/// the wait ends. `tls`: whether this listener uses the server's certificate.
pub async fn run(
    shared: Arc<Shared>,
    listener: Listener,
    routes: Routes,
    tls: bool,
) -> Result<(), tonic::transport::Error> {
    match listener {
        Listener::Tcp(listener) => {
            // Without this, a small write would wait for the peer's delayed acknowledgement.
            let incoming = TcpListenerStream::new(listener).map(|socket| {
                socket.inspect(|s| {
                    let _ = s.set_nodelay(true);
                })
            });
            run_on(shared, incoming, routes, tls).await
        }
        Listener::Unix(listener) => run_on(shared, UnixListenerStream::new(listener), routes, tls).await,
    }
}

async fn run_on<C>(
    shared: Arc<Shared>,
    incoming: impl Stream<Item = std::io::Result<C>> + Send,
    routes: Routes,
    tls: bool,
) -> Result<(), tonic::transport::Error>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stopped = || {
        let mut stopping = shared.stopping.subscribe();
        async move {
            let _ = stopping.wait_for(|stopping| *stopping).await;
        }
    };
    let mut transport = Transport::builder();
    if let Some(tls) = shared.config.tls.as_ref().filter(|_| tls) {
        transport = transport.tls_config(tls.config())?;
    }
    let serve = transport
        .http2_keepalive_interval(Some(shared.config.keepalive))
        .http2_keepalive_timeout(Some(shared.config.keepalive))
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming.map(|c| c.map(Numbered::new)), stopped());
    tokio::select! {
        result = serve => result,
        () = async {
            stopped().await;
            tokio::time::sleep(GRACE).await;
        } => Ok(()),
    }
}
