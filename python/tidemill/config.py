"""Settings: from ``tidemill.toml`` < environment < flag. Unknown ones are errors.

>>> checked_settings({"workers": "2"}, "--set")
{'workers': 2}
>>> checked_settings({"data_dir": Path("here"), "durable": "log"}, "app.start()")
{'data_dir': 'here', 'durable': 'log'}
>>> checked_settings({"upgrade": "lossy", "renames": {"t.a": "t.b"}}, "tidemill.toml")
{'upgrade': 'lossy', 'renames': {'t.a': 't.b'}}
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidemill import _native
from tidemill.errors import SettingError

#: What ``durable`` may be.
DURABLE: Final = ("none", "log", "log+snapshots")

#: What ``recovery`` may be.
RECOVERY: Final = ("weak", "strong")

#: What ``on_fault`` may be.
ON_FAULT: Final = ("stop", "abort")

#: What ``cluster_cuts`` may be.
CUTS: Final = ("log", "coordinator")

#: What ``log_format`` may be.
LOG_FORMAT: Final = ("text", "json")

#: What to say where it is none of these.
_SAY: Final = {
    DURABLE: "say none to keep nothing, log to repeat everything at a start, or log+snapshots",
    RECOVERY: "say weak to log inputs, or strong to log each transaction, too",
    ON_FAULT: "say stop to end the run at the event, or abort to count it and go on",
    LOG_FORMAT: "say text for people, or json for programs",
    CUTS: "say log to have them in Kafka, or coordinator to have them on its disk",
}

#: What ``upgrade`` may be, beside true and false.
LOSSY: Final = "lossy"

# Ways to run an app. Settings that mean nothing in one of them are refused there.

#: In one process, in memory; in one process, with a data directory.
MEMORY: Final = "an app in one process, in memory"
DIRECTORY: Final = "an app in one process"
#: All processes on this machine; a coordinator, or a worker, by itself.
PROCESSES: Final = "an app on several processes"
COORDINATOR: Final = "a coordinator"
WORKER: Final = "a worker"
MODES: Final = (MEMORY, DIRECTORY, PROCESSES, COORDINATOR, WORKER)

_ONE: Final = (MEMORY, DIRECTORY)
_SEVERAL: Final = (PROCESSES, COORDINATOR)
_CLUSTER: Final = (PROCESSES, COORDINATOR, WORKER)

#: Ten years in microseconds, a pebibyte, and a billion rows: more is a slip of the pen.
_LONG, _BYTES, _ROWS = 315_576_000_000_000, 1 << 50, 1_000_000_000


@dataclass(frozen=True)
class Setting:
    """A setting. The reference of settings is generated from these."""

    #: The kind of its values: a type, texts, or names with texts.
    kind: object
    #: The ways to run an app in which it means something.
    modes: tuple[str, ...]
    #: The least and the greatest value of an integer.
    range: tuple[int, int] = (0, 0)
    #: The setting without which it means nothing.
    needs: str = ""
    #: The value without the setting, as the reference shows it.
    default: str = ""
    #: One or two sentences for the reference.
    help: str = ""


def _int(
    low: int, high: int, modes: tuple[str, ...], needs: str = "", *, default: str, help: str
) -> Setting:
    return Setting(int, modes, (low, high), needs, default, help)


#: The engine's settings.
SETTINGS: Final[dict[str, Setting]] = {
    "workers": _int(
        0,
        256,
        (*_ONE, PROCESSES, WORKER),
        default="0",
        help="Threads of each process. 0: one a core; `--processes` shares the cores.",
    ),
    "epoch_idle": Setting(
        bool,
        _ONE,
        default="true",
        help=(
            "Whether an epoch closes as soon as the engine is idle and input waits. Otherwise "
            "only the bounds close it."
        ),
    ),
    "epoch_rows_max": _int(
        1,
        _ROWS,
        _ONE,
        default="65,536",
        help=(
            "Rows that close an epoch. Rows that are read while the epoch before executes belong "
            "to it, too."
        ),
    ),
    "epoch_bytes_max": _int(
        1,
        _BYTES,
        _ONE,
        default="8 MiB",
        help="Bytes of rows that were read and are in no epoch yet.",
    ),
    "epoch_us_max": _int(
        1, _LONG, _ONE, default="5,000", help="Microseconds after which an epoch closes."
    ),
    "memory_bytes_max": _int(
        1,
        _BYTES,
        (*_ONE, *_SEVERAL),
        default="8 GiB",
        help=(
            "Bytes of tables, buffered events and retained outputs together, on several processes "
            "of tables and buffered events of all. Beyond it the run ends with an error."
        ),
    ),
    "buffered_bytes_max": _int(
        1,
        _BYTES,
        MODES,
        default="256 MiB",
        help=(
            "Bytes of events that wait for their watermark, of all workers together. Beyond it "
            "the engine stops reading the sources that are ahead."
        ),
    ),
    "strategy": Setting(
        str,
        (*_ONE, PROCESSES, WORKER),
        default="adaptive",
        help="How epochs execute. The outcome is the same for each strategy.",
    ),
    "rerun_every": _int(
        0,
        1 << 32,
        (*_ONE, PROCESSES, WORKER),
        default="64",
        help=(
            "Every n-th transaction of a Python function runs twice, and the results are "
            "compared. 0: never."
        ),
    ),
    "fresh": Setting(
        bool,
        (*_ONE, *_SEVERAL),
        default="false",
        help="Whether the start empties the data directory and replaces output files.",
    ),
    # With durable=none it is passed over, which is what that says.
    "data_dir": Setting(
        Path,
        MODES,
        default="none; `tidemill run`: `<app>.tidemill`",
        help="Directory of everything that outlives the process.",
    ),
    "durable": Setting(
        DURABLE,
        _ONE,
        default="`log+snapshots`",
        help="The content of the data directory: `log+snapshots`, `log`, or `none`.",
    ),
    "recovery": Setting(
        RECOVERY,
        (DIRECTORY,),
        default="`weak`",
        help=(
            "The mode of recovery: it executes inputs again (`weak`), or each transaction as it "
            "was logged (`strong`)."
        ),
    ),
    "snapshot_us": _int(
        1, _LONG, (DIRECTORY,), default="10,000,000", help="Microseconds between snapshots."
    ),
    "log_segment_bytes": _int(
        1 << 16, 1 << 40, (DIRECTORY,), default="64 MiB", help="Bytes of one file of the input log."
    ),
    "poison_after": _int(
        2,
        1_000_000,
        (DIRECTORY, *_SEVERAL),
        default="3",
        help=(
            "Times in a row that an event may end the process, or that of a worker, before it goes "
            "to the dead-letter stream."
        ),
    ),
    "accept_replay": Setting(
        bool,
        (DIRECTORY,),
        default="false",
        help=(
            "Whether a start goes on when functions give other results in a replay than the log "
            "has recorded."
        ),
    ),
    "clock_jump_us_max": _int(
        60_000_000,
        _LONG,
        (DIRECTORY, *_SEVERAL),
        default="31,622,400,000,000 (366 days)",
        help=(
            "Microseconds by which the clock may be ahead of the last cut. A clock further ahead "
            "is refused."
        ),
    ),
    "on_fault": Setting(
        ON_FAULT,
        (*_ONE, *_SEVERAL),
        default="`abort`; `tidemill run`, `tidemill coordinator`: `stop`",
        help=(
            "Whether the run goes on (`abort`) or ends (`stop`) when a function fails on an event."
        ),
    ),
    "deadline_us": _int(
        0,
        _LONG,
        MODES,
        default="10,000,000",
        help=(
            "Microseconds that a call of a Python function may take before it aborts. 0: no limit."
        ),
    ),
    "tail_rows": _int(
        1,
        _ROWS,
        (*_ONE, *_SEVERAL),
        default="10,000",
        help="Rows of each output that are retained for followers.",
    ),
    "tail_bytes": _int(
        1,
        _BYTES,
        (*_ONE, *_SEVERAL),
        default="4 MiB",
        help="Bytes of each output that are retained for followers.",
    ),
    "dlq_rows_max": _int(
        1,
        _ROWS,
        (*_ONE, *_SEVERAL),
        default="10,000",
        help="Rows that are retained of each stream of bad and late events.",
    ),
    "dlq_bytes_max": _int(
        1,
        _BYTES,
        (*_ONE, *_SEVERAL),
        default="4 MiB",
        help="Bytes that are retained of each stream of bad and late events.",
    ),
    "http_port": _int(
        0,
        65_535,
        (*_ONE, *_CLUSTER),
        default="none",
        help=(
            "Port on which the app answers clients over HTTP. 0: any free port. A worker needs it "
            "on its command line, because other places give the coordinator's."
        ),
    ),
    "http_host": Setting(
        str,
        (*_ONE, *_CLUSTER),
        needs="http_port",
        default="127.0.0.1",
        help=(
            "Address on which it listens. An address that other machines reach needs tokens and a"
            " certificate."
        ),
    ),
    "http_tokens": Setting(
        Path,
        (*_ONE, *_CLUSTER),
        needs="http_port",
        default="none",
        help="File of the clients that are allowed. None: every process of this machine.",
    ),
    "http_cert": Setting(
        Path,
        (*_ONE, *_CLUSTER),
        needs="http_port",
        default="none",
        help="Certificate (PEM) for HTTPS.",
    ),
    "http_key": Setting(
        Path,
        (*_ONE, *_CLUSTER),
        needs="http_port",
        default="none",
        help="Private key (PEM) of the certificate.",
    ),
    "http_roles": Setting(
        dict,
        (*_ONE, *_CLUSTER),
        needs="http_port",
        default="none",
        help="Role that a client needs, by procedure, `streams/NAME` or `tables/NAME`.",
    ),
    "http_connections_max": _int(
        1,
        1_000_000,
        (*_ONE, *_CLUSTER),
        "http_port",
        default="1,024",
        help="Connections of allowed clients at a time.",
    ),
    "http_calls_max": _int(
        1,
        10_000_000,
        (*_ONE, *_CLUSTER),
        "http_port",
        default="4,096",
        help="Calls that may wait for their replies at a time.",
    ),
    "http_body_bytes_max": _int(
        1,
        1 << 40,
        (*_ONE, *_CLUSTER),
        "http_port",
        default="1 MiB",
        help="Bytes of a request's body.",
    ),
    "http_idle_us": _int(
        1,
        _LONG,
        (*_ONE, *_CLUSTER),
        "http_port",
        default="30,000,000",
        help="Microseconds after which a silent connection is closed.",
    ),
    "http_deadline_us": _int(
        1,
        _LONG,
        (*_ONE, *_CLUSTER),
        "http_port",
        default="30,000,000",
        help="Microseconds within which a call is answered.",
    ),
    "http_requests_kept_us": _int(
        1,
        _LONG,
        (*_ONE, *_CLUSTER),
        "http_port",
        default="24 hours",
        help="Microseconds for which the reply to a request with an id is remembered.",
    ),
    "log": Setting(
        str,
        MODES,
        default="`info` with `log_to`; otherwise nothing is logged",
        help=(
            "Levels of the [log](../guides/operate.md#the-log), also by target: "
            "`info,tidemill::sink=debug`."
        ),
    ),
    "log_format": Setting(
        LOG_FORMAT,
        MODES,
        default="`json` with `log_to`, otherwise `text`",
        help="Form of the log: a line of text or a JSON object for each event.",
    ),
    "log_to": Setting(
        Path,
        MODES,
        default="`-` with `log`",
        help="File to which the log is appended. `-`: standard error.",
    ),
    "upgrade": Setting(
        LOSSY,
        (DIRECTORY, *_SEVERAL),
        default="false",
        help=(
            "Whether the start takes over the state of another version of the app. `lossy`: also "
            "when data is lost."
        ),
    ),
    "renames": Setting(
        dict,
        (DIRECTORY, *_SEVERAL),
        needs="upgrade",
        default="none",
        help="Old names of tables and columns (`table.column`) with the new ones, for an upgrade.",
    ),
    "keep_cuts": Setting(
        bool, _ONE, default="false", help="Whether the engine remembers its cuts, for tests."
    ),
}

#: Settings of a cluster begin so.
CLUSTER_PREFIX: Final = "cluster_"

#: Those settings; see the guide for what they mean.
CLUSTER: Final[dict[str, Setting]] = {
    "cluster_name": Setting(
        str, _CLUSTER, default="the app's", help="Prefix of topics and objects of the cluster."
    ),
    "cluster_listen": Setting(
        str, _CLUSTER, default="127.0.0.1", help="Address on which a process listens."
    ),
    # All processes of one machine would have the same.
    "cluster_advertised": Setting(
        str,
        (COORDINATOR, WORKER),
        default="127.0.0.1",
        help="Address at which the others reach it. Default: where it listens.",
    ),
    # 'tidemill run --processes' makes one.
    "cluster_secret_file": Setting(
        Path,
        (COORDINATOR, WORKER),
        default="none",
        help="File with the secret that all processes of the cluster share.",
    ),
    "cluster_certificate": Setting(
        Path, _CLUSTER, default="none", help="Certificate (PEM) for TLS between processes."
    ),
    "cluster_key": Setting(
        Path, _CLUSTER, default="none", help="Private key (PEM) of the certificate."
    ),
    "cluster_authority": Setting(
        Path,
        _CLUSTER,
        default="none",
        help="Certificate (PEM) of the authority that signed the certificates of all processes.",
    ),
    "cluster_log": Setting(
        str,
        _CLUSTER,
        default="served",
        help="Log of the cluster: `kafka://host:port`, or one that the coordinator serves.",
    ),
    "cluster_cuts": Setting(
        CUTS,
        _CLUSTER,
        needs="cluster_log",
        default="log",
        help=(
            "Where cuts are recorded when the log is in Kafka: with it (`log`), or on the disk of"
            " the `coordinator`."
        ),
    ),
    "cluster_log_options": Setting(
        dict,
        _CLUSTER,
        needs="cluster_log",
        default="none",
        help="Properties of librdkafka for the log.",
    ),
    "cluster_log_replication": _int(
        1, 1_000, _CLUSTER, "cluster_log", default="1", help="Replicas of the log's topics."
    ),
    "cluster_snapshots": Setting(
        str,
        _CLUSTER,
        default="in the data directory",
        help="Where snapshots are: a directory that all reach, or `s3://bucket/prefix`.",
    ),
    "cluster_snapshots_allow_http": Setting(
        bool,
        _CLUSTER,
        needs="cluster_snapshots",
        default="false",
        help="Whether keys and rows may travel unencrypted to an S3 store on another machine.",
    ),
    "cluster_snapshots_timeout_us": _int(
        1,
        _LONG,
        _CLUSTER,
        "cluster_snapshots",
        default="60,000,000",
        help="Microseconds after which a request to S3 has failed.",
    ),
    "cluster_sources": _int(
        1,
        4_096,
        _CLUSTER,
        default="8",
        help="Inputs of the log. It never changes in the life of a log.",
    ),
    "cluster_lease_us": _int(
        1,
        _LONG,
        _CLUSTER,
        default="2,000,000",
        help="Microseconds of silence after which a process counts as lost.",
    ),
    "cluster_beat_us": _int(
        1, _LONG, _CLUSTER, default="100,000", help="Microseconds between signs of life."
    ),
    "cluster_form_us": _int(
        1,
        _LONG,
        _CLUSTER,
        default="10,000,000",
        help=(
            "Microseconds after which a generation that has not begun is given up. The next one "
            "has twice as long."
        ),
    ),
    "cluster_epoch_rows_max": _int(
        1,
        _ROWS,
        _CLUSTER,
        default="250",
        help=(
            "Requests of a source, or of one message, in an epoch. 2,500 where all transactions "
            "are declared with keys from the event; 32,768 events that run by column; fewer where "
            "rows slide a window by time 10,000 times."
        ),
    ),
    "cluster_together": _int(
        1,
        100_000,
        _CLUSTER,
        "cluster_log",
        default="1",
        help="Replies, or events of a stream, in one message of Kafka.",
    ),
    "cluster_message_bytes_max": _int(
        1,
        1 << 30,
        _CLUSTER,
        default="900,000",
        help="Bytes of a call, a reply or an event in the log.",
    ),
    "cluster_snapshot_us": _int(
        1, _LONG, _CLUSTER, default="1,000,000", help="Microseconds between snapshots."
    ),
}

#: All of them.
ALL: Final = SETTINGS | CLUSTER

PREFIX: Final = "TIDEMILL_"

#: Where settings are found, in words.
ENVIRONMENT: Final = "environment (TIDEMILL_...)"
COMMAND_LINE: Final = "command line"

_BOOLS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def checked_settings(
    given: Mapping[str, Any], origin: str, is_python: bool = False
) -> dict[str, Any]:
    """The settings, with their types; ``origin`` says where they were found, for errors.

    Outside of Python, texts stand for bools.
    """
    return {name: _checked(name, value, origin, is_python) for name, value in given.items()}


def _checked(name: str, value: Any, origin: str, is_python: bool) -> Any:
    setting = ALL.get(name)
    if setting is None:
        near = _native.nearest(name, list(ALL))
        raise SettingError(
            f"{origin}: there is no setting '{name}'",
            f"did you mean '{near}'?" if near else f"the settings are {', '.join(ALL)}",
        )
    kind = setting.kind
    if kind is LOSSY and value == LOSSY:
        return value
    if kind is bool or kind is LOSSY:
        texts = {} if is_python else _BOOLS
        found = value if isinstance(value, bool) else texts.get(str(value).lower())
        if found is None:
            yes, no, lossy = (
                ("True", "False", repr(LOSSY)) if is_python else ("true", "false", LOSSY)
            )
            others = f"{yes} or {no}" if kind is bool else f"{yes}, {no} or {lossy}"
            raise SettingError(f"{origin}: {name}={value!r} is not {others}", f"say {others}")
        return found
    if kind is dict:
        return _names(name, value, origin)
    if kind is Path:
        return _path(name, value, origin)
    if name == "log":
        return _log(value, origin)
    if kind is str:
        return _text(name, value, origin)
    if isinstance(kind, tuple):
        if value not in kind:
            what = f"{origin}: {name}={value!r} is none of {', '.join(kind)}"
            raise SettingError(what, _SAY[kind])
        return value
    return _integer(name, value, setting.range, origin)


def _integer(name: str, value: Any, range: tuple[int, int], origin: str) -> int:
    """An integer within its range; in a text digits may be set apart: ``8_000_000``."""
    low, high = range
    help = f"give an integer from {low:,} to {high:,}".replace(",", "_")
    text = value if isinstance(value, str) else str(value) if type(value) is int else ""
    if not re.fullmatch(r"-?[0-9]+(_[0-9]+)*", text, re.ASCII):
        raise SettingError(f"{origin}: {name}={_shown(value)} is not an integer", help)
    # Longer texts are not made numbers: that costs the square of their digits.
    digits = text.replace("_", "")
    number = int(digits) if len(digits) <= 40 else high + 1
    if digits.startswith("-") and number:
        raise SettingError(f"{origin}: {name}={_shown(value)} is negative", help)
    if not low <= number <= high:
        what = "small" if number < low else "large"
        raise SettingError(f"{origin}: {name}={_shown(value)} is too {what}", help)
    return number


def _text(name: str, value: Any, origin: str) -> str:
    """A text that people could have meant: not empty, on one line, and Unicode."""
    if not isinstance(value, str):
        raise SettingError(f"{origin}: {name}={_shown(value)} is not a text", "give a text")
    if not value.strip():
        raise SettingError(f"{origin}: {name}={value!r} is empty", "give a value, or leave it out")
    if not value.isprintable():
        raise SettingError(
            f"{origin}: {name}={_shown(value)} has characters that can't be printed",
            "write it on one line, in Unicode",
        )
    return value


def _log(value: Any, origin: str) -> str:
    """Directives for the log.

    >>> _log("inof", "--set")
    Traceback (most recent call last):
    tidemill.errors.SettingError: --set: log='inof': 'inof' is neither a level nor a target: did ...
    """
    text = _text("log", value, origin)
    if fault := _native.log_fault(text):
        what, help = fault
        raise SettingError(f"{origin}: log={_shown(text)}: {what}", help)
    return text


def _shown(value: object) -> str:
    """A value for an error: as Python writes it, but not at any length."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text):,} characters)"


def _path(name: str, value: Any, origin: str) -> str:
    try:
        path = os.fspath(value)
    except TypeError:
        path = None
    if not isinstance(path, str) or not path:
        raise SettingError(
            f"{origin}: {name}={_shown(value)} is not a path", "give the name of a file or folder"
        )
    return _text(name, path, origin)


def _names(name: str, value: Any, origin: str) -> dict[str, str]:
    """Names with what belongs to each (new names, roles), as a mapping or as text.

    >>> _names("renames", "accounts=clients, accounts.holder=clients.owner", "--set")
    {'accounts': 'clients', 'accounts.holder': 'clients.owner'}
    """
    # Passwords may be among properties, and errors are shown and kept.
    shown = "…" if name == "cluster_log_options" else _shown(value)
    if isinstance(value, str):
        pairs = (pair.partition("=") for pair in value.split(",") if pair.strip())
        value = {old.strip(): new.strip() for old, _, new in pairs} or None
    if isinstance(value, Mapping) and any(isinstance(new, Mapping) for new in value.values()):
        raise SettingError(
            f"{origin}: {name}={shown} has names without quotes",
            f'put names with a dot in quotes: {name} = {{"accounts.holder" = "accounts.owner"}}',
        )
    if not isinstance(value, Mapping) or not all(
        isinstance(text, str) and text for pair in value.items() for text in pair
    ):
        what, help = "old names to new ones", "old names with new ones: accounts=clients"
        if name == "http_roles":
            what, help = "names to roles", "names with roles: transfer=teller"
        elif name == "cluster_log_options":
            what = "properties of librdkafka to values"
            help = "properties with texts: security.protocol=ssl"
        raise SettingError(f"{origin}: {name}={shown} does not map {what}", f"give {help}")
    for text in (text for pair in value.items() for text in pair):
        # Certificates, among options, have several lines.
        lines = text.split("\n") if name == "cluster_log_options" else [text]
        if not all(line.isprintable() for line in lines):
            raise SettingError(
                f"{origin}: {name}={shown} has characters that can't be printed",
                "write each name on one line, in Unicode",
            )
    return dict(value)


def apart(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of an engine, and those of a cluster without their prefix.

    >>> apart({"workers": 2, "cluster_lease_us": 3_000_000})
    ({'workers': 2}, {'lease_us': 3000000})
    """
    engine = {k: v for k, v in settings.items() if not k.startswith(CLUSTER_PREFIX)}
    cluster = {
        name.removeprefix(CLUSTER_PREFIX): value
        for name, value in settings.items()
        if name not in engine
    }
    return engine, cluster


def in_memory(settings: Mapping[str, Any]) -> bool:
    """Whether nothing is to outlive the process."""
    return settings.get("data_dir") is None or settings.get("durable") == "none"


def placed(settings: Mapping[str, Any], app: str) -> dict[str, Any]:
    """The settings with a data directory: ``<app>.tidemill`` in the present folder by default.

    >>> placed({"workers": 2}, "my app/1")
    {'workers': 2, 'data_dir': 'my_app_1.tidemill'}
    >>> placed({"durable": "none"}, "ledger")
    {'durable': 'none'}
    """
    found = dict(settings)
    if found.get("durable") != "none":
        found.setdefault("data_dir", default_data_dir(app))
    return found


def default_data_dir(app: str) -> str:
    """The data directory of an app that names none."""
    return re.sub(r"[^\w.-]+", "_", app).lstrip(".") + ".tidemill"


#: Settings by where they were found.
Layers = Sequence[tuple[str, Mapping[str, Any]]]


def load(
    config: Path | None,
    app_folder: Path,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    mode: Callable[[Mapping[str, Any]], str] | None = None,
) -> dict[str, Any]:
    """All settings of a run: each from the last place that has it.

    ``mode`` says which way to run they are for; what means nothing there is refused. Without one
    nothing is run, and all settings of the app are taken.
    """
    layers: list[tuple[str, Mapping[str, Any]]] = []
    path = config or app_folder / "tidemill.toml"
    if config is not None or path.is_file():
        layers.append((str(path), checked_settings(_file(path), str(path))))
    layers.append((ENVIRONMENT, _environment(environ)))
    layers.append((COMMAND_LINE, checked_settings(flags, COMMAND_LINE)))
    settings: dict[str, Any] = {}
    for _, found in layers:
        settings |= found
    if mode is not None:
        refuse_idle(layers, mode(settings))
    return settings


def one_process(settings: Mapping[str, Any]) -> str:
    """Which mode an app is in that runs in one process."""
    return MEMORY if in_memory(settings) else DIRECTORY


def refuse_idle(layers: Layers, mode: str) -> None:
    """Refuses settings that mean nothing in a mode, with where they were found.

    A coordinator and its workers may be given the same file and environment; a flag is for the
    process that it is given to.

    >>> refuse_idle([("--set", {"epoch_idle": False})], PROCESSES)
    Traceback (most recent call last):
    tidemill.errors.SettingError: --set: epoch_idle means nothing for an app on several processes
      help: leave it out: it is for an app in one process
    """
    known = {name for _, found in layers for name in found}
    last = {name: (origin, value) for origin, found in layers for name, value in found.items()}
    if all(last.get(name, ("", False))[1] for name in ("fresh", "upgrade")):
        raise SettingError(
            f"{last['fresh'][0]}: fresh deletes the data that upgrade keeps",
            "give one of them: upgrade continues with the data of the older version",
        )
    for origin, found in layers:
        for name, value in found.items():
            setting = ALL[name]
            modes = setting.modes
            is_shared = mode in (COORDINATOR, WORKER) and origin != COMMAND_LINE
            if is_shared and (WORKER in modes or COORDINATOR in modes):
                modes = (*modes, mode)
            if mode not in modes:
                raise SettingError(
                    f"{origin}: {name} means nothing for {mode}",
                    f"leave it out: it is for {_or(setting.modes)}",
                )
            if mode == WORKER and WORKER not in setting.modes:
                # A worker does not know the coordinator's flags.
                continue
            missing = _missing(name, mode, known, layers)
            # Giving the default is no mistake.
            if missing and value is not False:
                raise SettingError(
                    f"{origin}: {name} means nothing without {missing}", "say both, or neither"
                )


def _missing(name: str, mode: str, known: set[str], layers: Layers) -> str:
    """The setting without which this one means nothing, if it is not given."""
    needs = ALL[name].needs
    if needs and needs not in known:
        return needs
    last = {key: value for _, found in layers for key, value in found.items()}
    if name == "snapshot_us" and last.get("durable") == "log":
        return "durable=log+snapshots"
    if name == "renames" and not last.get("upgrade"):
        return "upgrade"
    if name == "log_format" and not known & {"log", "log_to"}:
        return "log_to or log"
    # Clients follow an output over HTTP, or at the socket in the data directory.
    is_kept = name.startswith(("tail_", "dlq_"))
    return "http_port" if is_kept and mode == MEMORY and "http_port" not in known else ""


def _or(modes: Sequence[str]) -> str:
    """Modes in words: those that most people know.

    >>> _or(_ONE), _or(_CLUSTER), _or((DIRECTORY,))
    ('an app in one process', 'an app on several processes', 'an app with a data directory')
    """
    if modes == (DIRECTORY,):
        return "an app with a data directory"
    if DIRECTORY in modes:
        return "an app in one process" + (" or on several" if PROCESSES in modes else "")
    return PROCESSES if PROCESSES in modes else f"{COORDINATOR} or {WORKER}"


def _file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingError(f"{path} can't be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path} is not TOML: {error}") from None


def _environment(environ: Mapping[str, str]) -> dict[str, Any]:
    found = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(PREFIX)
    }
    return checked_settings(found, ENVIRONMENT)
