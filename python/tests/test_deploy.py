"""The recipes in deploy/: their commands are commands, and their settings settings. There is no
cluster here on which they could be tried."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tidemill.cli import parser
from tidemill.config import checked_settings

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.parametrize("name", ["kubernetes.yaml", "Dockerfile"])
def test_commands_of_recipes_are_commands(name: str) -> None:
    text = (DEPLOY / name).read_text()
    found = re.findall(r"^ *(?:args:|CMD) (\[.*\])$", text, re.MULTILINE)
    assert found
    for args in map(json.loads, found):
        parser().parse_args(args)


def test_settings_of_recipes_are_settings() -> None:
    text = (DEPLOY / "kubernetes.yaml").read_text()
    found = dict(re.findall(r'name: TIDEMILL_(\w+), value: "([^"]*)"', text))
    assert len(found) > 5
    checked_settings({name.lower(): value for name, value in found.items()}, "kubernetes.yaml")


def test_ports_of_probes_are_ports_of_containers() -> None:
    text = (DEPLOY / "kubernetes.yaml").read_text()
    ports = set(re.findall(r"containerPort: (\d+)", text))
    assert set(re.findall(r"(?<!container)[Pp]ort: (\d+)", text)) <= ports
