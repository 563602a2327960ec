"""``python -m tidemill_bench``: the command ``tidemill``, with the engine of this package."""

import sys

from tidemill.cli import main

sys.exit(main())
