"""A decoder with every size another number, small enough to run in milliseconds."""

import torch

from kvlearn.decoder import Decoder, DecoderConfig

CONFIG = DecoderConfig(
    vocab_size=89,
    hidden_size=36,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    head_dim=10,
    intermediate_size=52,
    max_position=64,
)
PROMPT = [11, 7, 3, 70, 42]


def small_decoder(dtype=torch.float32, **changes):
    torch.manual_seed(5)
    config = DecoderConfig(**{**CONFIG.__dict__, **changes})
    return Decoder(config).to(dtype).eval()
