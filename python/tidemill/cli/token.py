"""``tidemill token``: makes a token, with which a client is authenticated.

The command adds the client to a file of tokens (the setting ``http_tokens``) and prints the token.
The file has only the token's hash, so store the token. A client that is in the file already gets a
new token.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import tomllib
from pathlib import Path
from typing import Any

from tidemill import _native
from tidemill.cli.output import printed
from tidemill.errors import IoError, SettingError


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "token", help="make a token for a client", description=__doc__
    )
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="file of tokens, which is created if missing"
    )
    parser.add_argument("name", metavar="NAME", help="name of the client")
    parser.add_argument(
        "--role",
        metavar="ROLE",
        action="append",
        default=[],
        help="role of the client; repeatable",
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Runs the command."""
    token = write(args.file, args.name, args.role)
    if args.json:
        printed({"name": args.name, "roles": args.role, "token": token})
    else:
        print(token)
    return 0


def write(file: Path, name: str, roles: list[str]) -> str:
    """Adds a client to a file of tokens, and returns its token."""
    if not re.fullmatch(r"[\w.@-]+", name):
        raise SettingError(
            f"'{name}' is not a valid name of a client", "use letters, digits and any of . _ - @"
        )
    clients = _read(file)
    token = "tm_" + secrets.token_urlsafe(32)
    clients[name] = {"sha256": _native.token_digest(token), "roles": roles}
    text = "# Clients and the hashes of their tokens. Written by tidemill token.\n"
    for client, entry in clients.items():
        # TOML has the same syntax as JSON for texts and lists of texts.
        fields = "".join(f"{field} = {json.dumps(value)}\n" for field, value in entry.items())
        text += f"\n[{json.dumps(client)}]\n{fields}"
    made = file.with_name(file.name + ".new")
    try:
        with open(made, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
            out.write(text)
        made.replace(file)
    except OSError as error:
        raise IoError(f"{file} can't be written: {error.strerror}") from None
    return token


def _read(file: Path) -> dict[str, dict[str, Any]]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingError(
            f"{file}: {error}", "give a file of tokens, or the name of a new one"
        ) from None
