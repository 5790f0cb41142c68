#!/usr/bin/env python3
"""Writes a checkpoint of `train.py` as GGUF for llama.cpp-compatible engines.

    export.py CHECKPOINT OUT.gguf [--type q8_0|f16|f32]
"""

import argparse
import json
import pathlib

import gguf
import numpy as np
from safetensors.numpy import load_file

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}
TYPES = {
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
}
CHAT_TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def gguf_name(name):
    """`model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`."""
    fixed = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
    if name in fixed:
        return fixed[name]
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{NAMES[stem]}.{kind}"


def permute(w, heads):
    """Rows of a head from half-split to interleaved rotary order, the order that arch `llama` expects."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("checkpoint", type=pathlib.Path)
    ap.add_argument("out", type=pathlib.Path)
    ap.add_argument("--type", choices=TYPES, default="q8_0")
    a = ap.parse_args()
    cfg = json.loads((a.checkpoint / "config.json").read_text())
    tok = json.loads((a.checkpoint / "tokenizer.json").read_text())
    qtype, ftype = TYPES[a.type]

    w = gguf.GGUFWriter(a.out, "llama")
    w.add_type(gguf.GGUFType.MODEL)
    w.add_name("ruvllm tales")
    w.add_description("Tells short tales in English; trained from scratch on a generated corpus.")
    w.add_license("MIT OR Apache-2.0")
    w.add_languages(["en"])
    w.add_context_length(cfg["max_position_embeddings"])
    w.add_embedding_length(cfg["hidden_size"])
    w.add_block_count(cfg["num_hidden_layers"])
    w.add_feed_forward_length(cfg["intermediate_size"])
    w.add_head_count(cfg["num_attention_heads"])
    w.add_head_count_kv(cfg["num_key_value_heads"])
    w.add_rope_dimension_count(cfg["head_dim"])
    w.add_rope_freq_base((cfg.get("rope_parameters") or cfg)["rope_theta"])
    w.add_layer_norm_rms_eps(cfg["rms_norm_eps"])
    w.add_vocab_size(cfg["vocab_size"])
    w.add_file_type(ftype)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)

    vocab = sorted(tok["model"]["vocab"].items(), key=lambda kv: kv[1])
    special = {t["id"] for t in tok["added_tokens"]}
    if [i for _, i in vocab] != list(range(cfg["vocab_size"])):
        raise SystemExit("the tokenizer's ids do not cover the model's vocabulary")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list([t for t, _ in vocab])
    w.add_token_types([gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for _, i in vocab])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tok["model"]["merges"]])
    w.add_bos_token_id(cfg["bos_token_id"])
    w.add_eos_token_id(cfg["eos_token_id"])
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_chat_template(CHAT_TEMPLATE)

    for name, t in sorted(load_file(a.checkpoint / "model.safetensors").items()):
        if cfg["tie_word_embeddings"] and name == "lm_head.weight":
            continue
        t = t.astype(np.float32)
        if "q_proj" in name:
            t = permute(t, cfg["num_attention_heads"])
        elif "k_proj" in name:
            t = permute(t, cfg["num_key_value_heads"])
        kind = gguf.GGMLQuantizationType.F32 if t.ndim == 1 else qtype
        w.add_tensor(gguf_name(name), gguf.quants.quantize(t, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(f"{a.out}: {a.out.stat().st_size / 1e6:.2f} MB, {a.type}")


if __name__ == "__main__":
    main()
