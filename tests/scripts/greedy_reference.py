#!/usr/bin/env python3
"""Records what llama.cpp answers for the demo model: greedy text and perplexity.

    greedy_reference.py --bin DIR_OF_LLAMA_CPP_BINARIES [--scratch DIR]

Writes tests/fixtures/greedy/expected.json (three prompts in F32, F16 and Q8_0; the F32 and F16 files are the
committed Q8_0 file dequantised) and tests/fixtures/perplexity/expected.json. Run again when the demo model changes.
"""

import argparse
import json
import pathlib
import re
import subprocess
import tempfile

import gguf
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "runtime/ruvllm/demo/tales-q8_0.gguf"
FIXTURES = ROOT / "tests/fixtures"
TYPES = {
    "F32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "F16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
}
PROMPTS = ["Once upon a time", "One windy morning, a little fox named", "Nobody loved to"]
TOKENS, CONTEXT = 96, 256


def convert(source, target, kind):
    """The same file with its matrices dequantised to another type; norms stay F32."""
    qtype, ftype = TYPES[kind]
    reader = gguf.GGUFReader(source)
    w = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, f in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        if f.types[0] == gguf.GGUFValueType.ARRAY:
            w.add_array(name, f.contents())
        else:
            w.add_key_value(name, f.contents(), f.types[0])
    w.add_file_type(ftype)
    for t in reader.tensors:
        data = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        to = gguf.GGMLQuantizationType.F32 if data.ndim == 1 else qtype
        w.add_tensor(t.name, gguf.quants.quantize(data, to), raw_dtype=to)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def run(*cmd):
    return subprocess.run([str(c) for c in cmd], capture_output=True, check=True, stdin=subprocess.DEVNULL)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bin", type=pathlib.Path, required=True)
    ap.add_argument("--scratch", type=pathlib.Path)
    a = ap.parse_args()
    scratch = a.scratch or pathlib.Path(tempfile.mkdtemp())
    scratch.mkdir(parents=True, exist_ok=True)
    files = {"Q8_0": MODEL}
    for kind in TYPES:
        files[kind] = scratch / f"tales-{kind.lower()}.gguf"
        convert(MODEL, files[kind], kind)

    v = run(a.bin / "llama-completion", "--version")
    version = re.search(r"version: (.*)", (v.stdout + v.stderr).decode())
    version = version[1].strip() if version else "unknown"
    cases = []
    for kind in ("F32", "F16", "Q8_0"):
        for prompt in PROMPTS:
            r = run(
                a.bin / "llama-completion", "-m", files[kind], "-p", prompt, "-n", TOKENS, "-c", 512, "--temp", 0, "--top-k", 1, "--repeat-penalty", 1,
                "-t", 1, "-no-cnv", "--no-warmup", "--ignore-eos", "--no-display-prompt", "--simple-io", "-fa", "off",
            )
            # The tool ends its output with line breaks of its own.
            cases.append(dict(format=kind, prompt=prompt, n=TOKENS, text=r.stdout.decode().rstrip("\n")))
            print(kind, repr(prompt), "->", repr(cases[-1]["text"][:100]), flush=True)
    out = FIXTURES / "greedy"
    out.mkdir(parents=True, exist_ok=True)
    (out / "expected.json").write_text(json.dumps(dict(llama_cpp=version, cases=cases), indent=1) + "\n")

    r = run(a.bin / "llama-perplexity", "-m", MODEL, "-f", FIXTURES / "perplexity/tales.txt", "-c", CONTEXT, "-t", 1)
    ppl = re.search(r"Final estimate: PPL = ([0-9.]+) \+/- ([0-9.]+)", (r.stdout + r.stderr).decode())
    expected = dict(llama_cpp=version, format="Q8_0", context=CONTEXT, file="tales.txt", perplexity=float(ppl[1]), uncertainty=float(ppl[2]))
    (FIXTURES / "perplexity/expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(f"perplexity {expected['perplexity']} +/- {expected['uncertainty']}")


if __name__ == "__main__":
    main()
