"""The names in ARCHITECTURE.md are where it says, and its map has all folders."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()


def named() -> set[str]:
    """The files and folders that it names."""
    return set(re.findall(r"`([\w.-]+(?:/[\w.-]*)+|[\w-]+\.(?:rs|py|toml|md))`", PAGE))


def is_there(name: str) -> bool:
    """From the root, or within the sources of a part: its folder may be left out, or `src`."""
    part, _, rest = name.partition("/")
    places = [ROOT / name, ROOT / "python" / "tidemill" / name]
    places += [ROOT / part / "src" / rest] if rest else []
    return any(place.exists() for place in places) or any(ROOT.glob(f"*/src/**/{name}"))


def test_all_that_it_names_is_there() -> None:
    assert len(found := named()) > 80
    assert {name for name in found if not is_there(name)} == set()
    assert not is_there("engine/src/no_such.rs")


def test_its_map_has_all_parts() -> None:
    section = PAGE.split("\n## Code map\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
    mapped = set(re.findall(r"`(\w+)`", " ".join(rows)))
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    # A package inside a part belongs to it.
    assert mapped == {member.split("/")[0] for member in workspace["members"]}
