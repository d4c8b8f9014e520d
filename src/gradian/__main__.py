"""`python -m gradian`."""

import sys

from gradian.cli import main

sys.exit(main())
