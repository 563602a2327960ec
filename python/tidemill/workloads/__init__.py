"""The workloads of ``tidemill bench`` as Python programs, by name."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.app import App
from tidemill.workloads import sl

#: Each makes its app; the argument says whether as opaque functions.
WORKLOADS: dict[str, Callable[[bool], App]] = {"sl": sl.app}
