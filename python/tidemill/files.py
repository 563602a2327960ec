"""Files as sources and sinks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tidemill.errors import ProgramError
from tidemill.keywords import known_keywords
from tidemill.source import here
from tidemill.types import Json

_SOURCE_ONLY = (
    "skip_lines",
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
    """Files to read, or a file to write. :func:`files` makes these."""

    path: str
    options: Mapping[str, Any]
    at: str

    def source_json(self) -> Json:
        """Returns the source in the form that the engine reads."""
        return self._json("read", _SINK_ONLY)

    def sink_json(self) -> Json:
        """Returns the sink in the form that the engine reads."""
        return self._json("written", _SOURCE_ONLY)

    def _json(self, use: str, others: Sequence[str]) -> Json:
        for name in others:
            if name in self.options:
                raise ProgramError(
                    f"{self.path}: {name}= means nothing for files that are {use}",
                    "leave it out",
                    self.at,
                )
        return {"path": self.path, **self.options}


@known_keywords
def files(
    path: str | os.PathLike[str],
    format: Literal["csv", "jsonl", "parquet"] | None = None,
    *,
    delimiter: str | None = None,
    header: bool | None = None,
    skip_lines: int | None = None,
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
    """Describes files to read, for :meth:`Stream.read`, or a file to write.

    With ``follow=True`` a file is read as it grows, each row when its newline is there. Files of
    a folder, or of a name with ``*``, are read one after another, in the order of their names. A
    file is read to its end as soon as a later one exists. So write no more to a file then, and
    give new files names that sort after all others. Move compressed files and Parquet files into
    the folder when they are complete. Names that begin with a dot are ignored.

    A Parquet file is written when the run ends. Until then its rows are in the files of the
    folder ``<path>.parts``.

    Args:
        path: A file. For reading also a folder, or a name with ``*``.
        format: The format. By default the name decides: ``.csv``, ``.tsv``, ``.jsonl`` and
            ``.ndjson``, each also with ``.gz``, and ``.parquet``.
        delimiter: The character between the values of CSV. The default is a comma, or a tab for
            ``.tsv``.
        header: Whether the first line of CSV has the names of the columns. The default is True,
            and False with ``order``. Without names the file has the stream's columns in order.
        skip_lines: Reading CSV: the number of lines before the header, which are skipped. Without
            a header they are before the first row. The default is 0.
        quote: Reading CSV: the quote character, doubled inside a field. ``""`` makes quotes
            ordinary characters. The default is ``"``.
        unclosed: Reading CSV: the reaction to a quote that is not closed. ``"stop"`` (the default)
            ends the run, and ``"skip"`` moves the line to the stream ``dead``.
        encoding: Reading CSV or JSON lines: the encoding, such as ``"windows-1252"``. A byte order
            mark overrides it. The default is UTF-8.
        order: Reading CSV: the names of the file's columns, instead of a header.
        columns: Reading: the name in the file of a column of the stream, as a dict. The default
            is the same name.
        nulls: Reading CSV: the texts that stand for null. The default is the empty field.
        formats: Reading: the format of a timestamp column, as a dict. It is ``"iso"`` (the
            default), ``"unix_s"``, ``"unix_ms"``, ``"unix_us"``, or a pattern of ``strptime``.
        unknown_fields: Reading JSON lines or Parquet: the reaction to a field that the stream does
            not have. ``"ignore"`` (the default) drops the field. ``"refuse"`` moves a JSON row to
            the stream ``dead``, and refuses a Parquet file.
        record_bytes_max: Reading: the largest size of a row, in bytes, at most 64 MiB. Longer rows
            go to the stream ``dead``. The default is 1 MiB.
        follow: Reading: whether to wait for more rows at the end, so that only ``mill.stop()``
            ends the run. The default is False.
        overwrite: Writing: whether the start replaces a file that is not empty. The default is
            False: the start is refused.
        null: Writing CSV: the text for null. Equal texts are quoted. The default is the empty
            field.

    Returns:
        The description of the files.

    Raises:
        ProgramError: ``order`` is a text, the delimiter is not one character, or ``skip_lines`` is
            not a number.

    Example:
        >>> files("in/*.csv", delimiter=";").source_json()
        {'path': 'in/*.csv', 'delimiter': ';'}
    """
    given: dict[str, Any] = {
        "format": format,
        "delimiter": delimiter,
        "header": header,
        "skip_lines": skip_lines,
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
    is_count = isinstance(skip_lines, int) and not isinstance(skip_lines, bool) and skip_lines >= 0
    if skip_lines is not None and not is_count:
        raise ProgramError(f"skip_lines is a number of lines, not {skip_lines!r}", "", at)
    options = {name: value for name, value in given.items() if value is not None}
    return Files(os.fspath(path), options, at)
