"""Cuts the vocabularies that llama.cpp publishes for tests down to what their test texts can touch.

    python vocabularies.py ggml-vocab-llama-spm.gguf ggml-vocab-qwen2.gguf

Beside each file lie llama.cpp's texts (.inp) and the ids that it gives them (.out). A merge can only make
what the text holds, so tokens that occur in none of the texts can be left out without changing how one of
them is encoded. Ids are numbered anew in their old order. Writes tests/fixtures/vocabularies/NAME.json.
"""

import json
import pathlib
import sys

from gguf import GGUFReader

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures" / "vocabularies"
# What the test of long texts repeats.
RUNS = [unit * 200 for unit in ["a", " ", "\n", "1", "é", "!", " a1"]]
NORMAL = 1


def byte_alphabet():
    """The characters that byte-level BPE writes bytes as, by byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def main():
    for path in map(pathlib.Path, sys.argv[1:]):
        fields = {key: field.contents() for key, field in GGUFReader(path).fields.items()}
        get = lambda key: fields.get(f"tokenizer.ggml.{key}")
        texts = path.with_name(path.name + ".inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
        lines = path.with_name(path.name + ".out").read_text().splitlines()
        if get("model") == "llama":
            spelled = ["▁" + text.replace(" ", "▁") for text in texts + RUNS]
        else:
            alphabet = byte_alphabet()
            spelled = ["".join(alphabet[byte] for byte in text.encode()) for text in texts + RUNS]
        spelled = "\0".join(spelled)
        tokens, types = get("tokens"), get("token_type")
        kept = [
            id for id, text in enumerate(tokens)
            if types[id] != NORMAL or text in spelled or len(text) == 1 and get("merges")
        ]
        number = {id: new for new, id in enumerate(kept)}
        known = {tokens[id] for id in kept}
        fixture = {
            "model": get("model"),
            "pre": get("pre"),
            "tokens": [tokens[id] for id in kept],
            "types": [types[id] for id in kept],
        }
        if scores := get("scores"):
            fixture["scores"] = [scores[id] for id in kept]
        if merges := get("merges"):
            halves = [merge.split(" ") for merge in merges]
            fixture["merges"] = [f"{a} {b}" for a, b in halves if {a, b, a + b} <= known]
        for key in ["bos", "eos", "unknown"]:
            if (id := get(f"{key}_token_id")) is not None:
                fixture[key] = number[id]
        fixture["cases"] = [
            [text, [number[int(id)] for id in line.split()]] for text, line in zip(texts, lines)
        ]
        name = path.name.removeprefix("ggml-vocab-").removesuffix(".gguf")
        entries = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in fixture.items())
        (FIXTURES / f"{name}.json").write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")
        print(f"{name}: {len(kept)} of {len(tokens)} tokens, {len(fixture['cases'])} texts")


main()
