#!/usr/bin/env python3
"""Writes the frequencies and the attention factor that Hugging Face transformers computes for scaled rotations.

    rope_reference.py                 writes tests/fixtures/rope/reference.json

A case holds a `config.json` of a model, the length of its longest sequence, and what transformers' ROPE_INIT_FUNCTIONS
give for both. They compute in single precision; here `torch.float` stands for double while they run, so that the figures
can be compared to more than six digits. What they give as they are is checked to agree.
"""

import json
import pathlib

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/fixtures/rope/reference.json"

BASE = dict(
    model_type="llama", hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
    max_position_embeddings=2048, rms_norm_eps=1e-5, vocab_size=320, rope_theta=10000.0,
)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=2048)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
# Name, length of the sequence, configuration.
CASES = [
    ("linear", 8192, dict(BASE, rope_scaling=dict(rope_type="linear", factor=4.0))),
    ("dynamic, within the context", 1024, dict(BASE, rope_scaling=dict(rope_type="dynamic", factor=2.0))),
    ("dynamic, twice the context", 4096, dict(BASE, rope_scaling=dict(rope_type="dynamic", factor=2.0))),
    ("dynamic, in its old spelling", 5000, dict(BASE, rope_scaling=dict(type="dynamic", factor=4.0))),
    ("llama3", 65536, dict(BASE, max_position_embeddings=65536, rope_theta=500000.0, rope_scaling=LLAMA3)),
    ("llama3, heads of 128", 131072, dict(BASE, max_position_embeddings=131072, head_dim=128, rope_theta=500000.0, rope_scaling=LLAMA3)),
    ("yarn", 8192, dict(BASE, max_position_embeddings=8192, rope_scaling=YARN)),
    ("yarn, as Qwen2.5 is extended", 131072,
     dict(BASE, max_position_embeddings=32768, head_dim=128, rope_theta=1000000.0, rope_scaling=dict(YARN, original_max_position_embeddings=32768))),
    ("yarn, other bounds, not truncated", 8192, dict(BASE, rope_scaling=dict(YARN, beta_fast=16, beta_slow=2, truncate=False))),
    ("yarn, attention factor given", 8192, dict(BASE, rope_scaling=dict(YARN, attention_factor=1.25))),
    ("yarn, weights of the attention factor", 8192, dict(BASE, rope_scaling=dict(YARN, factor=40.0, mscale=1.0, mscale_all_dim=0.707))),
    ("yarn, context before it not stated", 4096, dict(BASE, rope_scaling=dict(rope_type="yarn", factor=2.0))),
    ("yarn, part of the head rotated", 8192, dict(BASE, head_dim=32, partial_rotary_factor=0.5, rope_scaling=YARN)),
]


def compute(cfg, length):
    # transformers changes what it is given.
    config = LlamaConfig(**json.loads(json.dumps(cfg)))
    kind = cfg["rope_scaling"].get("rope_type") or cfg["rope_scaling"]["type"]
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
    return frequencies, factor


def main():
    single = [compute(cfg, length) for _, length, cfg in CASES]
    torch.float = torch.float32 = torch.float64
    cases = []
    for (name, length, cfg), (rough, rough_factor) in zip(CASES, single):
        frequencies, factor = compute(cfg, length)
        assert frequencies.dtype == torch.float64 and factor == rough_factor
        assert torch.allclose(rough.double(), frequencies, rtol=2e-6, atol=0), name
        cases.append(dict(name=name, length=length, config=cfg, frequencies=frequencies.tolist(), attention_factor=factor))
        print(f"{name}: {frequencies[0]:.4g} to {frequencies[-1]:.4g}, attention factor {factor:.6f}")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
