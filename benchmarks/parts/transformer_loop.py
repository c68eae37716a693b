"""The training loop of a small GPT-2, as one would write it by hand: no suite, one timing of all steps.

Run by ``benchmarks/plain_loop.py``; arguments: batch (tokens), tokens of a sequence, depth, warmup_steps, steps,
threads, seed. Prints tokens per second. Width (64 for each layer), heads, tied weights and AdamW as the suite's.
"""

import sys
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention

VOCABULARY = 50_257


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.attend, self.project = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, c = x.shape
        q, k, v = self.attend(self.ln_1(x)).split(c, dim=2)
        q, k, v = (each.view(n, t, self.heads, c // self.heads).transpose(1, 2) for each in (q, k, v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(n, t, c))
        added: torch.Tensor = x + self.layers(self.ln_2(x))
        return added


class Model(nn.Module):
    def __init__(self, depth: int, tokens: int) -> None:
        super().__init__()
        width = 64 * depth
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, depth) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return linear(self.norm(self.blocks(x)), self.words.weight)


def main() -> None:
    batch, tokens, depth, warmup_steps, steps, threads, seed = map(int, sys.argv[1:])
    torch.set_num_interop_threads(1)
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    model = Model(depth, tokens)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    drawn = torch.randint(VOCABULARY, (batch // tokens, tokens + 1))
    inputs, labels = drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()

    for step in range(warmup_steps + steps):
        if step == warmup_steps:
            begin_s = time.monotonic()
        optimizer.zero_grad()
        cross_entropy(model(inputs).view(-1, VOCABULARY), labels.view(-1)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    print(batch * steps / (time.monotonic() - begin_s))


if __name__ == "__main__":
    main()
