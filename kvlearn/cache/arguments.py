"""What a cache is given, looked at before anything is stored: what does not fit is refused in a sentence.

Free functions, so that a cache written from scratch and the decoder can use them too. Each raises a
ValueError that says what was given and what would have been right.
"""

import torch
from torch import Tensor

from kvlearn.values import is_plain, is_whole, is_whole_tensor, kind_of, whole


def check_is_cache(cache) -> None:
    """Refuse what is no cache, such as the class in the place of one."""
    if isinstance(cache, type) or not hasattr(cache, "next_position"):
        raise ValueError(
            "A cache is made before it is given, with the model's config, as in GrowingCache(model.config); "
            f"got {cache!r}."
        )


# Of the constructor ------------------------------------------------------------------------------


MOST = 2**31 - 1  # rows, slots, heads ...: more would be an overflow somewhere in torch


def check_sizes(config, batch_size: int, max_length: int | None) -> None:
    """Refuse a cache of no rows or no slots, a model in the place of its config, and sizes that are none."""
    if not is_whole(batch_size) or batch_size < 1:
        raise ValueError(f"A cache has a whole number of rows, at least 1; got batch_size={batch_size!r}.")
    if max_length is not None and (not is_whole(max_length) or max_length < 1):
        raise ValueError(f"A cache has a whole number of slots, at least 1; got max_length={max_length!r}.")
    for name in ("num_layers", "num_kv_heads", "head_dim", "max_position"):
        if not hasattr(config, name):
            raise ValueError(
                f"A cache is made with a config, such as model.config; a {type(config).__name__} has no "
                f"{name}."
            )
        whole(getattr(config, name), name, at_most=2**62 if name == "max_position" else MOST)
    for name, size in (("batch_size", batch_size), ("max_length", max_length)):
        if size is not None:
            whole(size, name, at_most=MOST)


def floating_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of stored keys and values; torch's default where none is given."""
    if dtype is None:
        return torch.get_default_dtype()
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(
            f"A cache stores floating-point numbers, dtype=torch.bfloat16 for example; got dtype={dtype!r}."
        )
    return dtype


def real_device(device: torch.device | str | None) -> torch.device:
    """The device that tensors have: "cuda" becomes "cuda:0", and None the CPU."""
    try:
        return torch.empty(0, device="cpu" if device is None else device).device
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:  # torch without CUDA: an assertion
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device={device!r} is no device of this torch: {reason}") from None


# Of a step ---------------------------------------------------------------------------------------


def check_layer(layer: int, num_layers: int) -> None:
    if not is_whole(layer) or not 0 <= layer < num_layers:
        raise ValueError(f"The cache has layers 0 to {num_layers - 1}; got layer {layer!r}.")


def check_is_tensor(name: str, tensor: Tensor) -> None:
    if not is_plain(tensor):
        raise ValueError(f"{name} is a tensor (batch, kv heads, length, head_dim); got {kind_of(tensor)}.")


def check_keys_values(cache, k: Tensor, v: Tensor) -> None:
    """Refuse new keys and values that the cache cannot hold as they are."""
    for name, tensor, (heads, head_dim) in (("k", k, cache.key_shape), ("v", v, cache.value_shape)):
        check_is_tensor(name, tensor)
        if tensor.ndim != 4 or tensor.shape != (cache.batch_size, heads, k.shape[2], head_dim):
            raise ValueError(
                f"{name} should be (batch, kv heads, length, head_dim) = ({cache.batch_size}, {heads}, "
                f"L, {head_dim}), with one L for k and v; got {tuple(tensor.shape)}."
            )
        if tensor.dtype != cache.dtype or tensor.device != cache.device:
            raise ValueError(
                f"{name} is {tensor.dtype} on {tensor.device} and the cache holds {cache.dtype} on "
                f"{cache.device}; make the cache with dtype=model.dtype, device=model.device."
            )
        if tensor.is_meta:
            raise ValueError(f"{name} is {kind_of(tensor)}; a step is taken with numbers.")


def check_room(cache, length: int) -> None:
    """Refuse more tokens than there are empty slots."""
    if cache.max_length is not None and cache.length + length > cache.max_length:
        raise ValueError(
            f"The cache has room for {cache.max_length} slots and holds {cache.length}; {length} more do "
            "not fit. Make it with a larger max_length, or truncate or reset it."
        )


def check_positions(positions: Tensor, shape: tuple[int, int]) -> None:
    """Refuse what is not one whole number for each token, (batch, length)."""
    if not is_whole_tensor(positions):
        raise ValueError(
            f"positions are a tensor of integers (batch, length) = {shape}; got {kind_of(positions)}."
        )
    if positions.shape != shape:
        raise ValueError(
            f"positions are integers of shape (batch, length) = {shape}; got {positions.dtype} of shape "
            f"{tuple(positions.shape)}."
        )


def check_order(positions: Tensor, following: Tensor | None = None) -> None:
    """Refuse positions (B, L) that a row has already, that fall, or that are below -1.

    Args:
        following: (B, 1), the smallest that each row may have next; left out, 0.
    """
    positions = positions.long()
    if following is None:
        following = torch.zeros_like(positions[:, :1])
    held = positions >= 0
    # The largest position before each one, stored or earlier in this chunk.
    before = torch.cat((following - 1, positions), dim=1).cummax(dim=1).values[:, :-1]
    if bool((positions < -1).any()) or bool((held & (positions <= before)).any()):
        raise ValueError(
            "Positions increase strictly in a row, and -1 marks padding; got "
            f"{describe_positions(positions)} where the next are {following.flatten().tolist()}."
        )


def check_last_position(positions: Tensor, max_position: int) -> None:
    """Refuse positions that the model does not have."""
    if positions.numel() and int(positions.max()) >= max_position:
        raise ValueError(f"Position {int(positions.max())} is past the model's last, {max_position - 1}.")


def describe_positions(positions) -> str:
    """The first and the last of each row, for a message."""
    if positions is None:
        return "positions that go on from the last"
    if not isinstance(positions, Tensor) or positions.ndim != 2:
        return f"positions {positions!r}"
    first, last = positions[:, :1].flatten().tolist(), positions[:, -1:].flatten().tolist()
    return f"positions {first} to {last}" if positions.shape[1] > 1 else f"positions {first}"


# Of truncate and reorder -------------------------------------------------------------------------


def slots_to_keep(cache, given) -> Tensor:
    """What truncate was given: (B,) numbers of slots, or () for one number; refused where none."""
    slots = _whole_numbers(given, cache.device)
    if slots is None:
        raise ValueError(f"truncate takes whole numbers of slots; got {given!r}.")
    if slots.ndim > 1 or (slots.ndim == 1 and len(slots) != cache.batch_size):
        raise ValueError(
            f"truncate takes one number, or one for each of the {cache.batch_size} rows; got {given!r}."
        )
    if int(slots.min()) < 0 or int(slots.max()) > cache.length:
        raise ValueError(
            f"truncate keeps 0 to {cache.length} slots, which is what the cache holds; got {given!r}."
        )
    return slots


def rows_to_take(cache, given) -> Tensor:
    """What reorder was given: the numbers of one or more rows; refused where they are none."""
    rows = _whole_numbers(given, cache.device)
    if rows is None or rows.ndim != 1 or len(rows) == 0:
        raise ValueError(f"reorder takes a list of one or more row numbers; got {given!r}.")
    if int(rows.min()) < 0 or int(rows.max()) >= cache.batch_size:
        raise ValueError(f"reorder takes rows 0 to {cache.batch_size - 1}; got {rows.tolist()}.")
    return rows.long()


def _whole_numbers(given, device) -> Tensor | None:
    try:
        numbers = torch.as_tensor(given, device=device)
    except (TypeError, ValueError, RuntimeError):
        return None
    return numbers if is_whole_tensor(numbers) else None
