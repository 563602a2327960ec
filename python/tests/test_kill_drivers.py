"""The drivers that measure, hurt and watch clusters for long: each once, in small."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .kill import cycles, network, pause, steady, switch
from .kill.cluster import PATIENCE, Clients, Differs, health, settings, validate, wait_for
from .test_processes import command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")


def test_pauses_are_measured() -> None:
    found = pause.measure(rows=2000, times=1, count=2, few=200, flags=settings())
    for of, names in (("of_many", 3), ("of_few", 3)):
        assert len(found[of]) == names
        for name, seconds in found[of].items():
            assert seconds, name
            assert 0 < max(seconds) < PATIENCE
    assert "p99" in pause.shown("ended", [0.01] * 50)


@pytest.mark.parametrize("workload", ["ycsb-t", "traced"])
def test_workers_are_killed_in_a_run_that_is_validated(workload: str) -> None:
    found = cycles.run(workload, 2, 1.5, 300.0, [])
    assert len(found["killed"]) == 2


def left_out_in(cluster: network.Cluster) -> Callable[[], str | None]:
    """Returns the status when it reports a worker that is left out."""

    def shown() -> str | None:
        said = command("status", "--cluster", cluster.url).stdout
        return said if "excluded, because" in said else None

    return shown


@pytest.mark.skipif(switch.why_not() is not None, reason=str(switch.why_not()))
def test_of_two_that_do_not_reach_each_other_one_is_left_out(tmp_path: Path) -> None:
    net = switch.Network(4)
    try:
        with net.inside(network.COORDINATOR):
            cluster = network.Cluster(tmp_path / "cluster", net, 3)
            try:
                wait_for("all workers", cluster.is_whole)
                with Clients(cluster.url, network.ACCOUNTS) as clients:
                    clients.wait_for_more()
                    # One direction is enough.
                    net.set({(1, 3): switch.CUT})
                    (left,) = wait_for(
                        "who is left out", lambda: health(cluster.url).get("left_out")
                    )
                    clients.wait_for_more()
                    generation = health(cluster.url)["generation"]
                    assert len(left["from"]) == 1
                    # It meets the others again and again in vain, and is not left out meanwhile.
                    shown = wait_for("who is left out, in the status", left_out_in(cluster))
                    assert left["worker"] in shown
                    net.set({})
                    wait_for("all workers", cluster.is_whole)
                    clients.wait_for_more()
                    assert health(cluster.url)["left_out"] == []
                    assert health(cluster.url)["generation"] > generation
                assert clients.fates["acknowledged"] > 0
                validate(clients)
            finally:
                cluster.end()
    finally:
        net.close()


def test_a_fault_is_some_ways() -> None:
    dice = random.Random(1)
    for what in network.FAULTS:
        ways = network.ways_of(what, 3, dice)
        assert len(ways) == {"one way": 1, "off": 6}.get(what, 2)
        assert all(0 <= one <= 3 and 0 <= other <= 3 for one, other in ways)


def samples(of: list[int]) -> list[dict[str, Any]]:
    """Returns the samples of a run with this many MiB after each kill."""
    return [
        {"stage": stage, "coordinator": mib << 20, "workers": 200 << 20}
        for stage, mib in enumerate(of)
        for _ in range(3)
    ]


def test_memory_that_grows_is_noticed() -> None:
    assert steady.judge(samples([100, 180, 200, 200, 201, 200])) == {
        "coordinator": 0.0,
        "workers": 0.0,
    }
    with pytest.raises(Differs, match="memory of the coordinator grows"):
        steady.judge(samples([100, 120, 140, 160, 180, 200]))


def test_a_steady_run_is_watched(tmp_path: Path) -> None:
    out = tmp_path / "samples.jsonl"
    cluster = steady.Cluster(tmp_path / "cluster", 2, settings(), steady.APP, steady.FLAGS)
    try:
        with steady.Callers(cluster.url, 50, 100.0) as callers:
            found = steady.watch(cluster, callers, 6.0, 4.0, out)
        callers.validate()
    finally:
        cluster.end()
    assert Counter(sample["stage"] for sample in found).keys() == {0, 1}
    assert len(out.read_text().splitlines()) == len(found)
