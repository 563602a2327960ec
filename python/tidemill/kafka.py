"""Kafka topics as sources and sinks."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from tidemill.errors import ProgramError
from tidemill.keywords import known_keywords
from tidemill.source import here
from tidemill.types import EPOCH, MICROSECOND, Json

_SOURCE_ONLY = (
    "partitions",
    "begin",
    "meta",
    "columns",
    "formats",
    "unknown_fields",
    "ahead_bytes",
)
_SINK_ONLY = (
    "subject",
    "schema",
    "key",
    "headers",
    "transactions",
    "transactional_id",
    "queue_bytes",
)
_BESIDE = ("key", "value", "timestamp", "partition", "offset")


@dataclasses.dataclass(frozen=True)
class Kafka:
    """A topic to read or to write. :func:`kafka` makes these."""

    topic: str
    brokers: str
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
                shown = "transactions" if name == "transactional_id" else name
                raise ProgramError(
                    f"topic {self.topic}: {shown}= means nothing for a topic that is {use}",
                    "leave it out",
                    self.at,
                )
        return {"topic": self.topic, "brokers": self.brokers, **self.options}


@known_keywords
def kafka(
    topic: str,
    *,
    brokers: str | Sequence[str],
    format: Literal["json", "msgpack", "avro"] | None = None,
    registry: str | None = None,
    registry_properties: Mapping[str, str] | None = None,
    partitions: Iterable[int] | None = None,
    begin: Literal["earliest", "latest"] | dt.datetime | None = None,
    meta: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
    formats: Mapping[str, str] | None = None,
    unknown_fields: Literal["ignore", "refuse"] | None = None,
    ahead_bytes: int | None = None,
    subject: str | None = None,
    schema: int | Literal["latest"] | None = None,
    key: str | Sequence[str] | None = None,
    headers: Mapping[str, str] | None = None,
    transactions: bool | str | None = None,
    queue_bytes: int | None = None,
    timeout: float | dt.timedelta | None = None,
    properties: Mapping[str, str | int | float | bool] | None = None,
) -> Kafka:
    """Describes a Kafka topic to read, for :meth:`Stream.read`, or to write.

    The topic must exist. When reading, each partition is a source of its own. When writing, every
    row is in the topic exactly once: after a crash, rows that are there already are not appended
    again.

    Args:
        topic: The topic's name.
        brokers: Some of the brokers, as ``"host:port"``, or a list of them.
        format: The encoding of values. ``"json"`` (the default) is an object with the columns as
            fields, and ``"msgpack"`` is the same as a map. ``"avro"`` is a record after the id of
            its schema.
        registry: Avro: the URL of the schema registry.
        registry_properties: Avro: properties of the registry. There are
            ``"basic.auth.user.info"`` (which may be in the URL instead), ``"bearer.auth.token"``
            and ``"ssl.ca.location"``. The default is none.
        partitions: Reading: the numbers of the partitions to read. The default is all.
        begin: Reading: the position of the first start. It is ``"earliest"`` (the default),
            ``"latest"``, or a time. A time without a zone is in UTC.
        meta: Reading: the columns that do not come from the fields of the value, as a dict. A
            column comes from ``"key"``, ``"timestamp"``, ``"partition"``, ``"offset"``,
            ``"header:NAME"``, or ``"value"``, the whole value. The default is none.
        columns: Reading: the name in the value of a column of the stream, as in
            :func:`tidemill.files`.
        formats: Reading: the format of a timestamp column, as in :func:`tidemill.files`.
        unknown_fields: Reading: the reaction to a field that the stream does not have, as in
            :func:`tidemill.files`. The default is ``"ignore"``.
        ahead_bytes: Reading: the bytes of each partition that are read ahead, at least 64 KiB.
            The default is 8 MiB.
        subject: Writing Avro: the subject with which the stream's schema is registered when the
            app starts. The default is ``TOPIC-value``.
        schema: Writing Avro: a registered schema, by its id or as ``"latest"``, which the columns
            must fit. The default is a schema made from the stream's columns.
        key: Writing: the column, or columns, of the message's key, which chooses the partition.
            The default is no key.
        headers: Writing: the headers of each message, as a dict. The default is none.
        transactions: Writing: whether the rows of each epoch are one Kafka transaction. A text is
            the transactional id. Readers with ``read_committed`` then see all rows of an epoch at
            once, and a dead process can't write any more. The default is False.
        queue_bytes: Writing: the bytes that may wait for delivery before the app waits, at least
            64 KiB. The default is 32 MiB.
        timeout: The longest time that brokers may take to answer at the start, in seconds or as
            a timedelta. The default is 30 seconds.
        properties: More properties of librdkafka, such as
            ``{"security.protocol": "sasl_ssl"}``. The default is none.

    Returns:
        The description of the topic.

    Raises:
        ProgramError: An argument is not valid, or means nothing with the format.

    Example:
        >>> kafka("payments", brokers="localhost:9092", meta={"who": "key"}).source_json()
        {'topic': 'payments', 'brokers': 'localhost:9092', 'meta': {'who': 'key'}}
        >>> kafka("paid", brokers="b:9092", format="avro", registry="http://r:8081").sink_json()
        {'topic': 'paid', 'brokers': 'b:9092', 'format': 'avro', 'registry': 'http://r:8081'}
    """
    at = here()
    named = brokers if isinstance(brokers, str) else ",".join(brokers)
    if not isinstance(topic, str) or not topic:
        raise ProgramError(f"a topic's name is a text, not {topic!r}", 'write tm.kafka("name")', at)
    if not named.strip():
        raise ProgramError(f"topic {topic}: no broker is named", 'say brokers="localhost:9092"', at)
    if format not in (None, "json", "msgpack", "avro"):
        raise ProgramError(
            f"topic {topic}: there is no format {format!r}",
            'say "json", "msgpack" or "avro"',
            at,
        )
    _check_registry(topic, format, registry, registry_properties, subject, schema, at)
    given: dict[str, Any] = {
        "format": format,
        "registry": registry,
        "registry_properties": _properties(registry_properties),
        "partitions": _partitions(topic, partitions, at),
        "begin": _begin(topic, begin, at),
        "meta": _meta(topic, meta, at),
        "columns": None if columns is None else dict(columns),
        "formats": None if formats is None else dict(formats),
        "unknown_fields": unknown_fields,
        "ahead_bytes": _bytes(topic, "ahead_bytes", ahead_bytes, at),
        "subject": subject,
        "schema": {"id": schema} if isinstance(schema, int) else schema,
        "key": [key] if isinstance(key, str) else None if key is None else list(key),
        "headers": None if headers is None else dict(headers),
        "transactions": None if transactions is None else bool(transactions),
        "transactional_id": transactions if isinstance(transactions, str) else None,
        "queue_bytes": _bytes(topic, "queue_bytes", queue_bytes, at),
        "timeout_us": _timeout(topic, timeout, at),
        "properties": _properties(properties),
    }
    options = {name: value for name, value in given.items() if value is not None}
    return Kafka(topic, named, options, at)


def _check_registry(
    topic: str,
    format: str | None,
    registry: str | None,
    properties: Mapping[str, str] | None,
    subject: str | None,
    schema: int | str | None,
    at: str,
) -> None:
    is_avro = format == "avro"
    if is_avro and not registry:
        raise ProgramError(
            f"topic {topic}: Avro needs a schema registry",
            'say registry="http://host:8081"',
            at,
        )
    given: dict[str, object] = {"registry": registry, "registry_properties": properties}
    given |= {"subject": subject, "schema": schema}
    for name, value in given.items():
        if value is not None and not is_avro:
            raise ProgramError(
                f"topic {topic}: {name}= means nothing without Avro", 'say format="avro", too', at
            )
    is_id = isinstance(schema, int) and not isinstance(schema, bool) and 0 <= schema < 1 << 32
    if schema is not None and schema != "latest" and not is_id:
        raise ProgramError(
            f"topic {topic}: schema={schema!r} is not the id of a schema",
            'say its id, or "latest"',
            at,
        )


def _partitions(topic: str, partitions: Iterable[int] | None, at: str) -> list[int] | None:
    if partitions is None:
        return None
    listed = list(partitions)
    for partition in listed:
        if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
            raise ProgramError(
                f"topic {topic}: {partition!r} is not the number of a partition",
                "give ints from 0 on",
                at,
            )
    if not listed or len(set(listed)) < len(listed):
        raise ProgramError(
            f"topic {topic}: partitions={listed!r} is empty, or names a partition twice",
            "name each partition once, or leave out partitions= to read all",
            at,
        )
    return listed


def _begin(topic: str, begin: str | dt.datetime | None, at: str) -> Json:
    if begin is None or begin in ("earliest", "latest"):
        return begin
    if not isinstance(begin, dt.datetime):
        raise ProgramError(
            f"topic {topic}: begin={begin!r} is not a position to begin at",
            'say "earliest", "latest" or a datetime',
            at,
        )
    aware = begin if begin.tzinfo is not None else begin.replace(tzinfo=dt.UTC)
    return {"time": (aware - EPOCH) // MICROSECOND}


def _meta(topic: str, meta: Mapping[str, str] | None, at: str) -> dict[str, str] | None:
    for column, what in (meta or {}).items():
        if what not in _BESIDE and not (what.startswith("header:") and len(what) > 7):
            raise ProgramError(
                f"topic {topic}: a message has no {what!r} for column '{column}'",
                f"say {', '.join(_BESIDE)} or header:NAME",
                at,
            )
    return None if meta is None else dict(meta)


def _bytes(topic: str, name: str, given: int | None, at: str) -> int | None:
    if given is not None and given < 64 << 10:
        raise ProgramError(
            f"topic {topic}: {name}={given!r} is less than 65536", "give 65536 bytes or more", at
        )
    return given


def _timeout(topic: str, timeout: float | dt.timedelta | None, at: str) -> int | None:
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, dt.timedelta) else float(timeout)
    if seconds <= 0:
        raise ProgramError(
            f"topic {topic}: timeout={timeout!r} is not positive", "give more than 0 seconds", at
        )
    return round(seconds * 1e6)


def _properties(
    properties: Mapping[str, str | int | float | bool] | None,
) -> dict[str, str] | None:
    if properties is None:
        return None
    texts = {True: "true", False: "false"}
    return {
        name: texts[value] if isinstance(value, bool) else str(value)
        for name, value in properties.items()
    }
