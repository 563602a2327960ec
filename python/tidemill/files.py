"""Files as sources and sinks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tidemill.errors import ProgramError
from tidemill.source import here
from tidemill.types import Json

_SOURCE_ONLY = (
    "quote",
    "unclosed",
    "encoding",
    "order",
    "columns",
    "nulls",
    "formats",
    "unknown_fields",
    "record_bytes_max",
    "follow",
)
_SINK_ONLY = ("overwrite", "null")


@dataclasses.dataclass(frozen=True)
class Files:
    """Files to read, or a file to write; made by :func:`files`."""

    path: str
    options: Mapping[str, Any]
    at: str

    def source_json(self) -> Json:
        """As the engine reads it, for a source."""
        return self._json("read", _SINK_ONLY)

    def sink_json(self) -> Json:
        """As the engine reads it, for a sink."""
        return self._json("written", _SOURCE_ONLY)

    def _json(self, use: str, others: Sequence[str]) -> Json:
        for name in others:
            if name in self.options:
                raise ProgramError(
                    f"{self.path}: {name}= means nothing for files that are {use}", "", self.at
                )
        return {"path": self.path, **self.options}


def files(
    path: str | os.PathLike[str],
    format: Literal["csv", "jsonl", "parquet"] | None = None,
    *,
    delimiter: str | None = None,
    header: bool | None = None,
    quote: str | None = None,
    unclosed: Literal["stop", "skip"] | None = None,
    encoding: str | None = None,
    order: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
    nulls: Sequence[str] | None = None,
    formats: Mapping[str, str] | None = None,
    unknown_fields: Literal["ignore", "refuse"] | None = None,
    record_bytes_max: int | None = None,
    follow: bool | None = None,
    overwrite: bool | None = None,
    null: str | None = None,
) -> Files:
    """Files to read from or a file to write to.

    ``path`` is a file; for reading also a folder or a name with ``*``. The format is told by the
    name (``.csv``, ``.tsv``, ``.jsonl``, ``.ndjson``, each with ``.gz`` or not, and ``.parquet``)
    or by ``format``.

    Reading and writing: ``delimiter`` and ``header`` of CSV. Reading: ``quote`` ("" for none),
    ``unclosed`` (a quote that is not closed ends the run, or with "skip" its line is set aside),
    ``encoding``, ``order`` (the names of the file's columns, in place of a header), ``columns``
    (column of the stream to its name in the file), ``nulls`` (what stands for null), ``formats``
    (timestamp column to "iso", "unix_s", "unix_ms", "unix_us" or a pattern as strptime has it),
    ``unknown_fields`` of JSON lines and Parquet, ``record_bytes_max``, ``follow``. Writing:
    ``overwrite``, ``null``.

    With ``follow=True`` reading never ends, so the run ends by ``stop()``. A file is read as it
    grows, each row when it has its newline. Of a folder, or a name with ``*``, the files are read
    one after another in the order of their names, as they come: each to its end when a later one
    is there, so write no more to a file then, and give new files names that sort behind all others.
    Move packed files and Parquet files there when they are complete; names that begin with a dot
    are not looked at.

    A Parquet file is written when the run ends; before that, its rows are in the files of the
    folder ``<path>.parts``.

    >>> files("in/*.csv", delimiter=";").source_json()
    {'path': 'in/*.csv', 'delimiter': ';'}
    """
    given: dict[str, Any] = {
        "format": format,
        "delimiter": delimiter,
        "header": header,
        "quote": quote,
        "unclosed": unclosed,
        "encoding": encoding,
        "order": None if order is None else list(order),
        "columns": None if columns is None else dict(columns),
        "nulls": None if nulls is None else [nulls] if isinstance(nulls, str) else list(nulls),
        "formats": None if formats is None else dict(formats),
        "unknown_fields": unknown_fields,
        "record_bytes_max": record_bytes_max,
        "follow": follow,
        "overwrite": overwrite,
        "null": null,
    }
    at = here()
    if isinstance(order, str):
        raise ProgramError("order= is a list of column names", f'write order=["{order}"]', at)
    if delimiter is not None and len(delimiter) != 1:
        raise ProgramError(f"delimiter={delimiter!r} is not one character", "", at)
    options = {name: value for name, value in given.items() if value is not None}
    return Files(os.fspath(path), options, at)
