"""``python -m jetspark.cli``."""

import sys

from jetspark.cli import main

sys.exit(main())
