"""The programs of the folder `tools`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench/results"

LINE = {
    "workload": "sl",
    "program": "rust",
    "threads": 1,
    "processes": 1,
    "events": 3000,
    "events_per_s": 1000.0,
    "ratio": 0.25,
    "rates": {"serial": [900.0, 1000.0]},
    "latency_ms": {"p50": 0.5, "p99": None},
    "state_hash": "ab",
    "output_hash": "cd",
    "valid": True,
}


def compare(*arguments: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "tools/compare.py", *arguments], capture_output=True, text=True
    )


def file(path: Path, **changes: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**LINE, **changes}))
    return path


def rows(printed: str) -> dict[str, list[str]]:
    return {parts[0]: parts[1:] for line in printed.splitlines() if (parts := line.split())}


def test_figures_stand_beside_each_other_with_ratios(tmp_path: Path) -> None:
    faster = file(tmp_path / "b.json", events_per_s=1500.0, latency_ms={"p50": 0.25, "p99": 3})
    ended = compare(file(tmp_path / "a.json"), faster)
    assert ended.returncode == 0, ended.stderr
    found = rows(ended.stdout)
    assert found["events_per_s"] == ["1,000", "1,500", "1.500"]
    assert found["latency_ms.p50"] == ["0.5", "0.25", "0.500"]
    assert "latency_ms.p99" not in found
    assert "events" not in found


def test_a_wrapped_result_is_compared_with_what_a_benchmark_printed(tmp_path: Path) -> None:
    wrapped = tmp_path / "a.json"
    wrapped.write_text(json.dumps({"machine": {}, "commit": "c", "result": LINE}, indent=2))
    printed = tmp_path / "b.json"
    printed.write_text(f"some other line\n{json.dumps(LINE)}\n")
    ended = compare(wrapped, printed)
    assert ended.returncode == 0, ended.stderr
    assert rows(ended.stdout)["ratio"] == ["0.25", "0.25", "1.000"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state_hash": "xy"}, "state_hash differs: ab and xy"),
        ({"output_hash": "xy", "threads": 2}, "output_hash differs"),
        ({"valid": False}, "is not valid"),
    ],
)
def test_another_outcome_is_an_error(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    ended = compare(file(tmp_path / "a.json"), file(tmp_path / "b.json", **changes))
    assert ended.returncode == 1
    assert said in ended.stderr


@pytest.mark.parametrize("changes", [{"events": 4000}, {"processes": 2}])
def test_hashes_of_other_inputs_are_not_compared(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    other = file(tmp_path / "b.json", state_hash="xy", **changes)
    ended = compare(file(tmp_path / "a.json"), other)
    assert ended.returncode == 0, ended.stderr
    assert "hashes are not compared" in ended.stdout
    assert "differs" in ended.stdout


def test_folders_are_compared_by_names_of_files(tmp_path: Path) -> None:
    for folder in ("before", "after"):
        file(tmp_path / folder / "sl.json")
        file(tmp_path / folder / "gs.json", workload="gs", state_hash=folder)
    file(tmp_path / "after/tp.json", workload="tp")
    ended = compare(tmp_path / "before", tmp_path / "after")
    assert ended.returncode == 1
    assert "tp.json is only in" in ended.stderr
    assert "gs: state_hash differs" in ended.stderr
    assert {"sl", "gs"} <= set(rows(ended.stdout))


def test_files_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    good = file(tmp_path / "good.json")
    bad = tmp_path / "bad.json"
    bad.write_text("nothing")
    empty = tmp_path / "empty"
    empty.mkdir()
    none = tmp_path / "none.json"
    none.write_text('{"result": 3}')
    other = file(tmp_path / "other.json", workload="gs")
    for second, said in [
        (tmp_path / "missing.json", "does not exist"),
        (bad, "is no JSON"),
        (none, "has no result of a benchmark"),
        (empty, "give two files or two folders"),
        (other, "compare runs of one workload"),
    ]:
        ended = compare(good, second)
        assert ended.returncode == 2, second
        assert said in ended.stderr
        assert "Traceback" not in ended.stderr
    ended = compare(empty, empty)
    assert ended.returncode == 2
    assert "no file `*.json` of the same name" in ended.stderr


def test_the_recorded_results_can_be_compared() -> None:
    recorded = sorted(RESULTS.glob("*.json"))
    assert recorded
    for path in recorded:
        found = json.loads(path.read_text())
        assert set(found) == {"machine", "commit", "date", "command", "result"}, path
        assert found["command"].split()[2] == found["result"]["workload"], path
        assert found["result"]["valid"], path
    assert compare(RESULTS, RESULTS).returncode == 0
