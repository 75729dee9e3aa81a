"""Sends agents their updates, and stores what they report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from .agents import Agent
from .confirmations import Confirmations
from .pb.rivulet.agent.v1 import agent_pb2
from .rack import Rack
from .updates import update

log = logging.getLogger("rivulet.controller")


class AgentUpdates:
    """The updates of the agents of a rack; each has a new version."""

    def __init__(
        self,
        rack: Rack,
        agents: Mapping[str, Agent],
        confirmations: Confirmations,
        weights: Callable[[], dict[str, int]],
        wake: Callable[[], None],
    ) -> None:
        self._rack = rack
        self._agents = agents
        self._confirmations = confirmations
        self._weights = weights
        self._wake = wake
        self._version = 0
        self._sent: dict[str, tuple[Agent, bytes]] = {}
        self._reported_macs: dict[str, str] = {}

    def _update(self, replica: str) -> agent_pb2.Update:
        """The update for an agent, without its version. Raises KeyError."""
        rack = self._rack
        state = rack.state
        return update(
            rack.config, replica, rack.numbers, state.rings, state.slots, self._weights(), rack.draining,
            state.modes, state.incarnations, state.contents, rack.excluded_by_service(),
        )  # fmt: skip

    def first(self, name: str) -> agent_pb2.Update:
        """The first update for an agent that registers. Raises KeyError if the configuration lacks
        its replica.
        """
        message = self._update(name)
        self._version += 1
        message.version = self._version
        self._confirmations.note_arrival(name)
        self._wake()
        return message

    def send(self) -> None:
        """Sends each agent its update if it changed."""
        for name in self._sent.keys() - self._agents.keys():
            del self._sent[name]
        for name, agent in list(self._agents.items()):
            try:
                message = self._update(name)
            except KeyError:
                log.info("agent %s: the configuration no longer has its replica", name)
                agent.close()
                continue
            content = message.SerializeToString(deterministic=True)
            sent = self._sent.get(name)
            if sent is not None and sent[0] is agent and sent[1] == content:
                continue
            self._version += 1
            message.version = self._version
            agent.send(message)
            self._sent[name] = (agent, content)

    def store_reports(self) -> None:
        """Stores what agents report: incarnations of records, which other replicas look up after a
        replica's death, and MAC addresses that the configuration does not give.
        """
        for replica in self._rack.config.replicas:
            agent = self._agents.get(replica.name)
            if agent is not None and agent.records:
                self._rack.state.set_incarnation(replica.name, agent.records)
            if agent is None or len(agent.mac) != 6 or agent.mac[0] & 1 or not any(agent.mac):
                continue
            reported = agent.mac.hex(":")
            if replica.mac is None:
                self._rack.state.set_mac(replica.name, reported)
            elif replica.mac != reported and self._reported_macs.get(replica.name) != reported:
                self._reported_macs[replica.name] = reported
                log.warning(
                    "replica %s: its agent reports MAC address %s, the configuration has %s, which is used",
                    replica.name, reported, replica.mac,
                )  # fmt: skip

    def refusals(self) -> list[str]:
        """Agents' reasons for not applying their last update, by replica."""
        agents = sorted(self._agents.items())
        return [f"replica {name}: its agent refuses: {agent.error}" for name, agent in agents if agent.error]
