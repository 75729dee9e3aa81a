"""The controller refuses keys and tokens that other users can read, wherever it reads them."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest
from certificates import Authority

from rivulet_controller import cli
from rivulet_controller.config import SwitchConfig
from rivulet_controller.etcd import EtcdClient
from rivulet_controller.listen_config import Etcd, ServerTls, Tls
from rivulet_controller.private_file import require_private
from rivulet_controller.rights import Tokens
from rivulet_controller.switch import SwitchError, SwitchLink
from rivulet_controller.tls import Certificates, RenewedCertificate


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o620, 0o602])
def test_secrets_that_others_can_read_are_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    require_private(path)
    path.chmod(mode)
    with pytest.raises(PermissionError, match=f"chmod 600 {path}"):
        require_private(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")
def test_root_refuses_secrets_of_other_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    os.chown(path, 4711, -1)
    monkeypatch.delenv("SUDO_UID", raising=False)
    with pytest.raises(PermissionError, match=f"chown root {path}"):
        require_private(path)
    monkeypatch.setenv("SUDO_UID", "4711")
    require_private(path)


def test_pipes_count_as_private() -> None:
    read, write = os.pipe()
    try:
        require_private(Path(f"/dev/fd/{read}"))
    finally:
        os.close(read)
        os.close(write)


def test_readable_token_file_refuses_all_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens"
    path.touch(mode=0o600)
    path.write_text("alice:apply:sesame\n")
    assert Tokens(path).caller("sesame") is not None
    path.chmod(0o644)
    assert Tokens(path).caller("sesame") is None
    with pytest.raises(PermissionError, match="chmod 600"):
        Tokens(path).read()
    monkeypatch.setitem(cli._options, "token_file", str(path))
    with pytest.raises(PermissionError, match="chmod 600"):
        cli._client()


def test_private_keys_that_others_can_read_are_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority").make()
    certificate, key = authority.sign("controller")
    tls = Tls(certificate=certificate, key=key, authority=authority.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    renewing = RenewedCertificate(ServerTls(certificate=certificate, key=key), context)
    Certificates(tls)
    EtcdClient(Etcd(endpoints=("https://127.0.0.1:1",), tls=tls))
    link = SwitchLink.__new__(SwitchLink)
    link.config = SwitchConfig.model_construct(address="127.0.0.1:1", tls=tls)
    link._credentials()

    key.chmod(0o644)
    renewing.follow()
    with pytest.raises(PermissionError, match="chmod 600"):
        Certificates(tls)
    with pytest.raises(PermissionError, match="chmod 600"):
        EtcdClient(Etcd(endpoints=("https://127.0.0.1:1",), tls=tls))
    with pytest.raises(SwitchError, match="chmod 600"):
        link._credentials()
