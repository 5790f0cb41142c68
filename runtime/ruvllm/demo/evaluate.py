#!/usr/bin/env python3
"""Held-out perplexity of the committed GGUF, per token, each tale a document of its own (bos, tale, eos).

    evaluate.py [--model tales-q8_0.gguf] [--adapter adapters/pirate] [--style tale|pirate] [--count 200]

The weights are dequantised to F32 and run in transformers.
"""

import argparse
import math
import pathlib

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM

import export
import train

HERE = pathlib.Path(__file__).resolve().parent


def unpermute(w, heads):
    """Inverse of `export.permute`."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def load(path):
    """Model and tokenizer of a GGUF that `export.py` wrote."""
    reader = gguf.GGUFReader(path)
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    model = LlamaForCausalLM(train.config(*(reader.fields[f"llama.{k}"].contents() for k in ("embedding_length", "block_count"))))
    cfg, state = model.config, {}
    for name in model.state_dict():
        source = export.gguf_name(name)
        t = tensors["token_embd.weight" if source == "output.weight" else source].astype(np.float32)
        if "q_proj" in name:
            t = unpermute(t, cfg.num_attention_heads)
        elif "k_proj" in name:
            t = unpermute(t, cfg.num_key_value_heads)
        state[name] = torch.from_numpy(np.ascontiguousarray(t))
    model.load_state_dict(state)
    model.tie_weights()

    vocab = {t: i for i, t in enumerate(reader.fields["tokenizer.ggml.tokens"].contents())}
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    return model.eval(), tok


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", type=pathlib.Path, default=HERE / "tales-q8_0.gguf")
    ap.add_argument("--adapter", type=pathlib.Path)
    ap.add_argument("--style", choices=("tale", "pirate"), default="tale")
    ap.add_argument("--count", type=int, default=200)
    a = ap.parse_args()
    model, tok = load(a.model)
    if a.adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, a.adapter)
    nll, n = train.held_out_loss(model, tok, a.count, a.style)
    print(f"{a.style}: loss {nll:.4f} perplexity {math.exp(nll):.3f} over {n} tokens of {a.count} held-out tales")


if __name__ == "__main__":
    main()
