"""gRPC channels over Unix sockets that strict servers accept.

gRPC's C core sends the socket's path as HTTP/2 authority, which strict servers (those on the h2
crate, such as the embedded switch) reject as malformed. finsy cannot set channel arguments, so its
function that opens channels is replaced.
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
    """Like finsy's `grpc_channel`, with a valid authority for Unix sockets."""
    if credentials is not None or not address.startswith("unix:"):
        return grpc_channel(address, credentials=credentials, options=options, client_type=client_type)
    arguments = list(options.to_native()) if options else []
    return grpc.aio.insecure_channel(address, options=[*arguments, ("grpc.default_authority", "localhost")])


RPC_TIMEOUT_S = 30.0
"""Longest time of a request; finsy's 10 s are too short for loading a pipeline on a busy
machine."""


def install() -> None:
    """Replaces finsy's function and timeout by ours. May be called more than once."""
    setattr(finsy.p4client, "_DEFAULT_RPC_TIMEOUT", RPC_TIMEOUT_S)  # noqa: B010 (not among its public names)
    setattr(finsy.p4client, "grpc_channel", _channel)  # noqa: B010 (not among its public names)
