"""The README and the guide run."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(name: str, language: str) -> list[tuple[int, str]]:
    """The blocks of code of a page, with their lines."""
    text = (ROOT / name).read_text()
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text[: block.start()].count("\n") + 2, block[1]) for block in found]


@pytest.mark.parametrize("name", ["README.md", "docs/guide.md"])
def test_the_code_of_a_page_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    found = blocks(name, "python")
    assert found
    # A traced function's source is looked up by its file, so the page becomes one.
    for line, code in found:
        path = tmp_path / f"{Path(name).stem}_{line}.py"
        path.write_text(code)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, str(path), "exec"), namespace)
        if name == "README.md":
            wanted = blocks(name, "text")[1][1]
            assert printed.getvalue() == wanted


def test_the_demo_is_what_the_readme_says(tmp_path: Path) -> None:
    import json
    import subprocess
    import sys

    ended = subprocess.run(
        [sys.executable, "-m", "tidemill.cli", "run", str(ROOT / "examples/ledger.py")]
        + ["--fresh", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = json.loads(ended.stdout.splitlines()[-1])
    for line in blocks("README.md", "text")[0][1].splitlines():
        name, value = line.split()
        assert str(found[name]) == value.replace(",", ""), name
    assert found["events"] == 49_113
    assert found["refused"] == 5
    assert found["dead"] == 7
    assert re.fullmatch("[0-9a-f]{32}", found["state_hash"])
    assert re.fullmatch("[0-9a-f]{32}", found["output_hash"])
    assert (tmp_path / "out/ledger/posted.csv").stat().st_size > 1_000_000
