"""What onnxruntime computes with the graphs in tests/fixtures/graphs: a file of checks for each, in the form
that manifests have them. `python3 tests/scripts/graph_reference.py`, with onnxruntime and numpy; the graphs
are written by `cargo test -p ruvllm-graph -- --ignored write_the_graphs`.

With a model of embeddings it prints the checks of that: `graph_reference.py MODEL.onnx TOKENIZER.json TEXT...`,
with the package tokenizers beside.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

GRAPHS = Path(__file__).parent.parent / "fixtures" / "graphs"


def spread(shape):
    """Numbers from -1 to 1 in steps that binary32 has exactly."""
    count = int(np.prod(shape))
    return ((np.arange(count) * 37 % 64) / 32 - 1).astype(np.float32).reshape(shape)


INPUTS = {
    "mlp": [{"x": spread((3, 8))}, {"x": spread((1, 8)) * 4}],
    "convolution": [{"x": spread((1, 3, 16, 16))}],
    "encoder": [
        {
            "input_ids": np.array([[2, 9, 31, 4, 3], [2, 17, 3, 0, 0]], dtype=np.int64),
            "attention_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=np.int64),
        },
        {
            "input_ids": np.array([[2, 5, 3]], dtype=np.int64),
            "attention_mask": np.array([[1, 1, 1]], dtype=np.int64),
        },
    ],
}


def values(name, array):
    shape = [int(n) for n in array.shape]
    return {"name": name, "shape": shape, "values": [float(x) for x in array.flatten()]}


def check(session, inputs, outputs=None):
    names = outputs or [output.name for output in session.get_outputs()]
    computed = session.run(names, inputs)
    return {
        "inputs": [values(name, array) for name, array in inputs.items()],
        "outputs": [values(name, array) for name, array in zip(names, computed)],
    }


def open_session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def fixtures():
    for name, inputs in INPUTS.items():
        session = open_session(GRAPHS / f"{name}.onnx")
        checks = [check(session, one) for one in inputs]
        text = json.dumps(checks, indent=None, separators=(",", ":"))
        (GRAPHS / f"{name}.json").write_text(text + "\n")


def encoder(model, tokenizer, texts):
    from tokenizers import Tokenizer

    session = open_session(model)
    tokenizer = Tokenizer.from_file(tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    checks = []
    for text in texts:
        ids = tokenizer.encode(text).ids
        given = {
            "input_ids": np.array([ids], dtype=np.int64),
            "attention_mask": np.ones((1, len(ids)), dtype=np.int64),
            "token_type_ids": np.zeros((1, len(ids)), dtype=np.int64),
        }
        inputs = {one.name: given[one.name] for one in session.get_inputs()}
        checks.append(check(session, inputs, [session.get_outputs()[0].name]))
    print(json.dumps(checks, separators=(",", ":")))


if len(sys.argv) > 1:
    encoder(sys.argv[1], sys.argv[2], sys.argv[3:])
else:
    fixtures()
