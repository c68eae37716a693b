"""The decoder of GPT-2 (Radford et al. 2019). Its depth decides its width: 64 features and a head for each block."""

import math
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention

FEATURES_PER_HEAD = 64
_DEVIATION = 0.02


class Block(nn.Module):
    """Causal attention and two layers, each normalised before and added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.layers_norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        expansion = nn.Linear(width, 4 * width)
        activation = nn.GELU(approximate="tanh")
        contraction = nn.Linear(4 * width, width)
        self.layers = nn.Sequential(expansion, activation, contraction)

    def forward(
        self,
        states: torch.Tensor,
        cache: torch.Tensor | None,
        past: int,
    ) -> torch.Tensor:
        batch, tokens, width = states.shape
        features = self.attention(self.attention_norm(states))
        parts = features.view(batch, tokens, 3, self._heads, FEATURES_PER_HEAD)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if cache is not None:
            end = past + tokens
            cache[0, :, :, past:end] = key
            cache[1, :, :, past:end] = value
            key, value = cache[:, :, :, :end]
        attended = scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=not past,
        )
        joined = attended.transpose(1, 2)
        rows = joined.reshape(batch, tokens, width)
        states = states + self.projection(rows)
        normalised = self.layers_norm(states)
        added: torch.Tensor = states + self.layers(normalised)
        return added


class TokenDecoder(nn.Module):
    """Embeddings of tokens and positions, the blocks, and logits by the embeddings of the tokens."""

    def __init__(self, depth: int, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.width = depth * FEATURES_PER_HEAD
        self.tokens = nn.Embedding(vocabulary, self.width)
        self.positions = nn.Embedding(positions, self.width)
        blocks = [Block(self.width, depth) for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(self.width)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                residual = name.endswith(("projection.weight", "layers.2.weight"))
                branches = 2 * depth if residual else 1
                deviation = _DEVIATION / math.sqrt(branches)
                nn.init.normal_(parameter, 0.0, deviation)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self._states(tokens)
        return self._logits(states)

    @torch.inference_mode()
    def decode(self, prompt: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the likeliest next token of each sequence, until all positions are taken.

        A token goes through the blocks once: the keys and values of those before it are kept.
        """
        weight = self.tokens.weight
        positions = self.positions.num_embeddings
        blocks = len(self.blocks)
        heads = blocks
        cache_size = (
            blocks,
            2,
            len(prompt),
            heads,
            positions,
            FEATURES_PER_HEAD,
        )
        cache = weight.new_empty(cache_size)
        past = 0
        tokens = prompt
        while past + tokens.shape[1] < positions:
            states = self._states(tokens, cache, past)
            past += tokens.shape[1]
            logits = self._logits(states[:, -1:])
            tokens = logits.argmax(-1)
            yield tokens[:, 0]

    def _states(
        self,
        tokens: torch.Tensor,
        cache: torch.Tensor | None = None,
        past: int = 0,
    ) -> torch.Tensor:
        end = past + tokens.shape[1]
        positions = self.positions.weight[past:end]
        states: torch.Tensor = self.tokens(tokens) + positions
        for number, block in enumerate(self.blocks):
            block_cache = None if cache is None else cache[number]
            states = block(states, block_cache, past)
        normalised: torch.Tensor = self.norm(states)
        return normalised

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        return linear(states, self.tokens.weight)
