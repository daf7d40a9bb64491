"""A kvlearn cache inside Hugging Face transformers 5.19 to 5.24 (`pip install -e '.[hf]'` in a clone).

    cache = kvlearn.GrowingCache(cache_config(model), dtype=model.dtype)
    model.generate(ids, cache=to_hf(cache))               past_key_values= before transformers 5.24
    model.generate(longer_ids, cache=prepare(cache, longer_ids))         the next turn of the talk

Here is what a person calls; `adapter.py` is what transformers calls.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvlearn.cache import arguments
from kvlearn.cache.base import KVCache
from kvlearn.values import is_plain, is_whole, is_whole_tensor, kind_of

try:
    import transformers

    from kvlearn.hf.adapter import PADDED, HFCache, windows_of
except ImportError as error:
    raise ImportError(
        "kvlearn.hf needs transformers 5.19 or later. Run `pip install -e '.[hf]'` in the folder of the "
        "course."
    ) from error


@dataclass(frozen=True)
class CacheConfig:
    """The sizes that a cache is made with, read from a model of transformers."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    windows: tuple[int | None, ...]  # of each layer; None = it sees everything


def cache_config(model) -> CacheConfig:
    """The config that kvlearn's caches take, of a model of transformers.

    Raises:
        ValueError: no model of transformers, one whose config lacks a size, or one whose layers do not each
            keep keys and values of one shape: layers that share a cache, latent attention, heads of several
            sizes.
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        raise ValueError(f"cache_config reads a model of transformers; got a {type(model).__name__}.")
    config = config.get_text_config(decoder=True)

    def size(name: str) -> int:
        value = getattr(config, name, None)
        if not is_whole(value):
            raise ValueError(
                f"The cache needs {name}, a whole number; the model's {type(config).__name__} says {value!r}."
            )
        return value

    _refuse_other_shapes(config)
    heads, num_layers = size("num_attention_heads"), size("num_hidden_layers")
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * num_layers
    return CacheConfig(
        num_layers=num_layers,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or size("hidden_size") // heads,
        max_position=size("max_position_embeddings"),
        windows=tuple(window if kind == "sliding_attention" else None for kind in kinds),
    )


def _refuse_other_shapes(config) -> None:
    """Refuse a model whose layers do not all keep keys and values of one shape, each its own."""
    name = type(config).__name__
    if getattr(config, "num_kv_shared_layers", None):
        raise ValueError(
            f"{name}: num_kv_shared_layers is {config.num_kv_shared_layers}. Its last layers read the keys "
            "and values of earlier ones and write none; kvlearn's caches wait for every layer of a pass."
        )
    if getattr(config, "kv_lora_rank", None):
        raise ValueError(
            f"{name}: kv_lora_rank is {config.kv_lora_rank}. In latent attention (MLA) keys and values have "
            "other widths than head_dim, and kvlearn's caches are made for one."
        )
    widths = {"head_dim", "v_head_dim", "global_head_dim", "qk_head_dim"}
    found = {key: getattr(config, key, None) for key in sorted(widths)}
    found = {key: value for key, value in found.items() if value is not None}
    if len(set(map(str, found.values()))) > 1:
        said = ", ".join(f"{key} {value}" for key, value in found.items())
        raise ValueError(
            f"{name} has heads of several sizes ({said}), and kvlearn's caches are made for one."
        )


def to_hf(cache: KVCache, model=None) -> HFCache:
    """The cache as `model.generate(..., cache=...)` of transformers takes it.

    Text is that of transformers' own `DynamicCache` with every exact cache, in greedy search, sampling, beam
    search and prompt lookup, over several turns and in batches padded on the left. Beams and returned
    sequences are rows: make the cache with batch_size = prompts x num_beams. After a beam search its rows are
    the beams', not the best text's; reset it. A lossy cache, or one with a window, cannot be rolled back
    without a trace and is refused for prompt lookup. Gradients stop at the cache.

    **Padding.** transformers never tells a cache which tokens are padding. They are stored like any
    other token and hidden by transformers' mask: right for an exact cache. In a lossy one their numbers
    would enter the scales of the tokens beside them: tell it, `prepare(cache, prompt, attention_mask)`.

    **A window.** transformers' mask knows the model's own windows alone. Where the cache's is smaller,
    queries that are fed together would see more than it: a pass that reaches over more tokens than the
    window is refused, and generate(..., prefill_chunk_size=1) feeds the prompt token by token. With a
    `model` whose own windows are no larger there is nothing to refuse.

    Args:
        cache: of any kind that stands on `KVCache`, your own too. It stays the one that holds everything;
            after `cache.truncate` or `cache.reset` the object goes on from there.
        model: the model that it is for, to check now that they fit, and to read its windows. A cache whose
            layers have different windows needs it.

    Returns:
        A `transformers.Cache`. Its `crop(-n)` drops the last n slots, and refuses more than there are.

    Raises:
        ValueError: something else than such a cache, or one that does not fit `model`.
    """
    if isinstance(cache, transformers.Cache):
        raise ValueError(
            f"to_hf takes a cache of kvlearn; a {type(cache).__name__} is one of transformers already: "
            "give it to generate as it is."
        )
    arguments.check_is_cache(cache)
    if not isinstance(cache, KVCache):
        raise ValueError(
            f"to_hf takes a subclass of kvlearn.KVCache, whose `positions` say which token each slot holds; "
            f"got a {type(cache).__name__}."
        )
    config = None if model is None else cache_config(model)
    if config is not None:
        _check_fits(cache, model, config)
    windows = windows_of(cache)
    theirs = (None,) * len(windows) if config is None else config.windows
    # transformers makes one mask for the layers with a window and one for those without.
    if len(set(windows)) > 1 and [w is None for w in windows] != [w is None for w in theirs]:
        raise ValueError(
            f"The cache's layers have the windows {windows} and the model's {theirs}; a cache whose layers "
            "differ fits a model with windows in the same layers alone, and needs it: to_hf(cache, model)."
        )
    return HFCache(cache, theirs)


def prepare(cache: KVCache | HFCache, prompt, attention_mask: Tensor | None = None) -> HFCache:
    """Make the cache ready for `generate(prompt)`: call it before each turn.

    A cache that covers the whole prompt steps back, so that the last token is fed again: transformers (up to
    5.24 at least) would feed the whole prompt a second time behind itself, without a word. A pass that was
    broken off is dropped.

    Args:
        cache: the cache, or what `to_hf` made of it. What it holds are the first slots of this prompt;
            `reset` it before another text.
        prompt: (B, L) token ids, or one list: the whole text, as for `generate`.
        attention_mask: (B, L), 0 at padding, the one that `generate` is given. The cache then keeps padding
            out of scales and windows; left out, padding is stored like any other token.

    Returns:
        What `generate` takes: `model.generate(prompt, cache=prepare(cache, prompt))`.

    Raises:
        ValueError: an empty prompt, tokens that are no whole numbers, a mask of another shape or of other
            numbers than 0 and 1, a row without a token, rows that are not the cache's, or what the cache's
            own `truncate` refuses.
    """
    hf = cache if isinstance(cache, HFCache) else to_hf(cache)
    ids = _two_axes(prompt, "prompt")
    if not is_whole_tensor(ids):
        raise ValueError(f"The prompt's tokens are whole numbers; got {kind_of(ids)}.")
    rows, length = ids.shape
    if hf.batch_size % rows:
        raise ValueError(
            f"The prompt has {rows} rows and the cache {hf.batch_size}; make the cache with "
            f"batch_size={rows}, or that times the beams."
        )
    if attention_mask is None:
        real = torch.ones(rows, length, dtype=torch.bool, device=hf.cache.device)
    else:
        real = _real(attention_mask, rows, length).to(hf.cache.device)
    padding = ~real.repeat_interleave(hf.batch_size // rows, dim=0)
    held = min(hf.cache.length, length - 1)
    if bool(((hf.cache.positions[:, :held] < 0) & ~padding[:, :held]).any()):
        raise ValueError(PADDED)
    hf.crop(held - hf.cache.length)
    hf.padding, hf.knows_padding = padding, attention_mask is not None
    return hf


# What is given -----------------------------------------------------------------------------------


def _two_axes(given, name: str) -> Tensor:
    """Token ids or a mask as a tensor (rows, length); one list is one row."""
    try:
        tensor = torch.as_tensor(given)
        shape = tuple(tensor.shape) if is_plain(tensor) else kind_of(tensor)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        shape = f"a {type(given).__name__}"
    if isinstance(shape, str) or len(shape) not in (1, 2) or 0 in shape:
        raise ValueError(f"{name} is (batch, length), with at least one token in each row; got {shape}.")
    return tensor[None] if len(shape) == 1 else tensor


def _real(attention_mask, rows: int, length: int) -> Tensor:
    """(rows, length) booleans: where the prompt has a token."""
    mask = _two_axes(attention_mask, "attention_mask")
    if mask.shape != (rows, length):
        raise ValueError(
            f"attention_mask has one number for each token of the prompt, ({rows}, {length}); got "
            f"{tuple(mask.shape)}."
        )
    real = mask == 1
    if not bool((real | (mask == 0)).all()):
        raise ValueError("attention_mask is 1 where there is a token and 0 at padding; it has other numbers.")
    if not bool(real.any(dim=1).all()):
        raise ValueError("attention_mask is 0 in all of a row: a prompt has at least one token.")
    return real


def _check_fits(cache: KVCache, model, config: CacheConfig) -> None:
    side = (config.num_kv_heads, config.head_dim)
    pairs = {
        "layers": (cache.num_layers, config.num_layers),
        "keys (heads, head_dim)": (cache.key_shape, side),
        "values (heads, head_dim)": (cache.value_shape, side),
        "dtype": (cache.dtype, model.dtype),
        "device": (cache.device, torch.empty(0, device=model.device).device),
    }
    for name, (got, needed) in pairs.items():
        if got != needed:
            raise ValueError(
                f"The cache does not fit the model: {name} {got} where the model has {needed}. Make it with "
                "cache_config(model), dtype=model.dtype, device=model.device."
            )
