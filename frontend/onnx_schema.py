"""What the onnx package knows of an operator: its schema, the rules of a node, its function body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto

from aot.errors import ModelError
from aot.frontend import onnx_model
from aot.ir import Value


def schema_of(op_type: str, domain: str, version: int) -> Any:
    try:
        return onnx.defs.get_schema(op_type, max_inclusive_version=version, domain=domain)
    except onnx.defs.SchemaError:
        return None


def check_node(node: NodeProto, schema: Any, attributes: Mapping[str, AttributeProto], name: str) -> None:
    """Arity and attributes against the ONNX schema."""
    where = f"{name} ({node.op_type})"
    for what, count, least, most in (
        ("operands", len(node.input), schema.min_input, schema.max_input),
        ("results", len(node.output), schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            expected = str(least) if least == most else f"{least} or more" if most > 1 << 20 else f"{least} to {most}"
            raise ModelError(f"the op has {expected} {what}; the node has {count}", where=where)
    for attribute_name, attribute in attributes.items():
        if attribute_name not in schema.attributes:
            raise ModelError(f"the op has no attribute {attribute_name!r}", where=where)
        expected = schema.attributes[attribute_name].type.name.lower()
        found = onnx_model.attribute_kind(attribute)
        if expected != found and not (expected, found) == ("type_proto", "type"):
            raise ModelError(f"attribute {attribute_name!r} must be of type {expected}; it is {found}", where=where)
    for attribute_name, spec in schema.attributes.items():
        if spec.required and attribute_name not in attributes:
            raise ModelError(f"the attribute {attribute_name!r} is missing", where=where)


def function_body(
    schema: Any, node: NodeProto, version: int, inputs: Sequence[Value | None], given: Mapping[str, AttributeProto]
) -> FunctionProto | None:
    """The ONNX function body of an op that has one."""
    if schema.has_function:
        body = schema.get_function_with_opset_version(version) or schema.function_body
        return body if isinstance(body, FunctionProto) else _parsed_function(body)
    if not schema.has_context_dependent_function:
        return None
    types = []
    for position in range(len(node.input)):
        value = inputs[position] if position < len(inputs) else None
        proto = onnx.TypeProto()
        if value is not None:
            proto.tensor_type.elem_type = onnx_model.onnx_number(value.type.dtype)
            for extent in value.type.shape:
                dim = proto.tensor_type.shape.dim.add()
                if isinstance(extent, int):
                    dim.dim_value = extent
                else:
                    dim.dim_param = str(extent)
        types.append(proto.SerializeToString())
    resolved = NodeProto()
    resolved.CopyFrom(node)
    del resolved.attribute[:]
    resolved.attribute.extend(onnx_model.attributes_of(node, given, node.name).values())
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
    if not versions:
        return None
    made = schema.get_context_dependent_function_with_opset_version(max(versions), resolved.SerializeToString(), types)
    return _parsed_function(made)


def _parsed_function(made: Any) -> FunctionProto | None:
    if not made:
        return None
    if isinstance(made, FunctionProto):
        return made
    function = FunctionProto()
    function.ParseFromString(made)
    return function
