"""Writes audio.onnx: Snake between a product and a sum, then an envelope. python make_model.py [FILE]"""

import sys

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

nodes = [
    helper.make_node("Mul", ["x", "gain"], ["loud"], "gain"),
    helper.make_node("Snake", ["loud", "alpha"], ["bent"], "snake", domain="com.acme"),
    helper.make_node("Add", ["bent", "x"], ["mixed"], "mix"),
    helper.make_node(
        "Envelope", ["mixed"], ["level", "last"], "follow", domain="com.acme", attack_rate=0.5, release_rate=0.05
    ),
    helper.make_node("Sqrt", ["level"], ["loudness"], "root"),
]
weights = [
    numpy_helper.from_array(np.array(1.5, np.float32), "gain"),
    numpy_helper.from_array(np.array([[0.5], [1.0], [2.0]], np.float32), "alpha"),
]
graph = helper.make_graph(
    nodes,
    "audio",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "time"])],
    [
        helper.make_tensor_value_info("loudness", TensorProto.FLOAT, ["batch", 3, "time"]),
        helper.make_tensor_value_info("last", TensorProto.FLOAT, ["batch", 3]),
    ],
    weights,
)
opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
save(helper.make_model(graph, opset_imports=opsets, ir_version=8), sys.argv[1] if len(sys.argv) > 1 else "audio.onnx")
