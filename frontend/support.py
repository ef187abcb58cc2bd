"""The table of ONNX ops that this version imports, as Markdown: docs/onnx.md is generated from it.

python -c "from aot.frontend.support import support_page; print(support_page(), end='')" > docs/onnx.md
"""

from __future__ import annotations

import onnx

from aot.frontend.onnx_import import ONE_TO_ONE
from aot.frontend.onnx_model import NEWEST_OPSET, OLDEST_OPSET
from aot.frontend.onnx_registry import CONVERTERS

# What a supported op does not take.
LIMITS = {
    "Attention": "one `attention` op, or ONNX's function body for caches, softcap and windows",
    "AveragePool": "auto_pad with symbolic sizes only where padding is counted or the stride is 1",
    "BatchNormalization": "inference only",
    "Cast": "float8 casts saturate",
    "CastLike": "float8 casts saturate",
    "Constant": "no strings, no sparse values",
    "ConvTranspose": "no negative pads; output_shape needs fixed spatial sizes",
    "Dropout": "inference only (or ratio 0)",
    "If": "only if the condition is known when building",
    "MaxPool": "no Indices result",
    "OneHot": "the depth must be known when building",
    "Range": "start, limit and delta must be known when building, sizes of inputs included",
    "Resize": "no antialias, no tf_crop_and_resize",
}
_AT_BUILD = (
    "Axes, shapes, pads, splits, repeats, scales and k may be operands; their contents must be known when building: "
)


def _how(name: str) -> str:
    schema = onnx.defs.get_schema(name)
    if ("", name) in CONVERTERS or name == "If":
        return "converted"
    if name in ONE_TO_ONE:
        return f"`{ONE_TO_ONE[name]}`"
    if schema.has_function or schema.has_context_dependent_function:
        return "through its ONNX function body"
    return ""


def support_page() -> str:
    """docs/onnx.md."""
    names = sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""})
    rows = {name: _how(name) for name in names}
    supported = [name for name, how in rows.items() if how]
    lines = [
        "# ONNX operators",
        "",
        f"Generated from the converters by `aot.frontend.support` with onnx {onnx.__version__}; a test keeps it current.",
        "",
        f"Operator sets {OLDEST_OPSET} to {NEWEST_OPSET} of the default domain, {len(supported)} of {len(names)} ops. "
        "Functions that a model defines are inlined.",
        _AT_BUILD
        + "constants, or anything computed from the shapes of inputs. `aotc build --check MODEL` lists everything",
        "in a model that is not supported, with node names and counts.",
        "",
        "| op | imported as | limits |",
        "|---|---|---|",
        *(f"| {name} | {rows[name]} | {LIMITS.get(name, '')} |" for name in supported),
        "",
        "Not supported: " + ", ".join(name for name, how in rows.items() if not how) + ".",
        "",
        "## Dimensions",
        "",
        "A named dimension of an input becomes a symbol; the same name is the same symbol. Dimensions without a name, or",
        "named by an expression, get a symbol of their own, named after the input and axis. Where the model can only run if",
        "two sizes agree, the import finds the condition (an equality, a bound, a multiple), records it as a warning, and the",
        "artifact checks it before every run.",
        "",
    ]
    return "\n".join(lines)
