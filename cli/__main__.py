"""`python -m aot.cli` is `aotc`."""

import sys

from aot.cli.main import main

sys.exit(main())
