"""Topics of Kafka as sources and sinks."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from tidemill.errors import ProgramError
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
    """A topic to read or to write; made by :func:`kafka`."""

    topic: str
    brokers: str
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
                shown = "transactions" if name == "transactional_id" else name
                raise ProgramError(
                    f"topic {self.topic}: {shown}= means nothing for a topic that is {use}",
                    "",
                    self.at,
                )
        return {"topic": self.topic, "brokers": self.brokers, **self.options}


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
    """A topic of Kafka to read from or to write to. It must be there.

    ``brokers`` are some of them, as "host:port" or several; ``format`` is how values are written:
    "json" (the default), an object with the columns as fields, "msgpack", a map of the same, or
    "avro", a record of the same behind the id of its schema; then ``registry`` is the URL of the
    registry of schemas, and ``registry_properties`` say more: "basic.auth.user.info" (which may be
    in the URL, too), "bearer.auth.token", "ssl.ca.location";
    ``properties`` are further ones of librdkafka, as ``{"security.protocol": "sasl_ssl"}``;
    ``timeout`` (seconds) is how long brokers may take to answer at the start.

    Reading: each partition is a source of its own. ``partitions`` says which are read (all when
    absent), ``begin`` where the first start begins: "earliest" (the default), "latest", or a time.
    ``meta`` fills columns from what stands beside a value: "key", "timestamp", "partition",
    "offset", "header:NAME", or "value" for all of it as it is. ``columns`` (column of the stream to
    its name in the value), ``formats`` (timestamp column to "iso", "unix_s", "unix_ms", "unix_us"
    or a pattern as strptime has it) and ``unknown_fields`` are as in :func:`tidemill.files`.
    ``ahead_bytes`` is how much is read ahead, of each partition.

    Writing in Avro: a schema is made of the stream's columns and registered with ``subject``
    ("TOPIC-value" when absent) when the app starts; ``schema`` names one that is there already, by
    its id or as "latest", and the columns have to fit it.

    Writing: ``key`` names the columns that make the message's key, which decides about its
    partition; ``headers`` are put on each message. Every row is in the topic once: after a crash
    what is there already is not appended again. With ``transactions=True`` the rows of each epoch
    are one transaction of Kafka (a text is its transactional id): readers of what is committed see
    them all at once, and a dead process can't write any more. ``queue_bytes`` is how much may wait
    for being delivered.

    >>> kafka("payments", brokers="localhost:9092", meta={"who": "key"}).source_json()
    {'topic': 'payments', 'brokers': 'localhost:9092', 'meta': {'who': 'key'}}
    >>> kafka("paid", brokers="b:9092", format="avro", registry="http://r:8081").sink_json()
    {'topic': 'paid', 'brokers': 'b:9092', 'format': 'avro', 'registry': 'http://r:8081'}
    """
    at = here()
    named = brokers if isinstance(brokers, str) else ",".join(brokers)
    if not isinstance(topic, str) or not topic:
        raise ProgramError(f"a topic has a name, not {topic!r}", "", at)
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
            f"topic {topic}: Avro needs a registry of schemas",
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
            f"topic {topic}: schema={schema!r} is no schema of a registry",
            'say its id, or "latest"',
            at,
        )


def _partitions(topic: str, partitions: Iterable[int] | None, at: str) -> list[int] | None:
    if partitions is None:
        return None
    listed = list(partitions)
    for partition in listed:
        if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
            raise ProgramError(f"topic {topic}: {partition!r} is no partition's number", "", at)
    if not listed or len(set(listed)) < len(listed):
        raise ProgramError(
            f"topic {topic}: partitions={listed!r} names none, or one twice",
            "leave it away to read all",
            at,
        )
    return listed


def _begin(topic: str, begin: str | dt.datetime | None, at: str) -> Json:
    if begin is None or begin in ("earliest", "latest"):
        return begin
    if not isinstance(begin, dt.datetime):
        raise ProgramError(
            f"topic {topic}: begin={begin!r} is no place to begin at",
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
        raise ProgramError(f"topic {topic}: {name}={given!r} is less than 65536", "", at)
    return given


def _timeout(topic: str, timeout: float | dt.timedelta | None, at: str) -> int | None:
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, dt.timedelta) else float(timeout)
    if seconds <= 0:
        raise ProgramError(f"topic {topic}: timeout={timeout!r} is no time to wait", "", at)
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
