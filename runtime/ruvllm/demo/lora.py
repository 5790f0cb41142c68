#!/usr/bin/env python3
"""Trains the pirate adapter on the committed GGUF and saves it in the Hugging Face PEFT layout.

    lora.py [--out adapters/pirate] [--minutes 4]
"""

import argparse
import json
import math
import pathlib
import time

import torch
from peft import LoraConfig, get_peft_model

import evaluate
import train


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--base", type=pathlib.Path, default=evaluate.HERE / "tales-q8_0.gguf")
    ap.add_argument("--out", type=pathlib.Path, default=evaluate.HERE / "adapters/pirate")
    ap.add_argument("--minutes", type=float, default=4)
    ap.add_argument("--rows", type=int, default=4)
    ap.add_argument("--length", type=int, default=256)
    ap.add_argument("--lr", type=float, default=6e-3)
    ap.add_argument("--threads", type=int, default=2)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    model, tok = evaluate.load(a.base)
    model = get_peft_model(
        model,
        LoraConfig(
            r=8, lora_alpha=16, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        ),
    ).train()
    params = [p for p in model.parameters() if p.requires_grad]
    print(f"{sum(p.numel() for p in params)} adapter parameters", flush=True)
    opt = torch.optim.AdamW(params, a.lr, betas=(0.9, 0.95), weight_decay=0.0)
    data, start, step = train.batches(tok, a.rows, a.length, style="pirate"), time.time(), 0
    while (done := (time.time() - start) / (60 * a.minutes)) < 1:
        for g in opt.param_groups:
            g["lr"] = a.lr * min(1, (step + 1) / 20) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        x, y = next(data)
        loss = torch.nn.functional.cross_entropy(model(x, use_cache=False).logits.view(-1, train.VOCAB), y.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        step += 1
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    model.save_pretrained(a.out)
    (a.out / "README.md").unlink(missing_ok=True)
    cfg = json.loads((a.out / "adapter_config.json").read_text())
    cfg["base_model_name_or_path"] = "ruvllm/tales"
    cfg["target_modules"] = sorted(cfg["target_modules"])
    (a.out / "adapter_config.json").write_text(json.dumps(cfg, indent=2, sort_keys=True) + "\n")
    for style in ("pirate", "tale"):
        with_adapter, _ = train.held_out_loss(model, tok, 25, style)
        with model.disable_adapter():
            without, n = train.held_out_loss(model, tok, 25, style)
        print(f"held-out {style}: loss {without:.4f} without, {with_adapter:.4f} with the adapter ({n} tokens)", flush=True)


if __name__ == "__main__":
    main()
