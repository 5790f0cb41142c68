#!/usr/bin/env python3
"""Writes a GGUF of a real model's shape with random weights, for side-by-side speed runs that need no download.

    make_shape.py --shape tinyllama-1.1b --type q4_k_m OUT.gguf

Weights have a mean of zero and a deviation of 0.02, so that activations stay finite; norms are one. F16 is drawn
from the normal distribution; blocks of the other types have random integers. Tensors of a file have the types that
llama-quantize gives them. The text such a model writes is noise, and its speed is that of the real one. The
tokenizer is synthetic but complete: every byte has a token.

Needs: gguf==0.19.0, numpy==2.4.6. Peak memory is a few hundred megabytes.
"""

import argparse
import itertools
import pathlib
import string

import gguf
import numpy as np

SHAPES = {
    "tinyllama-1.1b": dict(dim=2048, ffn=5632, layers=22, heads=32, kv=4, vocab=32000, tied=False, context=2048, eps=1e-5, base=10000.0, tokenizer="spm"),
    "smollm-135m": dict(dim=576, ffn=1536, layers=30, heads=9, kv=3, vocab=49152, tied=True, context=2048, eps=1e-5, base=10000.0, tokenizer="bpe"),
}
SIGMA = 0.02
Type = gguf.GGMLQuantizationType
FILES = {
    "f16": (Type.F16, gguf.LlamaFileType.MOSTLY_F16), "q8_0": (Type.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (Type.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0), "q4_1": (Type.Q4_1, gguf.LlamaFileType.MOSTLY_Q4_1),
    "q5_0": (Type.Q5_0, gguf.LlamaFileType.MOSTLY_Q5_0), "q5_1": (Type.Q5_1, gguf.LlamaFileType.MOSTLY_Q5_1),
    "q4_k_m": (Type.Q4_K, gguf.LlamaFileType.MOSTLY_Q4_K_M), "q5_k_m": (Type.Q5_K, gguf.LlamaFileType.MOSTLY_Q5_K_M),
    "q6_k": (Type.Q6_K, gguf.LlamaFileType.MOSTLY_Q6_K),
}


def tensor_type(name, s, file):
    """The type that llama-quantize gives a tensor in a file of that name."""
    base = FILES[file][0]
    if base in (Type.F16, Type.Q8_0):
        return base
    if name == ("token_embd.weight" if s["tied"] else "output.weight"):
        return Type.Q6_K if s["dim"] % 256 == 0 else Type.Q8_0
    if file.endswith("_m") and name.rsplit(".", 2)[-2] in ("attn_v", "ffn_down"):
        # More bits for the first and the last eighth of the layers, and for every third between.
        i, n = int(name.split(".")[1]), s["layers"]
        if i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2:
            return Type.Q6_K
    return base


def blocks(rng, kind, count):
    """`count` blocks of a type as `[count, bytes]`: random integers, and scales for the deviation `SIGMA`."""
    out = rng.integers(0, 256, (count, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)

    def put(at, value):
        out[:, at:at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)

    uniform = lambda bits: ((1 << bits) ** 2 / 12) ** 0.5
    if kind == Type.Q6_K:
        # Scales of 5 bits, or that of the block would be subnormal.
        out[:, 192:208] = (out[:, 192:208] // 8).astype(np.int8) - 16
        put(208, SIGMA / (uniform(5) * uniform(6)))
        return out
    bits = int(kind.name[1])
    if kind in (Type.Q4_K, Type.Q5_K):
        # Their scales and minima have 6 bits; a minimum is half of what its scale spans.
        d = SIGMA / (2 ** 5 * uniform(bits) * 2)
        put(0, d)
        put(2, d * (2 ** bits - 1) / 2)
        return out
    d = SIGMA / uniform(bits)
    put(0, d)
    if kind in (Type.Q4_1, Type.Q5_1):
        put(2, -d * (2 ** bits - 1) / 2)
    return out


def words():
    """Endless distinct lower-case strings: two letters, three letters, and so on."""
    for n in itertools.count(2):
        yield from map("".join, itertools.product(string.ascii_lowercase, repeat=n))


def spm_vocabulary(w, size):
    """SentencePiece style: controls, byte tokens, single characters, then pieces with falling scores."""
    tokens, types = ["<unk>", "<s>", "</s>"], [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    tokens += [f"<0x{b:02X}>" for b in range(256)]
    types += [gguf.TokenType.BYTE] * 256
    seen = set(tokens)
    singles = ["\u2581"] + [chr(c) for c in range(33, 127)]
    pieces = (p for word in words() for p in (word, "\u2581" + word))
    for piece in itertools.chain(singles, pieces):
        if len(tokens) == size:
            break
        if piece not in seen:
            seen.add(piece)
            tokens.append(piece)
            types.append(gguf.TokenType.NORMAL)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores([0.0] * 259 + [-float(i) for i in range(size - 259)])
    w.add_token_types(types)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_add_bos_token(True)


def byte_characters():
    """The printable stand-in of every byte in byte-level BPE, in the order of the usual alphabet."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(len(rest))]


def bpe_vocabulary(w, size):
    """Byte-level BPE: two controls, the 256 byte tokens, then each merge's result."""
    space, tokens, merges = "\u0120", ["<|endoftext|>", "<|pad|>"] + byte_characters(), []
    known = set(tokens)

    def merge(left, right):
        if len(tokens) < size and left in known and left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
            merges.append(f"{left} {right}")

    for letter in string.ascii_lowercase:
        merge(space, letter)
    for word in words():
        if len(tokens) == size:
            break
        merge(word[:-1], word[-1])
        merge(space + word[:-1], word[-1])
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (size - 2))
    w.add_token_merges(merges)
    w.add_bos_token_id(0)
    w.add_eos_token_id(0)
    w.add_add_bos_token(False)


def tensors(s):
    """Name and numpy shape of every tensor of arch `llama`."""
    head = s["dim"] // s["heads"]
    yield "token_embd.weight", (s["vocab"], s["dim"])
    yield "output_norm.weight", (s["dim"],)
    if not s["tied"]:
        yield "output.weight", (s["vocab"], s["dim"])
    for i in range(s["layers"]):
        for name, shape in (
            ("attn_norm", (s["dim"],)), ("attn_q", (s["dim"], s["dim"])), ("attn_k", (s["kv"] * head, s["dim"])), ("attn_v", (s["kv"] * head, s["dim"])),
            ("attn_output", (s["dim"], s["dim"])), ("ffn_norm", (s["dim"],)), ("ffn_gate", (s["ffn"], s["dim"])), ("ffn_up", (s["ffn"], s["dim"])),
            ("ffn_down", (s["dim"], s["ffn"])),
        ):
            yield f"blk.{i}.{name}.weight", shape


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", type=pathlib.Path)
    ap.add_argument("--shape", choices=SHAPES, required=True)
    ap.add_argument("--type", choices=FILES, default="f16", help="type of the weights, as the file's name usually says it")
    ap.add_argument("--context", type=int, help="context length that the file allows; the shape's own when absent")
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()
    s = SHAPES[a.shape]
    if "_k" in a.type and s["dim"] % 256:
        ap.error(f"{a.type} has blocks of 256, and this shape's rows are no multiple of that")

    w = gguf.GGUFWriter(a.out, "llama")
    w.add_type(gguf.GGUFType.MODEL)
    w.add_name(f"{a.shape} shape, random weights")
    w.add_context_length(a.context or s["context"])
    w.add_embedding_length(s["dim"])
    w.add_block_count(s["layers"])
    w.add_feed_forward_length(s["ffn"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv"])
    w.add_rope_dimension_count(s["dim"] // s["heads"])
    w.add_rope_freq_base(s["base"])
    w.add_layer_norm_rms_eps(s["eps"])
    w.add_vocab_size(s["vocab"])
    w.add_file_type(FILES[a.type][1])
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    (spm_vocabulary if s["tokenizer"] == "spm" else bpe_vocabulary)(w, s["vocab"])

    # Sizes first, data one tensor at a time: the whole model is never in memory.
    layout = [(name, shape, Type.F32 if len(shape) == 1 else tensor_type(name, s, a.type)) for name, shape in tensors(s)]
    for name, shape, kind in layout:
        if kind in (Type.F32, Type.F16):
            dtype = np.dtype(np.float32 if kind == Type.F32 else np.float16)
            w.add_tensor_info(name, shape, dtype, int(np.prod(shape)) * dtype.itemsize)
        else:
            shape = gguf.quant_shape_to_byte_shape(shape, kind)
            w.add_tensor_info(name, shape, np.dtype(np.uint8), int(np.prod(shape)), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    rng = np.random.default_rng(a.seed)
    for _, shape, kind in layout:
        if kind == Type.F32:
            w.write_tensor_data(np.ones(shape, np.float32))
        elif kind == Type.F16:
            data = rng.standard_normal(shape, np.float32)
            data *= SIGMA
            w.write_tensor_data(data.astype(np.float16))
        else:
            w.write_tensor_data(blocks(rng, kind, int(np.prod(shape)) // gguf.GGML_QUANT_SIZES[kind][0]))
    w.close()
    print(f"{a.out}: {a.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
