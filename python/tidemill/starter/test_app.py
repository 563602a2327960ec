"""Tests of the app: `python -m unittest` runs them."""

import contextlib
import tempfile
import unittest

from app import app


class Reservations(unittest.TestCase):
    """Runs the whole input in memory, in an empty folder."""

    def setUp(self) -> None:
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.stack.enter_context(contextlib.chdir(folder))

    def test_no_show_is_oversold(self) -> None:
        with app.start() as mill:
            summary = mill.finish()
            left = {row["show"]: row["left"] for row in mill.table("seats").rows()}
        self.assertEqual(left, {"Hamlet": 0, "Tosca": 1})
        self.assertEqual(summary["refused"], 2)


if __name__ == "__main__":
    unittest.main()
