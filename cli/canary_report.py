"""`aotc canary report`: a canary as one HTML page, from a controller's directory or from a file of records."""

from __future__ import annotations
