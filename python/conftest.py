"""Examples of methods use the app that the example of their class declares."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from typing import Any

import pytest

import tidemill as tm

#: The classes, by the beginnings of the names of examples.
CLASSES = {
    "tidemill.mill.": tm.Mill,
    "tidemill.client.Client.": tm.Client,
    "tidemill.client.AsyncClient.": tm.AsyncClient,
}


@pytest.fixture(autouse=True)
def declared(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> Iterator[None]:
    """Executes the declarations of a class's example, up to its start."""
    for begin, cls in CLASSES.items():
        if request.node.name.startswith(begin) and request.node.name != f"{begin}Mill":
            for example in doctest.DocTestParser().get_examples(cls.__doc__ or ""):
                if example.source.startswith("with "):
                    break
                exec(
                    compile(example.source, f"<example of {cls.__name__}>", "exec"),
                    doctest_namespace,
                )
    yield
    # Other examples declare what they use.
    doctest_namespace.clear()
