"""The ladders of docs/ladders.md, which explains each numbered step."""

from __future__ import annotations

from ladder import Arrow, Kill, Ladder, Note

RACK = ("client", "ToR", "r1", "r2")

LADDERS = {
    "request": Ladder(
        "Two requests of one connection, which two replicas answer",
        RACK,
        (
            Arrow("client", "ToR", "request: state, proof, want"),
            Note("ToR", "checks; stamps time;\nchooses a live replica"),
            Arrow("ToR", "r1", "request"),
            Note("r1", "verifies the seal;\ncomputes the window;\nseals the next state"),
            Arrow("r1", "client", "data and next state"),
            Arrow("client", "ToR", "next request"),
            Arrow("ToR", "r2", "another replica, as good"),
            Arrow("r2", "client", "data and next state"),
        ),
    ),
    "loss": Ladder(
        "A lost response, which the proof of a later request reveals",
        RACK,
        (
            Arrow("r1", "client", "response 7"),
            Arrow("r1", "client", "response 8", lost=True),
            Arrow("r1", "client", "response 9"),
            Arrow("client", "ToR", "request 9: “I have 7 and 9”"),
            Arrow("ToR", "r2", "proof is right"),
            Note("r2", "8 is lost:\nhalves the window"),
            Arrow("r2", "client", "data of 8 again"),
            Arrow("r2", "client", "state of 8 again"),
            Arrow("client", "ToR", "request 8, as any other"),
        ),
    ),
    "kill": Ladder(
        "A replica is killed; the connection goes on at another one",
        RACK,
        (
            Arrow("r1", "ToR", "heartbeat", control=True),
            Kill("r1"),
            Arrow("client", "ToR", "request"),
            Arrow("ToR", "r1", "r1 still counts as live", lost=True),
            Note("ToR", "no heartbeat for 20 ms:\nexcludes r1"),
            Arrow("client", "ToR", "probe, after a timeout"),
            Arrow("ToR", "r2", "probe"),
            Arrow("r2", "client", "next state"),
            Arrow("client", "ToR", "requests go on"),
        ),
    ),
    "fallback": Ladder(
        "A client with Rivulet meets an ordinary server, and falls back to TCP",
        ("rivulet run", "old server"),
        (
            Arrow("rivulet run", "old server", "SYN with Rivulet's option"),
            Note("old server", "ignores an option\nthat it does not know"),
            Arrow("old server", "rivulet run", "SYN-ACK without it"),
            Note("rivulet run", "plain TCP,\nsame handshake"),
            Arrow("rivulet run", "old server", "ACK, request"),
            Arrow("old server", "rivulet run", "data"),
        ),
    ),
    "adoption": Ladder(
        "TRODS: a web server dies, and another replica adopts its connection",
        ("client", "ToR", "r1", "store", "r2"),
        (
            Arrow("client", "r1", "GET"),
            Note("r1", "nginx answers;\nthe answer is held"),
            Arrow("r1", "store", "record", control=True),
            Arrow("store", "r1", "stored", control=True),
            Arrow("r1", "client", "ACK, first part"),
            Kill("r1"),
            Note("ToR", "excludes r1, says so\nin answers to heartbeats"),
            Arrow("r2", "store", "records\nof r1", control=True),
            Arrow("r2", "client", "probe"),
            Arrow("client", "r2", "ACK: what the client has"),
            Note("r2", "asks its own nginx for\nthe rest; compares bytes"),
            Arrow("r2", "client", "the rest, same connection"),
        ),
    ),
    "move": Ladder(
        "A planned move: r1 drains, and leaves a connection to r2",
        ("client", "r1", "store", "r2"),
        (
            Arrow("r1", "client", "response, in the middle"),
            Note("r1", "rivuletctl drain r1"),
            Arrow("r1", "store", "list of what it leaves", control=True),
            Arrow("r2", "store", "reads the list", control=True),
            Note("r1", "all is stored:\nsends no more"),
            Arrow("r1", "store", "left to r2", control=True),
            Arrow("store", "r2", "its record", control=True),
            Arrow("r2", "client", "probe"),
            Arrow("client", "r2", "ACK: what the client has"),
            Arrow("r2", "client", "the rest, same connection"),
        ),
    ),
}
