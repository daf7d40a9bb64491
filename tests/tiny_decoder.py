"""A small random decoder for tests, every size another number."""

import torch

from kvlearn import Decoder, DecoderConfig, GrowingCache, StaticCache

SIZES = {
    "vocab_size": 31,
    "hidden_size": 20,
    "num_layers": 3,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 10,
    "intermediate_size": 27,
    "max_position": 64,
    "rope_theta": 500.0,
    "tie_embeddings": False,
}
CACHES = {"growing": GrowingCache, "static": StaticCache}


def tiny_config(**changes) -> DecoderConfig:
    return DecoderConfig(**SIZES | changes)


def tiny_decoder(dtype=torch.float64, seed=0, **changes) -> Decoder:
    """Weights large enough that attention is not flat, and norms that are not 1."""
    decoder = Decoder(tiny_config(**changes)).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in decoder.named_parameters():
            numbers = torch.randn(weights.shape, generator=generator, dtype=torch.float64)
            weights.copy_(1 + 0.3 * numbers if "norm" in name else 0.4 * numbers)
    return decoder.requires_grad_(False)


def random_tokens(*shape, seed=0, vocab_size=SIZES["vocab_size"]) -> torch.Tensor:
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token lists of unequal lengths as tokens and positions (B, L), padded on the left."""
    longest = max(len(row) for row in rows)
    tokens = [[0] * (longest - len(row)) + list(row) for row in rows]
    positions = [[-1] * (longest - len(row)) + list(range(len(row))) for row in rows]
    return torch.tensor(tokens), torch.tensor(positions)
