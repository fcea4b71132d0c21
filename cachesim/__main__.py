"""`python -m cachesim` is `cachesim`."""

import sys

from cachesim.cli.main import main

sys.exit(main())
