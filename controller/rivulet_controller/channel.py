"""gRPC over Unix sockets that every server takes.

The C core sends the socket's path as HTTP/2 authority; strict servers (those on the h2 crate, the embedded
switch's among them) refuse it as malformed. finsy gives no way to set channel arguments, so the function
by which it opens channels is replaced by one that names an authority.
"""

from __future__ import annotations

import finsy.p4client
import grpc
from finsy.grpcutil import GRPCCredentialsTLS, GRPCOptions, grpc_channel


def _channel(
    address: str,
    *,
    credentials: GRPCCredentialsTLS | None = None,
    options: GRPCOptions | None = None,
    client_type: str = "GRPC",
) -> grpc.aio.Channel:
    """As finsy's `grpc_channel`, with a valid authority for Unix sockets."""
    if credentials is not None or not address.startswith("unix:"):
        return grpc_channel(address, credentials=credentials, options=options, client_type=client_type)
    arguments = list(options.to_native()) if options else []
    return grpc.aio.insecure_channel(address, options=[*arguments, ("grpc.default_authority", "localhost")])


RPC_TIMEOUT_S = 30.0
"""Longest time for one request; finsy's own 10 s are short for a pipeline on a busy machine."""


def install() -> None:
    """Makes finsy use both. Harmless when done twice."""
    setattr(finsy.p4client, "_DEFAULT_RPC_TIMEOUT", RPC_TIMEOUT_S)  # noqa: B010 (not among its public names)
    setattr(finsy.p4client, "grpc_channel", _channel)  # noqa: B010 (not among its public names)
