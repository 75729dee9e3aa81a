"""Racks that tests of a session share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from netrack import SWITCHES, NetRack, Racks

from rivulet_lab import built


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("rack") and (os.geteuid() != 0 or not built("rivulet")):
        pytest.skip("needs root and `make build`")


@pytest.fixture(scope="session")
def racks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Racks]:
    """The session's racks."""
    all_of_them = Racks(tmp_path_factory.mktemp("racks"))
    yield all_of_them
    all_of_them.down()


@pytest.fixture(params=SWITCHES or ["none"])
def rack(request: pytest.FixtureRequest, racks: Racks) -> Iterator[NetRack]:
    """The session's rack with each kind of switch, every replica live."""
    if request.param not in SWITCHES:
        pytest.skip("the switch is not installed")
    with racks.lent(request.param) as standing:
        yield standing
