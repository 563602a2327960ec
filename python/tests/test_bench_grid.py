"""The grid of strategies and the plots of the benchmark."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm
from tidemill.cli import main
from tidemill.cli.output import refuse_unwritable
from tidemill_bench import grid, plot

SVG = "{http://www.w3.org/2000/svg}"
#: Two cells: as many as GrepSum has lengths.
TINY = "grid --workload gs --skew 0.6 --udf-ns 0 --events 1000 --keys 100 --epoch 250 --repeat 1"


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code = main(["bench", *words, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0, found
    return found


def texts(path: Path) -> list[str]:
    return [text.text or "" for text in ElementTree.parse(path).getroot().iter(f"{SVG}text")]


def test_a_grid_goes_on_where_it_was_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, drawn = tmp_path / "grid.jsonl", tmp_path / "grid.svg"
    command = (*TINY.split(), "--out", str(out), "--plot", str(drawn))
    found = bench(capsys, *command)
    assert found["cells"] == 2
    assert found["valid"]
    assert sorted(row["length"] for row in found["lowest"]) == [2, 10]
    first, second = out.read_text().splitlines()
    # Of the others only those that came close to serial execution are measured again.
    assert {"adaptive", "serial"} <= set(json.loads(first)["events_per_s"])
    assert len(json.loads(first)["ratio_to_serial"]) == 19
    # Before the first run, and behind each repeat.
    assert len(json.loads(first)["between_cores_ns"]) == 2
    assert min(json.loads(first)["between_cores_ns"]) > 1
    assert {"adaptive", "serial", "skew 0.6", "extra work per operation, ns"} <= set(texts(drawn))

    # Half of the second line is there: that cell alone is measured again.
    out.write_text(first + "\n" + second[:40])
    bench(capsys, *command)
    lines = out.read_text().splitlines()
    assert lines[0] == first
    assert json.loads(lines[1])["cell"] == json.loads(second)["cell"]
    assert len(lines) == 2
    # Other options are other cells.
    bench(capsys, *command, "--seed", "7")
    assert len(out.read_text().splitlines()) == 4


def test_the_best_of_those_measured_again_counts() -> None:
    asked = []

    def run(options: Mapping[str, Any]) -> dict[str, Any]:
        asked.append(options)
        if options["compare"] == "all":
            rates = {"serial": [10.0], "lists": [30.0], "tstream": [20.0], "s-store": [1.0]}
        else:
            rates = {
                "adaptive": [18.0, 19.0, 20.0],
                "serial": [10.0, 10.0, 10.0],
                "lists": [12.0, 12.0, 12.0],
                "tstream": [20.0, 20.0, 25.0],
            }
        return {"baseline": "loop", "rates": {"loop": [99.0], **rates}, "ran": {}, "valid": True}

    (cell,) = grid.cells("sl", "small", {"skew": 0.0, "udf_ns": 20})
    found = grid.measure(cell, run)
    # A quick pass of few events; then as many as serial execution takes 1.2 s for.
    assert (asked[0]["events"], asked[1]["events"]) == (75_000, cell["events"])
    assert cell["events"] == int(1_200e6 / (3.5 * (17 + 20)))
    assert (asked[1]["strategy"], asked[1]["compare"]) == ("adaptive", "lists,tstream")
    assert found["best"] == "tstream"
    assert found["adaptive_to_best"] == pytest.approx(0.9)
    # 20 to 20, 20 to 25, 25 to 20.
    assert found["best_to_itself"] == pytest.approx(1.0)
    assert found["ratio_to_serial"]["s-store"] == pytest.approx(0.1)
    assert found["ratio_to_serial"]["lists"] == pytest.approx(1.2)
    assert "version" not in asked[0]


def test_cells_of_the_full_grid() -> None:
    assert len(grid.cells("sl", "full", {})) == 135
    assert len(grid.cells("gs", "full", {})) == 270
    # Dear transactions and long epochs: not fewer than that.
    given = {"skew": 0.0, "udf_ns": 1_000, "abort": 0.0}
    events = {c["epoch"]: c["events"] for c in grid.cells("sl", "full", given)}
    few = int(1_200e6 / (3.5 * (17 + 1_000)))
    assert events == {1_000: few, 10_000: few, 100_000: 1_200_000}
    # Of those with ten records fewer take as long.
    given |= {"length": 10, "epoch": 1_000}
    assert [c["events"] for c in grid.cells("gs", "full", given)] == [300_000]
    keys = {grid.key(cell) for cell in grid.cells("gs", "full", {})}
    assert len(keys) == 270
    assert {cell["epoch"] for cell in grid.cells("sl", "small", {"epoch": 7})} == {7}


def test_the_summary() -> None:
    shares = (0.5, 1.0, 0.95, 1.1)
    made = [
        {
            "cell": {"skew": i},
            "best": "x",
            "adaptive_to_best": share,
            "best_to_itself": 0.93 + i / 100,
            "spread": i,
            "valid": True,
        }
        for i, share in enumerate(shares)
    ]
    found = grid.summary(made)
    assert found["share_at_least_0_95"] == 0.75
    assert found["share_best_to_itself"] == 0.5
    assert found["adaptive_to_best_min"] == 0.5
    assert found["adaptive_to_best_median"] == pytest.approx(0.975)
    assert found["spread_median"] == 1.5
    assert [row["skew"] for row in found["lowest"]] == [0, 2, 1, 3]


def test_plots_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--events", "2600", "--keys", "100", "--repeat", "2", "--strategy", "lists")
    bars = tmp_path / "bars.svg"
    found = bench(capsys, "sl", *small, "--plot", str(bars))
    assert {"tight loop", "serial", "lists", "events/s"} <= set(texts(bars))
    assert "tidemill bench sl --strategy lists --keys 100" in " ".join(texts(bars))
    assert len(list(ElementTree.parse(bars).getroot().iter(f"{SVG}rect"))) == 3
    assert all(len(rates) == 2 for rates in found["rates"].values())
    phases = tmp_path / "phases.svg"
    bench(capsys, "sl", "--dynamic", *small, "--plot", str(phases))
    assert {"phase", "13", "serial", "lists"} <= set(texts(phases))
    few = ("--lengths", "1,2,3", "--events", "300", "--repeat", "1", "--strategy", "serial")
    bench(capsys, "ee-triggers", *few, "--plot", str(bars))
    assert {"links", "measured", "3"} <= set(texts(bars))
    modes = ("--durable", "log", "--sink", str(tmp_path / "modes"), "--lengths", "1,3")
    bench(capsys, "recovery-modes", "--events", "300", *modes, "--plot", str(bars))
    assert {"forward", "log", "replay", "weak", "strong", "procedures"} <= set(texts(bars))
    pushed = ("--program", "python", "--events", "100", "--keys", "10", "--repeat", "1")
    bench(capsys, "push", *pushed, "--plot", str(bars))
    assert "arrow" in texts(bars)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sl --plot out.png", "out.png: its name must end in .svg"),
        ("sl --plot nowhere/out.svg", "there is no folder nowhere"),
        ("grid --out out.json", "its name must end in .jsonl"),
        ("grid --cells huge", "--cells huge: it is one of small, full"),
        ("grid --strategy lists", "--strategy: the grid has no such option"),
        ("grid --workload push", "--compare: push has no such option"),
        ("grid --workload sk", "there is no workload 'sk'"),
        ("sl --cells small", "--cells: sl has no such option"),
        ("grid --out bad.jsonl", "bad.jsonl, line 1: this is not a cell of a grid"),
    ],
)
def test_what_is_refused(
    words: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text("[1]\n")
    assert main(["bench", *words.split()]) == 1
    assert said in capsys.readouterr().err
    # Nothing is left behind.
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


def test_without_the_package_the_command_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tidemill_bench", None)
    assert main(["bench", "sl", "--threads", "2"]) == 1
    said = capsys.readouterr().err
    assert "error: the benchmarks are not installed" in said
    assert f"help: pip install tidemill-bench=={tm.__version__}, or in the sources" in said


def test_functions_in_python_are_refused_where_two_engines_are_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # This process has imported tidemill first. The command starts again instead: see test_cli.py.
    for words in ("sl --program python --events 10", "ycsb-t --processes 2"):
        assert main(["bench", *words.split()]) == 1
        assert "this process has two engines" in capsys.readouterr().err


def test_a_gap_in_a_line_is_a_gap() -> None:
    panel = plot.Panel(
        "<t>", "x", "y", ["1", "2", "3"], {"a": [1.0, None, 3.0], "b & c": [0, 0, 0]}
    )
    drawn = plot.svg("a < b", [panel, panel])
    root = ElementTree.fromstring(drawn)
    lines = [path.get("d") or "" for path in root.iter(f"{SVG}path")]
    gaps = [line for line in lines if line.count("M50.0") and line.count("M250.0")]
    assert len(gaps) == 2
    assert not any("L250.0" in line for line in gaps)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a.svg"
    folder.mkdir()
    with pytest.raises(tm.SettingError, match="can't be written"):
        refuse_unwritable(folder, ".svg")
