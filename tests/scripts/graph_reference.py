"""What onnxruntime computes with the graphs in tests/fixtures/graphs: a file of checks for each, in the form
that manifests have them. `python3 tests/scripts/graph_reference.py`, with onnxruntime and numpy; the graphs
are written by `cargo test -p ruvllm-graph -- --ignored write_the_graphs`.

With a model of embeddings it prints the checks of that: `graph_reference.py MODEL.onnx TOKENIZER.json TEXT...`,
with the package tokenizers beside. With `--server URL NAME` before the texts it prints cosines instead: of the
vectors that the server gives by the model of that name with onnxruntime's, and of those of the texts. It fails
where one of the first is below 0.999, or where the second text, which is to be related to the first, is not nearer
to it than each of those after it.
"""

import json
import sys
import urllib.request
from pathlib import Path

import numpy as np
import onnxruntime

GRAPHS = Path(__file__).parent.parent / "fixtures" / "graphs"


# What a vector's cosine with onnxruntime's has to be at least: they differ by rounding alone.
LEAST_COSINE = 0.999


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
        source = f"onnxruntime {onnxruntime.__version__}, tests/scripts/graph_reference.py"
        checks = [check(session, one) for one in inputs]
        text = json.dumps({"source": source, "checks": checks}, separators=(",", ":"))
        (GRAPHS / f"{name}.json").write_text(text + "\n")


def encode(model, tokenizer, texts):
    """The inputs of each text, and what it is computed with."""
    from tokenizers import Tokenizer

    session = open_session(model)
    tokenizer = Tokenizer.from_file(tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    inputs = []
    for text in texts:
        ids = tokenizer.encode(text).ids
        given = {
            "input_ids": np.array([ids], dtype=np.int64),
            "attention_mask": np.ones((1, len(ids)), dtype=np.int64),
            "token_type_ids": np.zeros((1, len(ids)), dtype=np.int64),
        }
        inputs.append({one.name: given[one.name] for one in session.get_inputs()})
    return session, inputs


def encoder(model, tokenizer, texts):
    session, inputs = encode(model, tokenizer, texts)
    hidden = session.get_outputs()[0].name
    checks = [check(session, one, [hidden]) for one in inputs]
    print(json.dumps(checks, separators=(",", ":")))


def compare(model, tokenizer, server, name, texts):
    session, inputs = encode(model, tokenizer, texts)
    # The mean of all tokens, since there is no padding.
    reference = [session.run(None, one)[0][0].mean(axis=0) for one in inputs]
    body = json.dumps({"model": name, "input": texts}).encode()
    asked = urllib.request.Request(
        f"{server}/v1/embeddings", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked) as answer:
        vectors = [np.array(one["embedding"]) for one in json.load(answer)["data"]]

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    if len(vectors) != len(texts):
        sys.exit(f"{len(vectors)} vectors for {len(texts)} texts")
    with_reference = [cosine(ours, theirs) for ours, theirs in zip(vectors, reference)]
    with_first = [cosine(vectors[0], ours) for ours in vectors[1:]]
    for text, near in zip(texts, with_reference):
        print(f"{near:.6f} with onnxruntime: {text}")
    for text, near in zip(texts[1:], with_first):
        print(f"{near:.3f} with the first text: {text}")
    # What is not a number is no more than any bound.
    far = [text for text, near in zip(texts, with_reference) if not near >= LEAST_COSINE]
    if far:
        sys.exit(f"below {LEAST_COSINE} with onnxruntime: {far}")
    nearer = [text for text, near in zip(texts[2:], with_first[1:]) if not with_first[0] > near]
    if nearer:
        sys.exit(f"{texts[1]!r} is to be nearer to {texts[0]!r} than these are: {nearer}")


if len(sys.argv) > 3 and sys.argv[3] == "--server":
    compare(*sys.argv[1:3], *sys.argv[4:6], sys.argv[6:])
elif len(sys.argv) > 1:
    encoder(sys.argv[1], sys.argv[2], sys.argv[3:])
else:
    fixtures()
