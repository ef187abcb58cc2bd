"""Passes: pure functions Graph, Context -> Graph, one job each. `aot/pipeline.py` lists their order."""
