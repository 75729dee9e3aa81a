"""Prometheus metrics, computed from the newest readings at each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from . import view
from .config import Affinity
from .controller import Controller
from .health import COUNTERS

STATES = ("live", "excluded", "unready", "silent", "mute", "draining", "maintenance", "unknown")

AFFINITIES: tuple[Affinity, ...] = get_args(Affinity)

TRODS = {
    "protected": "with a stored record",
    "adopted": "adopted from other replicas",
    "refused": "of other replicas that were reset instead of adopted",
    "trusted": "adopted within an object whose bytes were not compared",
    "moved": "that moved to other replicas during a drain",
}


TLS = {
    "protected": "connections with a stored state",
    "adopted": "connections adopted from other replicas",
    "handshakes": "handshakes completed",
    "resumed": "handshakes with a session ticket",
}


class Metrics:
    """Collector of a controller's metrics."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Empty: the families depend on the readings."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metric families."""
        yield from self._controller_itself()
        yield from self._switches()
        yield from self._replicas()
        yield from self._services()
        yield from self._tls()

    def _controller_itself(self) -> Iterator[Metric]:
        c = self._controller
        yield GaugeMetricFamily("rivulet_config_ok", "The newest configuration is in force", int(not c.config_problem))
        yield GaugeMetricFamily(
            "rivulet_problems", "Problems of the controller that /healthz reports", len(c.problems())
        )
        yield GaugeMetricFamily("rivulet_leader", "This controller leads", int(c.leading))
        yield GaugeMetricFamily("rivulet_agents", "Agents registered", len(c.agents.agents))
        yield CounterMetricFamily("rivulet_reconciles", "Rounds of the controller's loop", c.reconciles)
        yield GaugeMetricFamily("rivulet_reconcile_seconds", "Time of the last round", c.last_reconcile_s)

    def _switches(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("rivulet_switch_up", "The P4Runtime session is established", labels=["switch"])
        entries = GaugeMetricFamily("rivulet_switch_entries", "Entries in force", labels=["switch"])
        writes = CounterMetricFamily("rivulet_switch_writes", "Entries written", labels=["switch"])
        drops = CounterMetricFamily("rivulet_drops", "Packets dropped", labels=["switch", "reason"])
        suspects = CounterMetricFamily(
            "rivulet_suspects", "Packets that failed a counted check", labels=["switch", "reason"]
        )
        for switch in view.switches(self._controller):
            name = switch["name"]
            up.add_metric([name], int(switch["connected"]))
            entries.add_metric([name], switch["entries"])
            writes.add_metric([name], switch["writes"])
            for family, counts in ((drops, switch["drops"]), (suspects, switch["suspects"])):
                for reason, count in counts.items():
                    family.add_metric([name, reason.lower()], count)
        yield from (up, entries, writes, drops, suspects)

    def _replicas(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "rivulet_replica_state", "1 for the replica's current state", labels=["replica", "state"]
        )
        load = GaugeMetricFamily("rivulet_replica_load", "Requests waiting for an answer", labels=["replica"])
        weight = GaugeMetricFamily("rivulet_replica_weight", "Weight in force", labels=["replica"])
        answered = CounterMetricFamily(
            "rivulet_replica_requests", "Requests that the replica answered", labels=["replica"]
        )
        refused = CounterMetricFamily(
            "rivulet_replica_refused", "Requests that the replica refused", labels=["replica"]
        )
        other = GaugeMetricFamily(
            "rivulet_replica_other_content",
            "Services for which the replica's content is not the one in force",
            labels=["replica"],
        )
        services = GaugeMetricFamily(
            "rivulet_replica_refused_services", "Services that the replica's agent refuses", labels=["replica"]
        )
        trods = {
            fate: CounterMetricFamily(f"rivulet_trods_{fate}", f"TRODS connections {words}", labels=["replica"])
            for fate, words in TRODS.items()
        }
        unprotected = CounterMetricFamily(
            "rivulet_trods_unprotected", "TRODS connections served without a record", labels=["replica", "reason"]
        )
        refusals = CounterMetricFamily(
            "rivulet_trods_refusals",
            "TRODS connections that were reset instead of adopted",
            labels=["replica", "reason"],
        )
        outside = CounterMetricFamily(
            "rivulet_trods_outside_window",
            "Segments of TRODS clients outside of the server's receive window",
            labels=["replica"],
        )
        for replica in view.replicas(self._controller):
            other.add_metric([replica["name"]], len(replica["other_content"]))
            services.add_metric([replica["name"]], len(replica["refused_services"]))
            if replica["trods"] is not None:
                for fate, family in trods.items():
                    family.add_metric([replica["name"]], replica["trods"][fate])
                outside.add_metric([replica["name"]], replica["trods"]["outside"])
                for reason, count in replica["trods"]["unprotected"].items():
                    unprotected.add_metric([replica["name"], reason], count)
                for reason, count in replica["trods"]["refusals"].items():
                    refusals.add_metric([replica["name"], reason], count)
            answered.add_metric([replica["name"]], replica["requests_total"])
            refused.add_metric([replica["name"]], replica["refused_total"])
            for name in STATES:
                state.add_metric([replica["name"], name], int(replica["state"] == name))
            load.add_metric([replica["name"]], replica["load"])
            weight.add_metric([replica["name"]], replica["weight"])
        yield from (state, load, weight, answered, refused, other, services, unprotected, refusals, outside)
        yield from trods.values()
        for attribute, counter in COUNTERS.items():
            name = counter if counter.startswith("replica_") else f"replica_{counter}"
            family = CounterMetricFamily(
                f"rivulet_{name}", f"The switch's counter {counter}", labels=["switch", "pool", "replica"]
            )
            for switch, sample in self._controller.fleet.health.samples.items():
                for cell, (pool, _, replica_name) in sample.places.items():
                    family.add_metric([switch, str(pool), replica_name], getattr(sample, attribute).get(cell, 0))
            yield family

    def _services(self) -> Iterator[Metric]:
        epoch = GaugeMetricFamily("rivulet_key_epoch", "Newest usable epoch", labels=["service", "kind"])
        age = GaugeMetricFamily("rivulet_key_age_seconds", "Age of the newest usable key", labels=["service", "kind"])
        outcomes = CounterMetricFamily("rivulet_service_packets", "Packets by outcome", labels=["service", "outcome"])
        affinity = GaugeMetricFamily(
            "rivulet_service_affinity", "1 for the affinity of plain TCP in force", labels=["service", "affinity"]
        )
        for service in view.services(self._controller):
            for name in AFFINITIES:
                affinity.add_metric([service["name"], name], int(service["affinity"] == name))
            for kind, key in service["keys"].items():
                epoch.add_metric([service["name"], kind], key["usable"])
                age.add_metric([service["name"], kind], key["age_s"])
            for outcome, count in service["outcomes"].items():
                outcomes.add_metric([service["name"], outcome.lower()], count)
        yield from (epoch, age, outcomes, affinity)

    def _tls(self) -> Iterator[Metric]:
        labels = ["replica", "service"]
        serving = GaugeMetricFamily("rivulet_service_tls_serving", "1 if the replica serves HTTPS", labels=labels)
        faulty = GaugeMetricFamily("rivulet_service_tls_faulty", "1 if TLS reports an error", labels=labels)
        waiting = GaugeMetricFamily(
            "rivulet_service_tls_in_handshake", "TLS connections in their handshake", labels=labels
        )
        counted = {
            fate: CounterMetricFamily(f"rivulet_service_tls_{fate}", f"TLS {words}", labels=labels)
            for fate, words in TLS.items()
        }
        unprotected = CounterMetricFamily(
            "rivulet_service_tls_unprotected", "TLS connections without a stored state", labels=[*labels, "reason"]
        )
        for replica in view.replicas(self._controller):
            for service, status in replica["tls"].items():
                of = [replica["name"], service]
                serving.add_metric(of, int(status["serving"]))
                faulty.add_metric(of, int(bool(status["error"])))
                waiting.add_metric(of, status["in_handshake"])
                for fate, family in counted.items():
                    family.add_metric(of, status[fate])
                for reason, count in status["unprotected"].items():
                    unprotected.add_metric([*of, reason], count)
        yield from (serving, faulty, waiting, unprotected, *counted.values())
