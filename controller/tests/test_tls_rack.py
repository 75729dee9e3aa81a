"""HTTPS from the controller's configuration: controller, ToR, two replicas with agent, terminator and nginx."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import self_signed
from netrack import SERVICE, needs_rack
from test_trods_survival import PlainRack, standing

from rivulet_lab import binary, nginx

pytestmark = [
    needs_rack,
    pytest.mark.skipif(shutil.which("memcached") is None, reason="memcached is not installed"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]

REQUEST = f"GET /small HTTP/1.1\r\nHost: {SERVICE}\r\nConnection: close\r\n\r\n"


class TlsRack(PlainRack):
    """Two replicas whose terminators get certificates, server and ticket keys from the controller."""

    replicas = ("r1", "r2")

    def lay(self) -> None:
        """Also a host at the third port, which the switch has too."""
        super().lay()
        self.host("spare", 103, "10.0.2.3", "02:00:00:00:02:03")

    def description(self) -> str:
        return self.with_certificate(self.certificate)

    def with_certificate(self, certificate: Path) -> str:
        """The configuration with this certificate."""
        files = f"certificates: [{{certificate: {certificate}, key: {self.folder}/site.key}}]"
        tls = f"    port: 443\n    tls: {{{files}, server: '127.0.0.1:8080'}}\n"
        text = super().description().replace("replicas: [r1, r2, r3]", "replicas: [r1, r2]")
        return text.replace("    port: 80\n", tls)

    @property
    def certificate(self) -> Path:
        return self.folder / "site.pem"

    def start_controller(self) -> None:
        """Makes the certificate first."""
        if not self.certificate.exists():
            self_signed(self.certificate, self.folder / "site.key", "rack", f"IP:{SERVICE}")
        super().start_controller()

    def start_replica(self, name: str) -> None:
        super().start_replica(name)
        command = [binary("rivulet"), "tls", "--agent", str(self.folder / f"{name}.agent"), "--workers", "1"]
        self.start(f"tls {name}", command, self.spaces[name])

    def start_nginx(self, name: str) -> None:
        """Starts nginx without TLS, on loopback."""
        command = nginx.command(self.folder / f"nginx-{name}", self.file.parent, "127.0.0.1:8080")
        self.start(f"nginx {name}", command, self.spaces[name])

    def tls(self, name: str) -> dict[str, Any]:
        """The status of TLS on a replica."""
        return dict(self.replica(name).get("tls", {}).get("files", {}))

    def visit(self, name: str, *more: str) -> str:
        """Opens a TLS session to a replica from that replica's namespace; returns the output of
        `openssl s_client`.
        """
        client = ["openssl", "s_client", "-connect", f"{SERVICE}:443", "-ign_eof", "-CAfile", str(self.certificate)]
        return self.spaces[name].run(*client, *more, stdin=REQUEST)

    def all_serve(self) -> bool:
        """Whether HTTPS is served at each replica without an error."""
        return all(self.tls(name).get("serving") and not self.tls(name)["error"] for name in self.replicas)


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsRack]:
    """One rack for all tests of this file."""
    with standing(TlsRack(tmp_path_factory.mktemp("tls"), "embedded")) as rack:
        rack.until(rack.all_serve, "HTTPS is served")
        yield rack


def test_curl_gets_https_page_from_each_replica(rack: TlsRack) -> None:
    before = {name: rack.tls(name)["handshakes"] for name in rack.replicas}
    command = ["curl", "-sS", "--fail", "--max-time", "60", "--cacert", str(rack.certificate)]

    def is_at_each() -> bool:
        assert rack.spaces["c1"].run(*command, f"https://{SERVICE}/small") == "small"
        return all(rack.tls(name)["handshakes"] > before[name] for name in rack.replicas)

    rack.until(is_at_each, "each replica has served a page")


def test_session_resumes_at_other_replica_after_key_rotation(rack: TlsRack) -> None:
    session = rack.folder / "session"
    first = rack.visit("r1", "-sess_out", str(session))
    assert "New, TLSv1.3" in first and first.count("small") >= 1, first
    epoch = rack.tls("r1")["ticket_epoch"]
    rack.client.post("/api/services/files/rotate", {"kinds": ["ticket"]})
    rack.until(lambda: all(rack.tls(name)["ticket_epoch"] == epoch + 1 for name in rack.replicas), "a new key seals")
    before = rack.tls("r2")["resumed"]
    second = rack.visit("r2", "-sess_in", str(session))
    assert "Reused, TLSv1.3" in second, second
    rack.until(lambda: rack.tls("r2")["resumed"] == before + 1, "it is counted")


def test_agent_and_controller_report_bad_certificate(rack: TlsRack) -> None:
    missing = rack.folder / "missing.pem"
    rack.yaml.write_text(rack.with_certificate(missing))
    try:
        rack.until(lambda: all(str(missing) in rack.tls(name)["error"] for name in rack.replicas), "it is reported")
        assert all(rack.tls(name)["serving"] for name in rack.replicas), "the former files stay in use"
        problems = rack.status()["problems"]
        for name in rack.replicas:
            assert any(p.startswith(f"replica {name}, service files: TLS: {missing}: ") for p in problems), problems
            assert str(missing) in rack.log(f"tls {name}")
        assert str(missing) in rack.log("controller")
        # A terminator that starts with a bad certificate serves no client, and its replica is not
        # ready for that reason.
        rack.end("tls r1")
        command = [binary("rivulet"), "tls", "--agent", str(rack.folder / "r1.agent"), "--workers", "1"]
        rack.start("tls r1", command, rack.spaces["r1"])
        rack.until(lambda: str(missing) in rack.replica("r1")["reason"], "it is why r1 is not ready")
        assert not rack.replica("r1")["ready"] and not rack.tls("r1")["serving"]
    finally:
        rack.yaml.write_text(rack.description())
    rack.until(lambda: rack.all_serve() and rack.all_well(), "all is well again")
    rack.end("tls r2")
    rack.until(lambda: "rivulet tls is not attached" in rack.tls("r2")["error"], "its absence is reported")
    rack.until(lambda: not rack.replica("r2")["ready"], "r2 is not ready")
    command = [binary("rivulet"), "tls", "--agent", str(rack.folder / "r2.agent"), "--workers", "1"]
    rack.start("tls r2", command, rack.spaces["r2"])
    rack.until(lambda: rack.all_serve() and rack.all_well(), "all is well again")
