"""The library of this package. Only a benchmark loads it, because it is as large as the engine."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from tidemill import _native
from tidemill.errors import ResourceError


def library() -> ModuleType:
    """Returns the compiled half of this package."""
    from tidemill_bench import _bench

    return _bench


def is_loaded() -> bool:
    """Returns whether ``tidemill`` has its engine from the library of this package."""
    found = importlib.util.find_spec("tidemill_bench._bench")
    return found is not None and found.origin == _native.__file__


def refuse_two() -> None:
    """Refuses functions in Python where the engine that they import does not run them."""
    if not is_loaded():
        raise ResourceError(
            "this process has two engines: it imported tidemill before tidemill_bench",
            "import tidemill_bench first, or run the command 'tidemill bench'",
        )
