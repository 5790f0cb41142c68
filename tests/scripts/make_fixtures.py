#!/usr/bin/env python3
"""Writes small random models of each family and the logits that Hugging Face transformers gives for them.

    make_fixtures.py                              writes tests/fixtures/models/<family>/
    make_fixtures.py --check LLAMA_PERPLEXITY     compares the committed GGUF files with transformers in llama.cpp

A family directory holds `config.json`, `model.safetensors`, `tokenizer.json` (the same in all), `model-f32.gguf`
(the same weights under the conventions of llama.cpp's converter) and `expected.safetensors` with `input_ids`
(i32, [tokens]) and `logits` (f32, [tokens, vocab]) from eager attention in f32.

The sliding window of `mistral` is also written to the GGUF as `llama.attention.sliding_window`. llama.cpp's
converter leaves it out and llama.cpp ignores it for this architecture, so the check runs that family without it.
Everything is seeded: with the versions of requirements.txt the same bytes come out.
"""

import argparse
import json
import math
import pathlib
import re
import subprocess
import sys

import gguf
import numpy as np
import torch
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "runtime/ruvllm/demo"))
import corpus  # noqa: E402
import export  # noqa: E402

OUT = ROOT / "tests/fixtures/models"
VOCAB, CONTEXT, TOKENS = 320, 128, 24
TEXT = ROOT / "tests/fixtures/parity/tales.txt"

BASE = dict(
    hidden_act="silu", hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
    max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1, tie_word_embeddings=True,
    torch_dtype="float32", use_cache=True, rope_theta=10000.0,
)
LLAMA = dict(BASE, architectures=["LlamaForCausalLM"], model_type="llama", attention_bias=False, mlp_bias=False)
# Most files in the field state rope_theta and rope_scaling at the top level; newer ones nest both in rope_parameters.
FAMILIES = {
    "llama2": dict(LLAMA, tie_word_embeddings=False, intermediate_size=80, rope_scaling=None),
    "llama3": dict(
        LLAMA, num_key_value_heads=2, rope_theta=5000.0,
        rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    ),
    "mistral": dict(BASE, architectures=["MistralForCausalLM"], model_type="mistral", num_key_value_heads=2, sliding_window=8),
    "qwen2": dict(
        BASE, architectures=["Qwen2ForCausalLM"], model_type="qwen2", num_key_value_heads=2, rms_norm_eps=1e-6, rope_theta=1000000.0,
        sliding_window=CONTEXT, use_sliding_window=False, max_window_layers=2,
    ),
    "head_dim": dict(LLAMA, num_key_value_heads=2, head_dim=32, intermediate_size=64),
    "smollm": {
        **{k: v for k, v in LLAMA.items() if k not in ("rope_theta", "torch_dtype")}, "hidden_size": 48, "intermediate_size": 128, "num_hidden_layers": 3,
        "num_attention_heads": 3, "num_key_value_heads": 1, "dtype": "float32", "rope_parameters": dict(rope_type="default", rope_theta=10000.0),
    },
    "yarn": dict(
        LLAMA, hidden_size=48, intermediate_size=64, num_attention_heads=3, num_key_value_heads=1,
        rope_scaling=dict(rope_type="yarn", factor=2.0, original_max_position_embeddings=CONTEXT // 2),
    ),
}


def make_tokenizer():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        (corpus.tale(i) for i in range(50)),
        trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<|bos|>", "<|eos|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    tok.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    return tok


def head_dim(cfg):
    return cfg.get("head_dim") or cfg["hidden_size"] // cfg["num_attention_heads"]


def rope(cfg):
    """Base and scaling, from either layout of config.json."""
    nested = cfg.get("rope_parameters")
    return (nested["rope_theta"], None) if nested else (cfg["rope_theta"], cfg.get("rope_scaling"))


def weights(cfg, rng):
    """Random weights by Hugging Face name, large enough that attention is far from uniform and every bias and norm matters."""
    d, f, hd = cfg["hidden_size"], cfg["intermediate_size"], head_dim(cfg)
    q, kv = cfg["num_attention_heads"] * hd, cfg["num_key_value_heads"] * hd

    def matrix(rows, cols, gain=1.0):
        return (rng.standard_normal((rows, cols)) * gain / math.sqrt(cols)).astype(np.float32)

    def norm():
        return rng.uniform(0.5, 1.5, d).astype(np.float32)

    w = {"model.embed_tokens.weight": rng.standard_normal((VOCAB, d)).astype(np.float32) * np.float32(0.5), "model.norm.weight": norm()}
    if not cfg["tie_word_embeddings"]:
        w["lm_head.weight"] = matrix(VOCAB, d, 3.0)
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name, rows, cols, gain in (
            ("self_attn.q_proj", q, d, 2.0), ("self_attn.k_proj", kv, d, 2.0), ("self_attn.v_proj", kv, d, 1.0), ("self_attn.o_proj", d, q, 1.0),
            ("mlp.gate_proj", f, d, 1.5), ("mlp.up_proj", f, d, 1.0), ("mlp.down_proj", d, f, 1.0),
        ):
            w[f"{p}{name}.weight"] = matrix(rows, cols, gain)
            if cfg["model_type"] == "qwen2" and name[10:] in ("q_proj", "k_proj", "v_proj"):
                w[f"{p}{name}.bias"] = rng.standard_normal(rows).astype(np.float32)
        w[f"{p}input_layernorm.weight"], w[f"{p}post_attention_layernorm.weight"] = norm(), norm()
    return w


def llama3_factors(cfg, scaling):
    """What each rotary frequency is divided by, the content of `rope_freqs.weight`."""
    out = []
    for i in range(0, head_dim(cfg), 2):
        wave = 2 * math.pi * cfg["rope_theta"] ** (i / head_dim(cfg))
        old, low, high = scaling["original_max_position_embeddings"], scaling["low_freq_factor"], scaling["high_freq_factor"]
        smooth = min(1.0, max(0.0, (old / wave - low) / (high - low)))
        out.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(out, np.float32)


def write_gguf(path, family, cfg, w, tok):
    arch = "qwen2" if cfg["model_type"] == "qwen2" else "llama"
    theta, scaling = rope(cfg)
    g = gguf.GGUFWriter(path, arch)
    g.add_type(gguf.GGUFType.MODEL)
    g.add_name(f"random {family}")
    g.add_license("MIT OR Apache-2.0")
    g.add_context_length(cfg["max_position_embeddings"])
    g.add_embedding_length(cfg["hidden_size"])
    g.add_block_count(cfg["num_hidden_layers"])
    g.add_feed_forward_length(cfg["intermediate_size"])
    g.add_head_count(cfg["num_attention_heads"])
    g.add_head_count_kv(cfg["num_key_value_heads"])
    g.add_rope_freq_base(theta)
    g.add_layer_norm_rms_eps(cfg["rms_norm_eps"])
    g.add_file_type(gguf.LlamaFileType.ALL_F32)
    g.add_vocab_size(cfg["vocab_size"])
    if arch == "llama":
        g.add_rope_dimension_count(head_dim(cfg))
    if "head_dim" in cfg:
        g.add_key_length(cfg["head_dim"])
        g.add_value_length(cfg["head_dim"])
    if cfg["model_type"] == "mistral":
        g.add_sliding_window(cfg["sliding_window"])
    g.add_tokenizer_model("gpt2")
    g.add_tokenizer_pre("gpt-2")
    vocab = sorted(tok["model"]["vocab"], key=tok["model"]["vocab"].get)
    g.add_token_list(vocab)
    g.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (VOCAB - 2))
    g.add_token_merges([" ".join(m) for m in tok["model"]["merges"]])
    g.add_bos_token_id(0)
    g.add_eos_token_id(1)
    g.add_add_bos_token(True)
    if scaling and scaling["rope_type"] == "llama3":
        g.add_tensor("rope_freqs.weight", llama3_factors(cfg, scaling))
    elif scaling:
        g.add_rope_scaling_type(gguf.RopeScalingType(scaling["rope_type"]))
        g.add_rope_scaling_factor(scaling["factor"])
        g.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    for name, t in sorted(w.items()):
        if arch == "llama" and "q_proj" in name:
            t = export.permute(t, cfg["num_attention_heads"])
        elif arch == "llama" and "k_proj" in name:
            t = export.permute(t, cfg["num_key_value_heads"])
        g.add_tensor(export.gguf_name(name), np.ascontiguousarray(t))
    g.write_header_to_file()
    g.write_kv_data_to_file()
    g.write_tensors_to_file()
    g.close()


def load(path, **overrides):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager", **overrides).eval()


def generate():
    tok = make_tokenizer()
    for seed, (family, cfg) in enumerate(FAMILIES.items()):
        path = OUT / family
        path.mkdir(parents=True, exist_ok=True)
        tok.save(str(path / "tokenizer.json"))
        (path / "config.json").write_text(json.dumps(cfg, indent=2, sort_keys=True) + "\n")
        rng = np.random.default_rng(seed + 1)
        w = weights(cfg, rng)
        save_file(w, path / "model.safetensors", metadata={"format": "pt"})
        write_gguf(path / "model-f32.gguf", family, cfg, w, json.loads((path / "tokenizer.json").read_text()))
        ids = np.concatenate([[0], rng.integers(2, VOCAB, TOKENS - 1)]).astype(np.int32)
        with torch.no_grad():
            logits = load(path)(torch.tensor(ids[None].astype(np.int64))).logits[0].numpy()
        save_file({"input_ids": ids, "logits": np.ascontiguousarray(logits)}, path / "expected.safetensors")
        print(f"{family}: {sum(f.stat().st_size for f in path.iterdir()) / 1e3:.0f} kB, logits {logits.min():.2f} to {logits.max():.2f}")


@torch.no_grad()
def perplexity(model, ids, ctx):
    """llama-perplexity's definition: whole chunks, the first token replaced by bos, the second half of each scored."""
    total = n = 0
    for c in range(len(ids) // ctx):
        chunk = torch.tensor([ids[c * ctx : (c + 1) * ctx]])
        chunk[0, 0] = 0
        logits = model(chunk).logits[0].double()
        first = ctx // 2
        total += torch.nn.functional.cross_entropy(logits[first : ctx - 1], chunk[0, first + 1 :], reduction="sum").item()
        n += ctx - 1 - first
    return math.exp(total / n)


def check(tool):
    ctx, chunks, bad = 64, 16, 0
    for family in FAMILIES:
        path = OUT / family
        cmd = [tool, "-m", path / "model-f32.gguf", "-f", TEXT, "-c", ctx, "--chunks", chunks, "-ctk", "f32", "-ctv", "f32", "-fa", "off", "-t", 1]
        r = subprocess.run([str(c) for c in cmd], capture_output=True, text=True)
        found = re.search(r"Final estimate: PPL = ([0-9.]+)", r.stdout + r.stderr)
        ids = Tokenizer.from_file(str(path / "tokenizer.json")).encode(TEXT.read_text()).ids[: ctx * chunks]
        ours = perplexity(load(path, **({"sliding_window": None} if family == "mistral" else {})), ids, ctx)
        theirs = float(found[1]) if found else math.nan
        ok = abs(math.log(theirs / ours)) < 1e-4
        bad += not ok
        print(f"{family}: transformers {ours:.4f}, llama.cpp {theirs:.4f} {'equal' if ok else 'DIFFERENT'}")
        if not found:
            print(r.stderr[-2000:])
    sys.exit(bad)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--check", metavar="LLAMA_PERPLEXITY", help="compare instead of writing")
    a = ap.parse_args()
    check(a.check) if a.check else generate()


if __name__ == "__main__":
    main()
