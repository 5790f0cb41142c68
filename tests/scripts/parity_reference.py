#!/usr/bin/env python3
"""Records what llama.cpp answers for the demo model in every weight type: greedy text and perplexity.

    cargo run -p ruvllm-tests --example demo_files -- DIR
    convert_lora_to_gguf.py --base CONFIG_DIR --outtype f32 --outfile PIRATE.gguf runtime/ruvllm/demo/adapters/pirate
    parity_reference.py --bin DIR_OF_LLAMA_CPP_BINARIES --files DIR --lora PIRATE.gguf

Writes tests/fixtures/parity/greedy.json (three prompts), tests/fixtures/parity/perplexity.json, in
tests/fixtures/parity/rope_scaling.json the perplexity of one type in contexts that scaled rotation stretches, and in
tests/fixtures/parity/lora.json texts and perplexity with the pirate adapter, on pirate.txt there (`corpus.py --style pirate
--held-out --count 16`). The converter is llama.cpp's; CONFIG_DIR holds a config.json with the model card's figures. With
--only-lora nothing else is written. Run again when the demo model changes. Needs nothing but Python.
"""

import argparse
import json
import pathlib
import re
import subprocess

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "tests/fixtures/parity"
FORMATS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
PROMPTS = ["Once upon a time", "One windy morning, a little fox named", "Nobody loved to"]
TOKENS, CONTEXT = 96, 256
# What the demo model was trained with, and how llama.cpp stretches it by a factor.
TRAINED, THETA, DIMS = 512, 10000.0, 32
METHODS = {
    "linear": lambda f: ["--rope-scaling", "linear", "--rope-scale", f],
    # It has no name for this method: the base is computed here.
    "ntk": lambda f: ["--rope-freq-base", THETA * f ** (DIMS / (DIMS - 2))],
    "yarn": lambda f: ["--rope-scaling", "yarn", "--rope-scale", f, "--yarn-orig-ctx", TRAINED],
}


def run(*cmd):
    r = subprocess.run([str(c) for c in cmd], capture_output=True, check=True, stdin=subprocess.DEVNULL)
    return r.stdout.decode(), r.stderr.decode()


def write(name, version, cases):
    (FIXTURES / name).write_text(json.dumps(dict(llama_cpp=version, cases=cases), indent=1) + "\n")


def perplexity_of(tool, model, context, *options, text="tales.txt"):
    # The tool sometimes ends before its log is written out.
    while True:
        out = run(tool, "-m", model, "-f", FIXTURES / text, "-c", context, "-t", 1, *options)
        if ppl := re.search(r"Final estimate: PPL = ([0-9.]+) \+/- ([0-9.]+)", "".join(out)):
            return dict(context=context, perplexity=float(ppl[1]), uncertainty=float(ppl[2]))


def greedy_text(tool, model, prompt, *options):
    out, _ = run(
        tool, "-m", model, "-p", prompt, "-n", TOKENS, "-c", 512, "--temp", 0, "--top-k", 1, "--repeat-penalty", 1,
        "-t", 1, "-no-cnv", "--no-warmup", "--ignore-eos", "--no-display-prompt", "--simple-io", "-fa", "off", *options,
    )
    # The tool ends its output with line breaks of its own.
    return out.rstrip("\n")


def with_adapter(a, version):
    cases = []
    for kind in ("F32", "Q8_0"):
        model = a.files / f"{kind}.gguf"
        for scale in (1.0, 0.5):
            options = ["--lora-scaled", f"{a.lora}:{scale}"]
            # In 8 bits rounding often decides between two tokens, except in the text that the adapter was trained for.
            prompts = PROMPTS if kind == "F32" else PROMPTS[:1] if scale == 1 else []
            texts = {prompt: greedy_text(a.bin / "llama-completion", model, prompt, *options) for prompt in prompts}
            case = perplexity_of(a.bin / "llama-perplexity", model, CONTEXT, *options, text="pirate.txt")
            cases.append(dict(format=kind, scale=scale, n=TOKENS, texts=texts, **case))
            print(cases[-1], flush=True)
    write("lora.json", version, cases)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bin", type=pathlib.Path, required=True)
    ap.add_argument("--files", type=pathlib.Path, required=True)
    ap.add_argument("--lora", type=pathlib.Path, required=True)
    ap.add_argument("--only-lora", action="store_true")
    a = ap.parse_args()
    version = re.search(r"version: (.*)", "".join(run(a.bin / "llama-completion", "--version")))
    version = version[1].strip() if version else "unknown"
    with_adapter(a, version)
    if a.only_lora:
        return
    greedy, perplexity = [], []
    for kind in FORMATS:
        model = a.files / f"{kind}.gguf"
        for prompt in PROMPTS:
            text = greedy_text(a.bin / "llama-completion", model, prompt)
            greedy.append(dict(format=kind, prompt=prompt, n=TOKENS, text=text))
        perplexity.append(dict(format=kind, **perplexity_of(a.bin / "llama-perplexity", model, CONTEXT)))
        print(kind, "perplexity", perplexity[-1]["perplexity"], "and", repr(greedy[-1]["text"][:60]), flush=True)
    write("greedy.json", version, greedy)
    write("perplexity.json", version, perplexity)
    scaled = []
    for method, options in METHODS.items():
        for factor in (2, 4):
            case = perplexity_of(a.bin / "llama-perplexity", a.files / "Q8_0.gguf", TRAINED * factor, *options(factor))
            scaled.append(dict(format="Q8_0", method=method, **case))
            print(scaled[-1], flush=True)
    write("rope_scaling.json", version, scaled)


if __name__ == "__main__":
    main()
