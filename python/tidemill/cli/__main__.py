"""``python -m tidemill.cli``."""

import sys

from tidemill.cli import main

sys.exit(main())
