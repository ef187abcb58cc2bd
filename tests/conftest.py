"""What all tests share: Triton's interpreter, which must be asked for before anything imports Triton."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # cubins are compiled in processes that do not have it
