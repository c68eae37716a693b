"""A language model: the decoder of GPT-2, trained on drawn tokens and decoded with a cache of keys and values."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worker.workloads.workload import Extent, Shape, StepCost, Workload

if TYPE_CHECKING:
    import torch

VOCABULARY = 50_257
"""The tokens of GPT-2."""
FEATURES_PER_LAYER = 64
"""The features that each block adds to the width; see ``training.decoder``."""


@dataclass(frozen=True, kw_only=True)
class Transformer(Workload):
    """A decoder that learns the next token of every position, with the settings of GPT-3 (Brown et al. 2020) for AdamW.

    The batch is the tokens of all its sequences. Gradient checkpointing is off.
    """

    unit: str = "tokens"
    extent: Extent = "tokens"

    def size_wanted(self, extent: int) -> str | None:
        """Return which lengths leave two tokens for the prompt and two to decode."""
        return None if extent >= 4 else "4 or more"

    def cost_at(self, extent: int | None, depth: int | None = None) -> StepCost:
        """Return the cost by the depth, which decides the width too, and by the tokens that attention looks at."""
        tokens = extent or 1
        layers = depth or 1
        width = FEATURES_PER_LAYER * layers
        multiplied = width * VOCABULARY + layers * 12 * width**2
        attended = layers * 2 * tokens * width
        gflop = 6e-9 * (multiplied + attended)
        parameters = multiplied + tokens * width
        return StepCost(gflop, parameters / 1e6)

    def draw(self, batch: int, shape: Shape, generator: "torch.Generator") -> "tuple[torch.Tensor, torch.Tensor]":
        import torch

        size = (batch // shape.tokens, shape.tokens + 1)
        tokens = torch.randint(VOCABULARY, size, generator=generator)
        inputs = tokens[:, :-1].contiguous()
        targets = tokens[:, 1:].contiguous()
        return inputs, targets

    def build(self, shape: Shape) -> "torch.nn.Module":
        from worker.training.decoder import TokenDecoder

        return TokenDecoder(shape.depth, VOCABULARY, shape.tokens)

    def optimizer(self, network: "torch.nn.Module") -> "torch.optim.Optimizer":
        import torch

        return torch.optim.AdamW(network.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)

    def loss(self, network: "torch.nn.Module", images: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
        import torch

        predictions = network(images).flatten(0, 1)
        return torch.nn.functional.cross_entropy(predictions, labels.flatten())

    def generate(self, network: "torch.nn.Module", count: int) -> "Iterator[torch.Tensor]":
        """Yield the likeliest next token of each sequence, whose prompts are drawn."""
        import torch

        decoder: Any = network
        positions = decoder.positions
        length = positions.num_embeddings
        prompt_length = length - Shape(0, 0, length).decoded
        size = (count, prompt_length)
        prompts = torch.randint(VOCABULARY, size, device=positions.weight.device)
        tokens: Iterator[torch.Tensor] = decoder.decode(prompts)
        return tokens


# Parameters: 124 million (GPT-2's smallest but for its 1024 positions), 16 million, 6.8 million.
TRANSFORMER = Transformer(
    name="transformer",
    sizes={"paper": (1024, 512), "quick": (256, 64), "smoke": (32, 16)},
    depth={"paper": 12, "quick": 4, "smoke": 2},
)
