"""The sizes of a decoder, and what a family of models adds to Llama's plan."""

from dataclasses import dataclass

from kvlearn.rope import RopeScaling
from kvlearn.values import is_number, keep_whole, whole


def check_theta_and_eps(config) -> None:
    """Refuse a config, of any kind, whose rope_theta or norm_eps is no number in its range."""
    if not is_number(config.rope_theta) or not 0 < config.rope_theta < float("inf"):
        raise ValueError(f"rope_theta is a number above 0; got {config.rope_theta!r}.")
    if not is_number(config.norm_eps) or not 0 <= config.norm_eps < float("inf"):
        raise ValueError(f"norm_eps is a number, 0 or above; got {config.norm_eps!r}.")


@dataclass(frozen=True)
class DecoderConfig:
    """The sizes of a decoder. `head_dim` is a number of its own: often it is not hidden_size / num_heads."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int  # Hq
    num_kv_heads: int  # Hkv, a divisor of num_heads
    head_dim: int  # D, even
    intermediate_size: int  # width of the MLP
    max_position: int = 2048  # positions 0 to max_position - 1
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tie_embeddings: bool = True  # the output head is the embedding table
    qkv_bias: bool = False  # q, k and v are projected with a bias (Qwen2)
    qk_norm: bool = False  # q and k are normalised, head by head, before they are turned (Qwen3)
    rope_scaling: RopeScaling | None = None  # slower turns for longer texts (Llama 3.1)
    windows: tuple[int | None, ...] = ()  # one a layer, None = it sees all; () = no layer has one (Mistral)

    def __post_init__(self):
        for name in (
            "vocab_size hidden_size num_layers num_heads num_kv_heads head_dim intermediate_size max_position"
        ).split():
            keep_whole(self, name)
        check_theta_and_eps(self)
        for name in ("tie_embeddings", "qkv_bias", "qk_norm"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is True or False; got {getattr(self, name)!r}.")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}; "
                "the query heads share the key/value heads evenly."
            )
        if self.head_dim % 2:
            raise ValueError(
                f"RoPE turns pairs of coordinates, so head_dim must be even; got {self.head_dim}."
            )
        self._check_rope_scaling()
        self._keep_windows()

    def _check_rope_scaling(self) -> None:
        scaling = self.rope_scaling
        if scaling is None:
            return
        if not isinstance(scaling, RopeScaling):
            raise ValueError(f"rope_scaling is a kvlearn.rope.RopeScaling or None; got {scaling!r}.")
        if not all(is_number(value) and 0 < value < float("inf") for value in scaling):
            raise ValueError(f"The numbers of rope_scaling are above 0; got {scaling}.")
        if not scaling.low_freq_factor < scaling.high_freq_factor:
            raise ValueError(f"low_freq_factor should be below high_freq_factor; got {scaling}.")

    def _keep_windows(self) -> None:
        if not isinstance(self.windows, tuple) or len(self.windows) not in (0, self.num_layers):
            raise ValueError(
                f"windows is a tuple with one window (or None) for each of the {self.num_layers} layers, or "
                f"empty; got {self.windows!r}."
            )
        kept = tuple(None if window is None else whole(window, "a layer's window") for window in self.windows)
        object.__setattr__(self, "windows", kept)

    @property
    def group_size(self) -> int:
        """Query heads that read one key/value head."""
        return self.num_heads // self.num_kv_heads

    def window(self, layer: int) -> int | None:
        """How many tokens a query of this layer sees, itself included; None = all of them."""
        return self.windows[layer] if self.windows else None
