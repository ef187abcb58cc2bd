"""Kernels from a user's C source: what stands before it, the call of its function, and its faults.

The source sees operands as `aot_tensor`, its thread's number, scratch memory, and attributes as constants;
docs/custom_operators.md is the contract. Invariant: the text that is compiled has all that decides its code, so
that equal texts are one kernel, and the cache of objects needs no other key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from aot import dims as dimension
from aot.backend.base import Emitted
from aot.backend.cpu.code import Code, DimTable, literal, memory_type
from aot.backend.cpu.frame import bytes_moved, kernel_body
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.owned import owned_root, start
from aot.backend.cpu.prelude import functions
from aot.dims import Dim
from aot.dtypes import ALL, F32, F64, I64, DType
from aot.errors import CompilerError, OperatorError
from aot.ir import Attr, TensorType
from aot.kernel import Kernel, OwnedRoot
from aot.ops.opdef import OPS, KernelSource, infer

ALIGNMENT_BYTES = 64  # of scratch memory
HEADERS = frozenset(
    f"{name}.h" for name in (
        "float", "iso646", "limits", "stdalign", "stdarg", "stdbool", "stddef", "stdint", "stdnoreturn", "immintrin",
    )
)  # fmt: skip
"""What the compiler itself brings, and no library."""

UNARY = (
    "sqrt", "rsqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "asinh", "acosh", "atanh", "tanh", "erf", "sigmoid", "floor", "ceil", "round", "trunc", "abs", "sign",
)  # fmt: skip
BINARY = ("pow", "fmod", "min", "max")

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b[ \t]*(?:<([^>\n]*)>)?[^\n]*", re.MULTILINE)
_SCALAR = re.compile(r"\baot_([a-z0-9]+)_(f32|f64)\b")
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PLACE = re.compile(r"operator ([\w.]+):(\d+)(?::(\d+))?: (?:fatal )?error: (.*)", re.ASCII)
_UNDEFINED = re.compile(r"undefined (?:reference to|symbol:?) [`']?(\w+)")
_OPERATOR = re.compile(r'^#line 1 "operator ([\w.]+)"$', re.MULTILINE)

_BEFORE = """\
typedef struct { void *data; const i64 *shape, *strides; i64 elements; i32 rank, dtype; } aot_tensor;
typedef struct {
  const aot_tensor *inputs, *outputs; i32 input_count, output_count; void *scratch; i32 thread, thread_count;
} aot_call;
static inline __attribute__((unused)) void aot_share(const aot_call *call, i64 tasks, i64 *first, i64 *end) {
  *first = tasks * call->thread / call->thread_count; *end = tasks * (call->thread + 1) / call->thread_count;
}
"""
_STRICT = ("missing-prototypes", "incompatible-pointer-types", "int-conversion", "return-type")
"""Warnings that are errors in a user's source: what two kernels would clash over, and what is never meant."""


def emit_source(kernel: Kernel, isa: Isa) -> Emitted:
    """The kernel of an op whose entry has C source."""
    root = owned_root(kernel)
    source = OPS[root.op].sources["cpu"]
    types = [None if number is None else kernel.inputs[number].type for number in root.operands]
    declared = OPS[root.op].inputs
    types += [None] * (sum(not name.startswith("*") for name in declared) - len(types))  # omitted at the end
    text = _text(source, root, types)
    results = infer(root.op, root.attrs, [None if t is None else TensorType(t.dtype, t.shape) for t in types])
    code, dims, before = Code(), DimTable(), Code()
    _constants(before, root, types, results, isa)
    for name, dtype in sorted(set(_SCALAR.findall(text))):
        _scalar_function(before, name, dtype, isa)
    scratch = source.scratch_bytes(root.attrs, *types) if callable(source.scratch_bytes) else source.scratch_bytes
    if not isinstance(scratch, int | dimension.DimExpr) or (isinstance(scratch, int) and scratch < 0):
        raise OperatorError(f"scratch_bytes must be a number of bytes, not {scratch!r}", where=f"operator {root.op!r}")
    own = scratch = _aligned(scratch)
    with kernel_body(code, dims):
        start(kernel, dims, isa, code)
        places = [None if number is None else f"p{number}" for number in root.operands]
        places += [None] * (len(types) - len(places))
        _tensors(code, dims, "in", types, places)
        given: list[TensorType | None] = []
        places = []
        for number, type_ in zip(root.results, results, strict=True):
            if number is not None:
                given.append(kernel.outputs[number].type)
                places.append(f"p{len(kernel.inputs) + number}")
            else:  # nobody reads it; it is written all the same
                given.append(type_)
                places.append(f"((u8 *)args->scratch + {dims.text(scratch)})")
                scratch = _aligned(scratch + type_.bytes)
        _tensors(code, dims, "out", given, places)
        counts = f"{len(types)}, {len(results)}"
        code.line(
            f"const aot_call call = {{in_tensors, out_tensors, {counts}, "
            f"{'args->scratch' if own != 0 else '0'}, args->thread, args->thread_count}};"
        )
        code.line(f"{source.function}(&call);")
    strict = "".join(f'#pragma GCC diagnostic error "-W{name}"\n' for name in _STRICT)
    lines = (
        f"{_BEFORE}{before.text()}static void {source.function}(const aot_call *call);\n"
        f'#pragma GCC diagnostic push\n{strict}#line 1 "operator {root.op}"\n{text.rstrip()}\n'
        f'#line 1 "aotc"\n#pragma GCC diagnostic pop\n'
    )
    flops = results[0].elements * OPS[root.op].cost_flops
    return Emitted(
        lines + code.text(), dims.dims, f"C source of {root.op}", scratch_bytes=scratch, flops=flops,
        bytes_moved=bytes_moved(kernel),
    )  # fmt: skip


def _aligned(size: Dim) -> Dim:
    return dimension.ceildiv(size, ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _text(source: KernelSource, root: OwnedRoot, types: Sequence[TensorType | None]) -> str:
    where = f"operator {root.op!r}"
    text = source.text
    if not isinstance(text, str):
        try:
            text = text(root.attrs, *types)
        except Exception as error:
            raise OperatorError(f"the source raised {type(error).__name__}: {error}", where=where) from error
    if not isinstance(text, str):
        raise OperatorError(f"the source must be text, not {type(text).__name__}", where=where)
    if not re.search(rf"\b{source.function}\s*\(", text):
        hint = f"Define `static void {source.function}(const aot_call *call)`."
        raise OperatorError(f"the source has no function {source.function}", where=where, hint=hint)
    for include in _INCLUDE.finditer(text):
        if include[1] not in HEADERS:
            line = text.count("\n", 0, include.start()) + 1
            raise OperatorError(
                f"line {line}: {include[0].strip()}: kernels are compiled without a C library",
                where=where,
                hint=f"Allowed: {', '.join(sorted(HEADERS))}. Functions such as aot_exp_f32 need no header.",
            )
    return text


def _tensors(
    code: Code, dims: DimTable, prefix: str, types: Sequence[TensorType | None], places: Sequence[str | None]
) -> None:
    """Declares the array PREFIX_tensors, with shapes and strides as constants where they are known."""
    rows: list[str] = []
    for number, (type_, place) in enumerate(zip(types, places, strict=True)):
        if type_ is None or place is None:
            rows.append("{0}")
            continue
        names = (f"{prefix}{number}_shape", f"{prefix}{number}_strides")
        for name, values in zip(names, (type_.shape, type_.strides), strict=True):
            code.line(f"const i64 {name}[] = {{{', '.join(map(dims.text, values)) or '0'}}};")
        origin = "" if type_.origin_elements == 0 else f" + {dims.text(type_.origin_elements)}"
        rows.append(
            f"{{(void *)({place}{origin}), {names[0]}, {names[1]}, {dims.text(type_.elements)}, "
            f"{type_.rank}, {type_.dtype.number}}}"
        )
    code.line(f"const aot_tensor {prefix}_tensors[] = {{{', '.join(rows) or '{0}'}}};")


def _constants(
    code: Code, root: OwnedRoot, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType], isa: Isa
) -> None:
    """Macros of the instruction set, the element types and the attributes."""
    code.line(f"#define AOT_LANES {isa.lanes}")
    for dtype in ALL:
        code.line(f"#define AOT_{dtype.name.upper()} {dtype.number}")
    for prefix, types in (("IN", inputs), ("OUT", outputs)):
        for number, type_ in enumerate(types):
            if type_ is not None:
                code.line(f"#define {prefix}{number}_T {memory_type(type_.dtype)}")
                code.line(f"#define {prefix}{number}_DTYPE {type_.dtype.number}")
                code.line(f"#define {prefix}{number}_RANK {type_.rank}")
    specs = OPS[root.op].attrs
    # As a Python number beside an array of numpy: it does not make f32 arithmetic wider.
    real = F64 if any(type_ is not None and type_.dtype == F64 for type_ in (*inputs, *outputs)) else F32
    for name in sorted(root.attrs):
        if specs[name].type in ("dim", "dims"):  # may be known only when running; shapes of results tell
            continue
        _attribute(code, name, root.attrs[name], real if specs[name].type in ("float", "floats") else I64)


def _attribute(code: Code, name: str, value: Attr, dtype: DType) -> None:
    if isinstance(value, tuple):
        items = ", ".join(_number(item, dtype) for item in value)
        code.line(f"#define ATTR_{name}_COUNT {len(value)}")
        code.line(f"static const {dtype.name} ATTR_{name}[] __attribute__((unused)) = {{{items or '0'}}};")
    elif isinstance(value, str):
        code.line(f"#define ATTR_{name} {_quoted(value)}")
        if _WORD.fullmatch(value):
            code.line(f"#define ATTR_{name}_IS_{value} 1")
    elif isinstance(value, DType):
        code.line(f"#define ATTR_{name} {value.number}")
    else:
        code.line(f"#define ATTR_{name} {_number(value, dtype)}")


def _number(value: Attr, dtype: DType) -> str:
    if not isinstance(value, int | float):
        raise CompilerError(f"an attribute of a C kernel is {value!r}")
    return f"({literal(value, dtype)})"


def _quoted(text: str) -> str:
    """A C string of the UTF-8 bytes; octal escapes end after three digits, unlike hexadecimal ones."""
    plain = frozenset(b for b in range(32, 127)) - set(b'"\\?')
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'


def _scalar_function(code: Code, name: str, dtype: str, isa: Isa) -> None:
    """aot_NAME_DTYPE of single values, by the function of blocks; nothing for a name that is not there."""
    if f"{name}_{dtype}" not in functions(isa) or name not in (*UNARY, *BINARY):
        return
    names = ("x", "y")[: 1 + (name in BINARY)]
    parameters = ", ".join(f"{dtype} {n}" for n in names)
    blocks = ", ".join(f"splat_{dtype}({n})" for n in names)
    code.line(
        f"static inline __attribute__((unused)) {dtype} aot_{name}_{dtype}({parameters}) "
        f"{{ return {name}_{dtype}({blocks})[0]; }}"
    )


def compile_fault(source: str, messages: Sequence[str]) -> OperatorError | None:
    """What a C compiler's messages say of a user's source, with its lines; None if it is not a user's."""
    operator = _OPERATOR.search(source)
    if operator is None:
        return None
    lines = source[operator.end() + 1 :].split('\n#line 1 "aotc"\n')[0].split("\n")
    found: list[str] = []
    for message in messages:
        place = _PLACE.search(message)
        if place is None:
            continue
        number, column = int(place[2]), int(place[3] or 0)
        found.append(f"line {number}: {place[4]}")
        if 0 < number <= len(lines):
            found.append(f"  {number:4} | {lines[number - 1]}")
            if column:
                indent = re.sub(r"[^\t]", " ", lines[number - 1][: column - 1])
                found.append(f"       | {indent}^")
        if len(found) >= 12:
            break
    found = found or list(messages[:6])  # about what stands after the source
    hint = "Every function of the source must be static." if "prototype" in found[0] else ""
    if re.search(r"unterminated|end of input|invalid storage class|undeclared here", "".join(found)):
        hint = "Is a comment, a string or a brace left open?"
    hint = hint or "docs/custom_operators.md lists what a kernel may call."
    return OperatorError(
        "\n".join(["the C source does not compile:", *found]), where=f"operator {operator[1]!r}", hint=hint
    )


def link_fault(sources: Sequence[str], messages: Sequence[str]) -> OperatorError | None:
    """What a linker's messages say of users' sources (object N.o is of source N); None if nothing."""
    name = next((match[1] for message in messages if (match := _UNDEFINED.search(message))), None)
    objects = [int(match[1]) for message in messages for match in re.finditer(r"\b(\d+)\.o\b", message)]
    for number in objects:
        operator = _OPERATOR.search(sources[number]) if number < len(sources) else None
        if operator is not None and name is not None:
            return OperatorError(
                f"the C source calls {name}, which is not there: kernels are linked with no library",
                where=f"operator {operator[1]!r}",
                hint="Use the functions of docs/custom_operators.md, such as aot_exp_f32, or define it as static.",
            )
    return None
