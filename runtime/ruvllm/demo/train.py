#!/usr/bin/env python3
"""Trains the demo model and its tokenizer from the generated corpus, on the CPU.

    train.py --out DIR --minutes 45 --threads 1 --bf16
    train.py --out DIR2 --minutes 12 --lr 1.5e-3 --resume DIR/checkpoint --seed 1000000

The learning rate follows a cosine over the share of the time budget used, so that a slower machine ends
with a finished schedule and fewer tokens. Matrices are stepped by Muon (momentum, orthogonalised), the
embedding and the norms by AdamW: on a budget of a few million tokens that halves the tokens needed.
"""

import argparse
import json
import math
import pathlib
import time

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import corpus

VOCAB, CONTEXT, BOS, EOS = 2048, 512, "<|bos|>", "<|eos|>"


def train_tokenizer(path, tales):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        tales,
        trainers.BpeTrainer(
            vocab_size=VOCAB, special_tokens=[BOS, EOS], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
    )
    tok.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, tok.token_to_id(BOS))])
    PreTrainedTokenizerFast(tokenizer_object=tok, bos_token=BOS, eos_token=EOS, model_max_length=CONTEXT).save_pretrained(path)
    return tok


def encode(tok, tale):
    """A document: bos, the tale, eos."""
    return [0] + tok.encode(tale, add_special_tokens=False).ids + [1]


def config(hidden=256, layers=5):
    return LlamaConfig(
        vocab_size=VOCAB, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=hidden // 32, num_key_value_heads=4, head_dim=32,
        intermediate_size=704, max_position_embeddings=CONTEXT, rope_theta=10000.0, rms_norm_eps=1e-5, hidden_act="silu",
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=1, attention_bias=False, mlp_bias=False, initializer_range=0.02,
    )


class Muon(torch.optim.Optimizer):
    """Momentum whose update is replaced by the nearest orthogonal matrix, by a quintic Newton-Schulz iteration."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.05):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            by_shape = {}
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                by_shape.setdefault(p.shape, []).append((p, p.grad.lerp(m, group["momentum"])))
            for shape, pairs in by_shape.items():
                x = torch.stack([u for _, u in pairs])
                if shape[0] > shape[1]:
                    x = x.mT
                x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
                for _ in range(5):
                    a = x @ x.mT
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                if shape[0] > shape[1]:
                    x = x.mT
                # Scaled so that an update has the root mean square of an AdamW step at the same rate.
                scale = 0.2 * math.sqrt(max(shape))
                for (p, _), u in zip(pairs, x):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(u, alpha=-group["lr"] * scale)


def batches(tok, rows, length, seed=0, style="tale"):
    """Rows of `length` tokens that start with a document and hold as many as fit, the last one cut; endless."""
    while True:
        batch = []
        for _ in range(rows):
            row = []
            while len(row) < length + 1:
                row += encode(tok, corpus.tale(seed, style))
                seed += 1
            batch.append(row[: length + 1])
        t = torch.tensor(batch)
        yield t[:, :-1], t[:, 1:]


@torch.no_grad()
def held_out_loss(model, tok, count, style="tale"):
    """Mean negative log-likelihood per token (nats) of held-out tales, each a document of its own, and the tokens counted."""
    model.eval()
    total, n = 0.0, 0
    for i in range(count):
        ids = torch.tensor([encode(tok, corpus.tale(corpus.HELD_OUT + i, style))[:CONTEXT]])
        logits = model(ids[:, :-1]).logits[0].float()
        total += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        n += ids.shape[1] - 1
    model.train()
    return total / n, n


def save(model, out, log):
    tmp = out / "checkpoint.tmp"
    model.save_pretrained(tmp)
    (tmp / "log.json").write_text(json.dumps(log))
    final = out / "checkpoint"
    final.mkdir(exist_ok=True)
    for f in tmp.iterdir():
        f.replace(final / f.name)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", type=pathlib.Path, required=True)
    ap.add_argument("--minutes", type=float, default=30)
    ap.add_argument("--rows", type=int, default=6)
    ap.add_argument("--length", type=int, default=384)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--bf16", action="store_true", help="matrix products in bfloat16: twice as fast on a CPU with instructions for it")
    ap.add_argument("--resume", type=pathlib.Path, help="a checkpoint to go on from, with its tokenizer")
    ap.add_argument("--seed", type=int, default=0, help="seed of the first tale")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    a.out.mkdir(parents=True, exist_ok=True)
    if a.resume:
        tok = PreTrainedTokenizerFast.from_pretrained(a.resume)
        tok.save_pretrained(a.out / "checkpoint")
        tok, model = tok.backend_tokenizer, LlamaForCausalLM.from_pretrained(a.resume)
    else:
        tok = train_tokenizer(a.out / "checkpoint", (corpus.tale(i, s) for s, n in (("tale", 3000), ("pirate", 200)) for i in range(n)))
        model = LlamaForCausalLM(config())
        # Five times the usual width: in a narrow model the residual stream else drowns which word it was.
        torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.1)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, vocabulary {tok.get_vocab_size()}", flush=True)
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    opts = [Muon(matrices, a.lr), torch.optim.AdamW(rest, a.lr, betas=(0.9, 0.95), weight_decay=0.0)]
    start, step, tokens, average, log, saved = time.time(), 0, 0, None, [], 0.0
    short = batches(tok, a.rows, a.length, a.seed)
    long = batches(tok, max(1, a.rows * a.length // CONTEXT), CONTEXT, a.seed + 5_000_000)
    while True:
        done = (time.time() - start) / (60 * a.minutes)
        if done >= 1:
            break
        rate = a.lr * min(1, (step + 1) / 20) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        # The last fifth uses whole contexts, so that every position has been seen.
        x, y = next(short if done < 0.8 else long)
        with torch.autocast("cpu", torch.bfloat16, enabled=a.bf16):
            logits = model(x, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().view(-1, VOCAB), y.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in opts:
            for g in o.param_groups:
                g["lr"] = rate
            o.step()
        model.zero_grad(set_to_none=True)
        step, tokens = step + 1, tokens + x.numel()
        average = loss.item() if average is None else 0.95 * average + 0.05 * loss.item()
        minutes = (time.time() - start) / 60
        if step % 20 == 0:
            log.append(dict(step=step, tokens=tokens, minutes=round(minutes, 2), loss=round(average, 4)))
            print(f"step {step} tokens {tokens} minutes {minutes:.1f} loss {average:.4f} rate {rate:.2e} {tokens / minutes / 60:.0f} tok/s", flush=True)
        if minutes - saved > 1.5:
            saved = minutes
            save(model, a.out, log)
    nll, n = held_out_loss(model, tok, 200)
    log.append(dict(step=step, tokens=tokens, held_out_loss=nll, held_out_perplexity=math.exp(nll), held_out_tokens=n))
    save(model, a.out, log)
    print(f"held-out loss {nll:.4f} perplexity {math.exp(nll):.3f} over {n} tokens", flush=True)


if __name__ == "__main__":
    main()
