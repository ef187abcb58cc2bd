"""The pass manager: verification, dumps, disable, bisect, records and failure reports."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import pytest

import aot.transforms
from aot.builder import Builder
from aot.dtypes import F32
from aot.errors import CompilerError, OptionError, UnsupportedError
from aot.ir import Graph, Level, live, rewire
from aot.options import CompileOptions
from aot.passes import Context, Pass, PassFailure, PassManager, check_disable, transform, unique_names
from aot.pattern import Rule
from aot.pipeline import PIPELINE
from aot.text import parse_graph, print_graph


def negations(count: int = 6) -> Graph:
    """neg of neg of … of x; node i comes from the user's node neg_i."""
    builder = Builder("chain")
    value = builder.input("x", F32, (4,))
    for i in range(count):
        with builder.at(f"neg_{i}"):
            value = builder.neg(value)
    return builder.finish([value])


@transform(takes=Level.CORE, gives=Level.CORE, rules=("double-neg",))
def cancel(graph: Graph, context: Context) -> Graph:
    """Removes each pair of negations that it may."""
    for node in graph.nodes:
        producer = graph.producer.get(node.operands[0])
        if producer is None:
            context.refuse("double-neg", node.where, "its operand is an input")
        elif context.allow("double-neg", node.where):
            mapping = {node.output: producer.operands[0]}
            outputs = tuple(mapping.get(value, value) for value in graph.outputs)
            kept = tuple(n for n in graph.nodes if n is not node)
            return live(graph.with_(nodes=rewire(kept, mapping), outputs=outputs))
    return graph


@transform(takes=Level.CORE, gives=Level.CORE)
def nothing(graph: Graph, context: Context) -> Graph:
    """Does nothing."""
    context.note("looked and found nothing")
    return graph


@transform(takes=Level.CORE, gives=Level.CORE)
def corrupt(graph: Graph, context: Context) -> Graph:
    nodes = list(graph.nodes)
    nodes[2] = replace(nodes[2], attrs=MappingProxyType({"colour": 1}))
    return graph.with_(nodes=tuple(nodes))


@transform(takes=Level.CORE, gives=Level.CORE)
def crash(graph: Graph, context: Context) -> Graph:
    raise KeyError("lost")


@transform(takes=Level.CORE, gives=Level.FUSED)
def lower_all(graph: Graph, context: Context) -> Graph:
    return graph.with_(nodes=(), outputs=(), level=Level.FUSED)


def run(
    passes: list[Pass], graph: Graph, options: CompileOptions | None = None, until: str = ""
) -> tuple[Graph, PassManager]:
    manager = PassManager(passes, Context(options or CompileOptions()))
    return manager.run(graph, until=until), manager


def test_a_pass_is_a_function_with_a_name() -> None:
    assert (cancel.name, cancel.takes, cancel.gives) == ("cancel", Level.CORE, Level.CORE)
    assert cancel.doc == "Removes each pair of negations that it may."
    assert len(cancel(negations(), Context()).nodes) == 4


def test_records() -> None:
    result, manager = run([cancel, nothing, cancel], negations())
    assert len(result.nodes) == 2
    records = [(r.name, r.changed, r.nodes_before, r.nodes_after, r.rewrites) for r in manager.records]
    assert records == [("cancel", True, 6, 4, 1), ("nothing", False, 4, 4, 0), ("cancel", True, 4, 2, 1)]
    assert all(record.seconds >= 0 for record in manager.records)
    assert manager.context.rewrites.by_rule == {"double-neg": 2}
    assert manager.context.diagnostics.notes == ("looked and found nothing",)


def test_until_stops_and_must_exist() -> None:
    _, manager = run([cancel, nothing, cancel], negations(), until="nothing")
    assert [record.name for record in manager.records] == ["cancel", "nothing"]
    with pytest.raises(OptionError, match="Passes: cancel, nothing"):
        run([cancel, nothing], negations(), until="fuse")


def test_dumps_are_numbered_and_only_written_on_change(tmp_path: Path) -> None:
    result, _ = run([cancel, nothing, cancel], negations(), CompileOptions(dump_dir=tmp_path / "dump"))
    names = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert names == ["000-input.air", "001-cancel.air", "002-cancel.air"]
    text = (tmp_path / "dump" / "002-cancel.air").read_text()
    assert text == print_graph(result) == print_graph(parse_graph(text))


def test_a_second_manager_goes_on_numbering(tmp_path: Path) -> None:
    options = CompileOptions(dump_dir=tmp_path)
    first, _ = run([cancel], negations(), options)
    run([cancel], first, options)
    run([cancel], negations(), options)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["000-input.air", "001-cancel.air", "002-cancel.air", "003-input.air", "004-cancel.air"]


def test_disable() -> None:
    for entry, nodes in (("cancel", 6), ("cancel:1", 4), ("cancel:2", 4), ("double-neg", 6), ("nothing", 2)):
        result, manager = run([cancel, nothing, cancel], negations(), CompileOptions(disable=(entry,)))
        assert len(result.nodes) == nodes, entry
        assert [record.disabled for record in manager.records].count(True) == {"cancel": 2, "double-neg": 0}.get(
            entry, 1
        )


def test_disable_refuses_what_makes_no_sense() -> None:
    with pytest.raises(OptionError, match="Runs of it: cancel:1, cancel:2"):
        check_disable([cancel, cancel], ("cancel:3",))
    with pytest.raises(OptionError, match="lower_all cannot be disabled"):
        check_disable([lower_all], ("lower_all",))
    for entry, close in (("cancle", "cancel"), ("double_neg", "double-neg"), ("cancle:2", "cancel")):
        with pytest.raises(OptionError, match=f"Did you mean {close}") as caught:
            check_disable([cancel, nothing], (entry,))
        assert caught.value.message == f"no pass and no rule {entry.partition(':')[0]!r} to disable"
    with pytest.raises(OptionError, match="no pass and no rule 'zzz' to disable\n  hint: `aotc opt --list`"):
        check_disable([cancel], ("zzz",))


def test_disable_knows_passes_of_other_lists_and_rules() -> None:
    check_disable([nothing], ("cancel", "double-neg", "nothing:1"), [cancel])
    check_disable(PIPELINE, ("fold", "simplify:2", "in_place", "order:1", *PIPELINE[2].rules))
    for entry in ("order:2", "in_place:1"):
        with pytest.raises(OptionError):
            check_disable(PIPELINE, (entry,))


def test_every_rule_that_fires_can_be_disabled() -> None:
    names = {name for item in PIPELINE for name in (item.name, *item.rules)}
    asked = set()
    for path in Path(aot.transforms.__path__[0]).glob("*.py"):
        asked |= set(re.findall(r"\.allow\(\"(\w+)\"", path.read_text()))
        asked |= {rule.name for rule in vars(import_module(f"aot.transforms.{path.stem}")).values()
                  if isinstance(rule, Rule)}  # fmt: skip
    assert {"fold", "fuse", "in_place"} <= asked
    assert asked <= names


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 9])
def test_bisect_lets_the_first_rewrites_through(limit: int) -> None:
    result, manager = run([cancel] * 5, negations(), CompileOptions(bisect=limit))
    assert len(result.nodes) == 6 - 2 * min(limit, 3)
    assert manager.context.rewrites.fired == min(limit, 3)
    if limit:
        assert manager.context.rewrites.last.startswith("double-neg at neg (neg_")


def test_why() -> None:
    _, manager = run([cancel], negations())
    (refusal,) = manager.context.diagnostics.why("double-neg", "neg_0")
    assert str(refusal) == "double-neg at neg (neg_0): its operand is an input"
    assert manager.context.diagnostics.why("*", "neg_0") == (refusal,)
    assert manager.context.diagnostics.why("other", "neg_0") == ()
    manager.context.refuse("double-neg", "neg (neg_0)", "its operand is an input")
    assert len(manager.context.diagnostics.refusals) == 1


def test_a_broken_result_names_pass_node_and_command(tmp_path: Path) -> None:
    with pytest.raises(PassFailure) as caught:
        run([cancel, corrupt], negations(), CompileOptions(dump_dir=tmp_path))
    error = caught.value
    assert "pass corrupt gave a graph that does not verify: unknown attribute 'colour'" in error.message
    assert "colour=1} ; neg_" in error.message  # the line of IR
    assert "neg_" in error.where
    assert error.hint == f"Reproduce it with: aotc opt --pass corrupt {tmp_path / '002-before-corrupt.air'}"
    assert error.dump is not None
    with pytest.raises(PassFailure):  # and it does reproduce
        run([corrupt], parse_graph(error.dump.read_text()), CompileOptions(dump_dir=tmp_path))


def test_a_crash_is_reported_the_same_way_without_a_dump_folder() -> None:
    with pytest.raises(PassFailure, match="pass crash failed: KeyError: 'lost'") as caught:
        run([crash], negations())
    path = re.search(r"(\S+\.air)", caught.value.hint)
    assert path is not None and Path(path[1]).read_text() == print_graph(negations())
    Path(path[1]).unlink()
    Path(path[1]).parent.rmdir()


def test_errors_of_the_user_pass_through() -> None:
    @transform(takes=Level.CORE, gives=Level.CORE)
    def refuse(graph: Graph, context: Context) -> Graph:
        raise UnsupportedError("no such op", where="node_7")

    with pytest.raises(UnsupportedError, match="node_7: no such op"):
        run([refuse], negations())


def test_levels_are_checked(tmp_path: Path) -> None:
    options = CompileOptions(dump_dir=tmp_path)
    with pytest.raises(CompilerError, match="takes level core, the graph is at fused"):
        run([lower_all, cancel], negations(), options)

    @transform(takes=Level.CORE, gives=Level.FUSED, name="liar")
    def wrong_level(graph: Graph, context: Context) -> Graph:
        return cancel(graph, context)

    with pytest.raises(PassFailure, match="it promises level fused and gave core"):
        run([wrong_level], negations(), options)
    with pytest.raises(PassFailure, match="it promises level fused and returned its input"):
        run([wrong_level], negations(0), options)


def test_input_is_verified() -> None:
    graph = negations()
    with pytest.raises(CompilerError, match="used before"):
        run([cancel], graph.with_(nodes=graph.nodes[::-1]))


def test_progress_is_told() -> None:
    seen: list[str] = []
    PassManager([cancel, nothing], Context(), seen.append).run(negations())
    assert seen == ["cancel", "nothing"] == unique_names([cancel, nothing, cancel])
