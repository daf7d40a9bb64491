"""The sizes of a model that its cache depends on."""

from dataclasses import dataclass, replace

from kvlearn.values import keep_whole, whole

MOST_LAYERS = 10_000  # a config that says more lies


@dataclass(frozen=True)
class ModelShape:
    """What the cache of a model depends on: per layer, what one token leaves behind and how long it stays.

    Args:
        num_layers: all of them.
        num_heads: Hq, query heads.
        num_kv_heads: Hkv, key/value heads; a divisor of num_heads.
        head_dim: D, width of a key head: a number of its own, often not hidden_size / num_heads.
        value_dim: width of a value head; head_dim when left out.
        latent_dim, rope_dim: for latent attention (MLA, arXiv 2405.04434): a token leaves one latent and one
            rotary key a layer, whatever the number of heads. Both or neither.
        windows: for each layer None or W: the layer keeps the last W tokens. One number is every layer's.
        shared_layers: layers at the end that read an earlier layer's keys and values and store none.
        hidden_size, vocab_size, max_position, parameters: where known; `weight_bytes` needs `parameters`.
        name: what to call it.
        notes: what was taken for granted when a config did not say it.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int | None = None
    latent_dim: int | None = None
    rope_dim: int | None = None
    windows: tuple[int | None, ...] | int | None = None
    shared_layers: int = 0
    hidden_size: int | None = None
    vocab_size: int | None = None
    max_position: int | None = None
    parameters: int | None = None
    name: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self):
        for name in ("num_layers", "num_heads", "num_kv_heads", "head_dim"):
            keep_whole(self, name)
        if self.num_layers > MOST_LAYERS:
            raise ValueError(f"num_layers={self.num_layers}: no model has more than {MOST_LAYERS:,} layers.")
        for name in "value_dim latent_dim rope_dim hidden_size vocab_size max_position parameters".split():
            if getattr(self, name) is not None:
                keep_whole(self, name)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}; the "
                "query heads share the key/value heads evenly."
            )
        if (self.latent_dim is None) != (self.rope_dim is None):
            raise ValueError(
                "Latent attention stores a latent and a rotary key: give latent_dim and rope_dim, or none."
            )
        keep_whole(self, "shared_layers", at_least=0)
        if self.shared_layers >= self.num_layers:
            raise ValueError(
                f"shared_layers={self.shared_layers} of {self.num_layers} layers leave none that stores."
            )
        self._keep_windows()

    def _keep_windows(self) -> None:
        windows = self.windows
        if not isinstance(windows, list | tuple):
            windows = (windows,) * self.num_layers
        if len(windows) != self.num_layers:
            raise ValueError(
                f"windows has one entry for each of the {self.num_layers} layers; got {len(windows)}."
            )
        kept = tuple(None if window is None else whole(window, "a layer's window") for window in windows)
        object.__setattr__(self, "windows", kept)

    @classmethod
    def from_config(cls, config) -> "ModelShape":
        """From a Hugging Face config.json: a dict of its fields, the path of the file or its folder, a
        transformers config, or a `DecoderConfig`. See `kvlearn.sizing.config`."""
        from kvlearn.sizing.config import shape_from_config  # which makes a ModelShape

        return shape_from_config(config)

    def but(self, **changes) -> "ModelShape":
        """The same with some sizes changed: `shape.but(num_kv_heads=64)` is the model if it had no GQA."""
        return replace(self, **changes)

    @property
    def latent(self) -> bool:
        """Latent attention (MLA)."""
        return self.latent_dim is not None

    @property
    def kind(self) -> str:
        """MHA, GQA, MQA or MLA; with the window where layers have one."""
        if self.latent:
            kind = "MLA"
        elif self.num_kv_heads == self.num_heads:
            kind = "MHA"
        else:
            kind = "MQA" if self.num_kv_heads == 1 else "GQA"
        windowed = [window for window in self.stored_windows if window]
        if windowed:
            sizes = "/".join(f"{window:,}" for window in sorted(set(windowed)))
            kind += f", window {sizes} in {len(windowed)} of {len(self.stored_windows)} layers"
        return kind

    @property
    def key_shape(self) -> tuple[int, int]:
        """(heads, width) of what a token leaves on the key side of a layer; the latent for MLA."""
        return (1, self.latent_dim) if self.latent else (self.num_kv_heads, self.head_dim)

    @property
    def value_shape(self) -> tuple[int, int]:
        """(heads, width) on the value side; the rotary key for MLA."""
        return (1, self.rope_dim) if self.latent else (self.num_kv_heads, self.value_dim or self.head_dim)

    @property
    def numbers_per_token(self) -> int:
        """Numbers that one token leaves in one layer: 2 x heads x width, or latent + rotary key."""
        return sum(heads * width for heads, width in (self.key_shape, self.value_shape))

    @property
    def stored_windows(self) -> tuple[int | None, ...]:
        """The window of each layer that stores something."""
        return self.windows[: self.num_layers - self.shared_layers]

    def on_rank(self, ranks: int) -> "ModelShape":
        """What one of `ranks` tensor-parallel ranks holds.

        Key/value heads are shared out; with more ranks than heads each head is held by several. A latent
        belongs to all heads and is held by every rank, whole.
        """
        whole(ranks, "ranks")
        if self.num_heads % ranks:
            raise ValueError(f"{self.num_heads} query heads cannot be shared out evenly over {ranks} ranks.")
        if self.latent or ranks == 1:
            return self
        few, many = sorted((self.num_kv_heads, ranks))
        if many % few:
            raise ValueError(
                f"{self.num_kv_heads} key/value heads on {ranks} ranks: one number must be a multiple of "
                "the other, so that each rank holds as many heads, or each head lies on as many ranks."
            )
        kv_heads = max(self.num_kv_heads // ranks, 1)
        return replace(self, num_heads=self.num_heads // ranks, num_kv_heads=kv_heads)
