"""The console's commands on clone sessions and multicast groups."""

from __future__ import annotations

from typing import Any

from finsy.proto import p4r

from .binaries import RackError
from .console_base import Base


class Replication(Base):
    """Clone sessions (`mirroring_*`) and multicast groups (`mc_*`)."""

    _nodes: dict[int, tuple[int, list[int]]]
    """Nodes by handle: id (the instance of the copies) and ports. P4Runtime has copies in place of nodes."""

    @property
    def nodes(self) -> dict[int, tuple[int, list[int]]]:
        """The nodes that this console has made."""
        if not hasattr(self, "_nodes"):
            self._nodes = {}
        return self._nodes

    # Clone sessions

    def do_mirroring_add(self, line: str) -> None:
        """mirroring_add ID PORT [PORT ...]
        Sets a clone session, which sends a copy to each port."""
        words = line.split()
        if len(words) < 2:
            raise RackError(f"the word {('ID', 'PORT')[len(words)]} is missing; write {self.usage()}")
        session = p4r.CloneSessionEntry(session_id=self._id(words[0]))
        for at, word in enumerate(words[1:], 1):
            session.replicas.add(egress_port=self.number(word, "port"), instance=at)
        self.connection.insert_or_modify(self._entity(clone_session_entry=session))

    def do_mirroring_delete(self, line: str) -> None:
        """mirroring_delete ID
        Deletes a clone session."""
        session = p4r.CloneSessionEntry(session_id=self._id(self.words(line, "ID")[0]))
        self.connection.write("DELETE", self._entity(clone_session_entry=session))

    def do_mirroring_get(self, line: str) -> None:
        """mirroring_get [ID]
        Prints a clone session, or all."""
        words = self.words(line, "[ID]")
        wanted = p4r.CloneSessionEntry(session_id=self._id(words[0]) if words else 0)
        entry = p4r.PacketReplicationEngineEntry(clone_session_entry=wanted)
        for item in self.connection.read(packet_replication_engine_entry=entry):
            session = item.packet_replication_engine_entry.clone_session_entry
            self.print(f"clone session {session.session_id}: {self._copies(session)}")

    # Multicast groups

    def do_mc_mgrp_create(self, line: str) -> None:
        """mc_mgrp_create GROUP
        Makes an empty multicast group."""
        number = self._id(self.words(line, "GROUP")[0])
        self.connection.write("INSERT", self._group(number, []))

    def do_mc_mgrp_destroy(self, line: str) -> None:
        """mc_mgrp_destroy GROUP
        Deletes a multicast group."""
        number = self._id(self.words(line, "GROUP")[0])
        self.connection.write("DELETE", self._group(number, []))

    def do_mc_node_create(self, line: str) -> None:
        """mc_node_create RID PORT ...
        Makes a node of ports, whose copies have this replication id, for mc_node_associate. P4Runtime has no nodes:
        this console stores it."""
        words = line.split()
        if len(words) < 2:
            raise RackError(f"the word {('RID', 'PORT')[len(words)]} is missing; write {self.usage()}")
        handle = max(self.nodes, default=-1) + 1
        ports = [self.number(word, "port") for word in words[1:]]
        self.nodes[handle] = (self.number(words[0], "replication id", 16), ports)
        self.print(f"node was created with handle {handle}")

    def do_mc_node_associate(self, line: str) -> None:
        """mc_node_associate GROUP HANDLE
        Adds the copies of a node to a group."""
        number, copies, node = self._group_and_node(line)
        self.connection.write("MODIFY", self._group(number, [*copies, *(copy for copy in node if copy not in copies)]))

    def do_mc_node_dissociate(self, line: str) -> None:
        """mc_node_dissociate GROUP HANDLE
        Removes the copies of a node from a group."""
        number, copies, node = self._group_and_node(line)
        self.connection.write("MODIFY", self._group(number, [copy for copy in copies if copy not in node]))

    def do_mc_node_destroy(self, line: str) -> None:
        """mc_node_destroy HANDLE
        Forgets a node; the groups keep its copies."""
        del self.nodes[self._node(self.words(line, "HANDLE")[0])]

    def do_mc_dump(self, line: str) -> None:
        """mc_dump
        Prints all multicast groups with their copies (port:replication id)."""
        self.words(line, "")
        for number, copies in sorted(self._groups().items()):
            text = " ".join(f"{port}:{instance}" for port, instance in copies)
            self.print(f"group {number}: {text or 'empty'}")

    def _group_and_node(self, line: str) -> tuple[int, list[tuple[int, int]], list[tuple[int, int]]]:
        """A group's number and copies, and the copies of a node."""
        group, handle = self.words(line, "GROUP HANDLE")
        number, groups = self._id(group), self._groups()
        if number not in groups:
            raise RackError(f"there is no multicast group {number}; there are {', '.join(map(str, groups)) or 'none'}")
        instance, ports = self.nodes[self._node(handle)]
        return number, groups[number], [(port, instance) for port in ports]

    def _node(self, word: str) -> int:
        handle = self.number(word, "handle")
        if handle not in self.nodes:
            made = ", ".join(map(str, self.nodes)) or "none"
            raise RackError(f"this console has made no node of the handle {handle}; it has made {made}")
        return handle

    def _groups(self) -> dict[int, list[tuple[int, int]]]:
        """Numbers and copies of all groups."""
        entry = p4r.PacketReplicationEngineEntry(multicast_group_entry=p4r.MulticastGroupEntry())
        read = self.connection.read(packet_replication_engine_entry=entry)
        groups = (item.packet_replication_engine_entry.multicast_group_entry for item in read)
        return {
            group.multicast_group_id: [(copy.egress_port, copy.instance) for copy in group.replicas] for group in groups
        }

    def _group(self, number: int, copies: list[tuple[int, int]]) -> Any:
        group = p4r.MulticastGroupEntry(multicast_group_id=number)
        for port, instance in copies:
            group.replicas.add(egress_port=port, instance=instance)
        return self._entity(multicast_group_entry=group)

    def _id(self, word: str) -> int:
        """The number of a session or group. RackError for 0, which P4Runtime excludes."""
        number = self.number(word, "id")
        if number == 0:
            raise RackError("the id 0 is not allowed: P4Runtime counts sessions and groups from 1")
        return number

    @staticmethod
    def _copies(session: Any) -> str:
        return " ".join(f"{copy.egress_port}:{copy.instance}" for copy in session.replicas) or "empty"

    @staticmethod
    def _entity(**entry: Any) -> Any:
        return p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(**entry))
