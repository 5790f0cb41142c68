#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets from committed files. Run in any directory; needs no packages."""

import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DIST = ROOT / "kernel-packs/core/dist"


def seed(target, name, data):
    path = HERE / "seeds" / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def ustar(name, data):
    """One entry as packs are archived: everything that could vary is fixed."""
    head = bytearray(512)

    def put(at, text):
        head[at : at + len(text)] = text

    put(0, name.encode())
    put(100, b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % len(data) + b"00000000000\0")
    put(148, b" " * 8)
    put(156, b"0")
    put(257, b"ustar\x0000")
    put(329, b"0000000\0" * 2)
    put(148, b"%06o\0 " % sum(head))
    return bytes(head) + data + bytes(-len(data) % 512)


def gguf(version, tensors, metadata):
    """A GGUF file of F32 tensors."""

    def string(text):
        return struct.pack("<Q", len(text)) + text.encode()

    def value(v):
        if isinstance(v, str):
            return struct.pack("<I", 8) + string(v)
        if isinstance(v, float):
            return struct.pack("<If", 6, v)
        if isinstance(v, list):
            return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(string(x) for x in v)
        return struct.pack("<II", 4, v)

    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    out += b"".join(string(k) + value(v) for k, v in metadata.items())
    offset, data = 0, b""
    for name, shape in tensors.items():
        count = 1
        for n in shape:
            count *= n
        out += string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", 0, offset)
        data += bytes(4 * count) + bytes(-4 * count % 32)
        offset = len(data)
    return out + bytes(-len(out) % 32) + data


def main():
    manifest = (DIST / "kernels.json").read_bytes()
    signature = (DIST / "kernels.json.sig").read_bytes()
    seed("manifest", "core.json", manifest)
    seed("manifest", "example.json", (ROOT / "manifests/schema/example.json").read_bytes())
    seed("envelope", "core.sig", signature)
    unpack = next(DIST.glob("*/kv_unpack_q8.wasm"))
    entries = [("kernels.json", manifest), ("kernels.json.sig", signature), ("kv/kv_unpack_q8.wasm", unpack.read_bytes())]
    seed("pack_reader", "some.rkp", b"".join(ustar(*e) for e in entries) + bytes(1024))
    seed("pack_reader", "empty.rkp", bytes(1024))
    for name in ("kv_unpack_q8", "kv_unpack_q4", "kv_pack_q8"):
        seed("module_gate", f"{name}.wasm", next(DIST.glob(f"*/{name}.wasm")).read_bytes())
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.tokens": ["<s>", "</s>", "a", "b"],
    }
    tensors = {"token_embd.weight": [8, 4], "blk.0.attn_norm.weight": [8]}
    for version in (2, 3):
        seed("gguf_header", f"v{version}.gguf", gguf(version, tensors, metadata))
    regions = [(64, 32), (128, 8), (192, 32), (256, 64), (320, 12), (384, 32), (448, 32)]
    descriptor = b"".join(struct.pack("<II", *r) for r in regions)
    seed("descriptor", "sound.bin", descriptor + struct.pack("<H", 0) + bytes([2, 2, 2]) + bytes(range(256)) * 2)


main()
