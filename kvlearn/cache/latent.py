"""The cache of latent attention (MLA, DeepSeek-V2, arXiv 2405.04434): one latent and one rotary key a token.

All heads make their keys and values from the same latent, so the latent is what is stored:

    key side     (B, 1, S, latent_dim)   the latent, normalised, without positions
    value side   (B, 1, S, rope_dim)     the rotary key that all heads share, turned by its position

That is latent_dim + rope_dim numbers for each token and layer: not twice, because keys and values come from
one latent, and not once a head, because the heads share it. `kvlearn.latent_attention` reads it.
"""

from kvlearn.cache.arguments import MOST
from kvlearn.cache.growing import GrowingCache
from kvlearn.values import whole


class LatentCache(GrowingCache):
    """Latents and rotary keys that grow by concatenation; `update(layer, latent, rope_key, positions)`.

    Args:
        config: a `LatentConfig`, or any config together with the two widths.
        batch_size: B.
        latent_dim, rope_dim: the widths; the config's own when left out.
        max_length: the most slots a row can hold; None = as many as memory holds.
        dtype: of what is stored; torch's default when left out.
        device: where it lives; the CPU when left out.

    Raises:
        ValueError: a config without the two widths, or widths that are not whole numbers of at least 1.
    """

    def __init__(
        self,
        config,
        batch_size=1,
        *,
        latent_dim=None,
        rope_dim=None,
        max_length=None,
        dtype=None,
        device=None,
    ):
        self.latent_dim = _width(config, "latent_dim", latent_dim)
        self.rope_dim = _width(config, "rope_dim", rope_dim)
        super().__init__(config, batch_size, max_length=max_length, dtype=dtype, device=device)

    def _start(self, batch_size):
        self.key_shape, self.value_shape = (1, self.latent_dim), (1, self.rope_dim)
        super()._start(batch_size)


def _width(config, name, given):
    width = getattr(config, name, None) if given is None else given
    if width is None:
        raise ValueError(
            f"A LatentCache stores latents, and a {type(config).__name__} has no {name}; make it with the "
            "LatentConfig of the layers, or say LatentCache(config, latent_dim=512, rope_dim=64)."
        )
    return whole(width, name, at_most=MOST)
