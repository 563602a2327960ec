"""The examples run, and print the results that they promise."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    """An example, loaded as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_orders_are_routed_beside_calls_and_no_money_is_lost(tmp_path: Path) -> None:
    found = example("routing").main(rounds=12, data_dir=tmp_path / "data")
    assert found["deposited"] == found["free_held_paid"]
    assert found["best_venues"] == {"iron": "north", "wheat": "south", "wool": "west"}
    accepted = found["orders"] - found["refused"]
    assert found["confirmed"] + found["denied"] == accepted > 100
    assert found["orders_of_customer_3"] > 0


def test_a_bank_list_comes_into_a_warehouse_a_day_at_a_time() -> None:
    found = example("ingest").main()
    assert found["months_agree"]
    assert found["sum"] == found["sum_of_the_file"]
    assert (found["rows"], found["rejected"], found["days"]) == (49_101, 0, 455)
