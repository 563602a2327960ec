"""The compiled half of the benchmarks (the crate in bench/python)."""

from collections.abc import Callable
from typing import Any

from tidemill._native import Cluster

def bench(
    arguments: str,
    program: str | None,
    opaques: list[Callable[..., Any]],
    progress: Callable[[str], None],
) -> str: ...
def offer(
    spec: str,
    opaques: list[Callable[..., Any]],
    arguments: str,
    offered: str,
    progress: Callable[[str], None],
    cluster: Cluster | None = None,
    kafka: tuple[str, str, dict[str, str]] | None = None,
) -> str: ...
