"""The promises of docs/internals/parallel.md: which strategy executes an epoch, and why."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm
from tidemill import _native

PAGE = (Path(__file__).parents[2] / "docs/internals/parallel.md").read_text()
GRAPHS = ["-".join(parts) for parts in itertools.product(
    ("sbfs", "sdfs", "ns"), ("op", "chain"), ("eager", "lazy")
)]  # fmt: skip
OTHERS = ["serial", "rounds", "blocks", "lists", "s-store", "tstream"]
ROWS = 2_000


def executed(data: Path, kind: str = "declared", rows: int = ROWS, **settings: Any) -> Any:
    """How an epoch was executed once all rows were there, and what the table has then."""
    app = tm.App("moves")
    places = app.table("places", key="id", id=int, n=tm.column(int, default=0))
    moves = app.stream("moves", id=int, to=int)

    @app.transaction(moves, opaque=kind == "function")
    def move(tx, e):
        places[e.id].n -= 1
        places[e.to].n += e.id

    if kind == "procedure":
        steps = app.stream("steps", id=int)

        @app.procedure(steps)
        def step(tx, steps):
            pass

    # One batch is one epoch.
    settings = {"workers": 2, "epoch_idle": False, "epoch_us_max": 10_000_000, **settings}
    settings["epoch_rows_max"] = rows
    with app.start(data_dir=data, **settings) as mill:
        sent = {"id": [n % 997 for n in range(rows)], "to": [997 + n % 499 for n in range(rows)]}
        mill.send(moves, sent, wait=True)
        first = mill.status()["epoch"]
        mill.send(moves, sent, wait=True)
        [reply] = _native.ask(str(data), '{"do": "inspect"}')
        found = {row["id"]: row["n"] for row in mill.table(places).rows()}
    epochs = json.loads(reply)["inspect"]["epochs"]
    return [epoch for epoch in epochs if epoch["epoch"] > first], found


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, int]:
    """The table after serial execution."""
    _, found = executed(tmp_path_factory.mktemp("serial"), strategy="serial")
    assert len(found) == 997 + 499
    return found


@pytest.mark.parametrize("strategy", [*OTHERS, *GRAPHS])
def test_a_strategy_that_is_asked_for_by_name_is_used(
    strategy: str, tmp_path: Path, wanted: dict[int, int]
) -> None:
    epochs, found = executed(tmp_path, strategy=strategy)
    assert found == wanted
    assert sum(epoch["transactions"] for epoch in epochs) == ROWS
    assert {(epoch["strategy"], epoch["why"]) for epoch in epochs} == {
        (strategy, "it was asked for")
    }
    parallel = sum(epoch["in_parallel"] for epoch in epochs)
    assert (parallel > 0) == (strategy != "serial")


def test_the_page_names_all_strategies() -> None:
    table = PAGE.split("\n## The strategies\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", table, re.M)
    named = re.findall(r"`([\w…-]+)`", " ".join(rows))
    assert set(named) == {"adaptive", *OTHERS, "sbfs-…", "sdfs-…", "ns-…"}
    app = tm.App("none")
    for wrong in ("ns-op", "parallel", "Lists"):
        with pytest.raises(tm.SettingError, match=f"no strategy '{wrong}'") as caught:
            app.start(strategy=wrong)
        names = caught.value.help.removeprefix("the strategies are ").split(", ")
        assert set(names) == {"adaptive", *OTHERS, *GRAPHS}


def test_adaptive_is_the_default_and_says_what_it_expects(tmp_path: Path) -> None:
    assert 'strategy = "adaptive"   # the default' in PAGE
    epochs, _ = executed(tmp_path)
    for epoch in epochs:
        assert epoch["why"] != "it was asked for"
        assert epoch["transaction_ns"] > 0
        assert epoch["expected_ns"].keys() == {"serial", "rounds", "lists", "blocks"}


@pytest.mark.parametrize(
    ("kind", "settings", "why"),
    [
        ("declared", {"workers": 1}, "there is one thread"),
        ("function", {}, "functions run one at a time"),
        ("function", {"deadline_us": 0}, "functions run one at a time"),
        ("procedure", {}, "procedures"),
        # In a graph, only without a deadline; in place, never.
        ("function", {"strategy": "ns-op-eager"}, "functions have a deadline"),
        ("function", {"strategy": "rounds", "deadline_us": 0}, "needs the general path"),
    ],
)
def test_what_is_executed_serially(
    kind: str, settings: dict[str, Any], why: str, tmp_path: Path, wanted: dict[int, int]
) -> None:
    epochs, found = executed(tmp_path, kind, **settings)
    assert found == wanted
    assert {epoch["strategy"] for epoch in epochs} == {"serial"}
    assert all(why in epoch["why"] for epoch in epochs), epochs


def test_a_graph_by_name_takes_functions_without_a_deadline(
    tmp_path: Path, wanted: dict[int, int]
) -> None:
    epochs, found = executed(tmp_path, "function", strategy="ns-op-eager", deadline_us=0)
    assert found == wanted
    assert {epoch["strategy"] for epoch in epochs} == {"ns-op-eager"}


@pytest.mark.parametrize("rows", [511, 512])
def test_small_epochs_are_executed_serially(rows: int, tmp_path: Path) -> None:
    epochs, _ = executed(tmp_path, rows=rows)
    [(count, strategy, why)] = [(e["transactions"], e["strategy"], e["why"]) for e in epochs]
    assert count == rows
    if rows == 511:
        assert (strategy, why) == ("serial", "there are few transactions")
    else:
        assert why != "there are few transactions"
