"""The benchmarks of Tidemill: the command ``tidemill bench``.

Benchmarks in Rust call parts of the engine. So the library of this package contains the engine and
its Python binding. A process can't mix two engines: rows of one are no rows of the other. So a
process that imports this package before ``tidemill`` has both modules from this library.
"""

from __future__ import annotations

import importlib.util
import sys


def _load_engine() -> None:
    """Loads ``tidemill._native`` from the library of this package, unless it is loaded."""
    if "tidemill._native" in sys.modules:
        return
    library = importlib.util.find_spec("tidemill_bench._bench")
    assert library is not None
    spec = importlib.util.spec_from_file_location("tidemill._native", library.origin)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tidemill._native"] = module
    spec.loader.exec_module(module)


_load_engine()
