"""What kvlearn.hf refuses: a sentence each, and the cache as it was."""

import copy
import dataclasses
import types

import pytest
import torch
import transformers
from hf_caches import CONFIG, MODEL, ids, made, run, same
from other_caches import ListCache
from tiny_models import SIZES

from kvlearn import GrowingCache, StaticCache
from kvlearn.hf import cache_config, prepare, to_hf

pytestmark = pytest.mark.slow  # generates with transformers many times over


def test_what_to_hf_refuses():
    """A class, a wrapped cache, transformers' own, and one that only looks like a cache: a sentence each."""
    for wrong in (GrowingCache, None, "growing", 3, MODEL):
        with pytest.raises(ValueError, match="A cache is made before it is given"):
            to_hf(wrong)
    for theirs in (to_hf(made("growing")), transformers.DynamicCache()):
        with pytest.raises(ValueError, match="is one of transformers already"):
            to_hf(theirs)
    with pytest.raises(ValueError, match="a subclass of kvlearn.KVCache.* got a ListCache"):
        to_hf(ListCache(CONFIG))


@pytest.mark.parametrize(
    "field, value, told, late",
    [
        ("num_layers", 2, r"layers 2 where the model has 3", "The cache has 2 layers and the model more"),
        ("num_layers", 5, r"layers 5 where the model has 3", "waits for layer 3 of 5 .* fewer layers"),
        (
            "num_kv_heads",
            6,
            r"\(6, 10\) where the model has \(2, 10\)",
            r"\(1, 6, L, 10\).*got \(1, 2, 4, 10\)",
        ),
        ("head_dim", 7, r"\(2, 7\) where the model has \(2, 10\)", r"\(1, 2, L, 7\).*got \(1, 2, 4, 10\)"),
    ],
)
def test_a_cache_of_another_model(field, value, told, late):
    """Refused when the model is given, and in its first passes when it is not: with more layers than the
    model a cache's step would never end, and each new one drop the last."""
    cache = GrowingCache(dataclasses.replace(CONFIG, **{field: value}), dtype=torch.float64)
    with pytest.raises(ValueError, match=told + ".*cache_config"):
        to_hf(cache, MODEL)
    with pytest.raises(ValueError, match=late):
        run(ids(1, 4), to_hf(cache))


def test_a_cache_of_another_dtype_or_batch():
    """The adapter's refusals name the rows, also where beams made them."""
    with pytest.raises(ValueError, match="dtype torch.float32 where the model has torch.float64"):
        to_hf(GrowingCache(CONFIG), MODEL)
    with pytest.raises(ValueError, match="k is torch.float64 on cpu and the cache holds torch.float32"):
        run(ids(1, 4), to_hf(GrowingCache(CONFIG)))
    cache = made("growing", 2)
    for rows, beams in ((1, 1), (3, 1), (2, 3)):
        with pytest.raises(
            ValueError, match=f"computes {rows * beams} rows .* cache has 2; make it with batch"
        ):
            run(ids(rows, 4), to_hf(cache), num_beams=beams)
    assert cache.length == 0
    same(run(ids(2, 4), to_hf(cache)), run(ids(2, 4), None))


def test_what_prepare_refuses():
    """An empty prompt, a mask of another shape, rows that are not the cache's."""
    cache = made("growing", 4)
    for wrong in ([[1.0, 2.0]], torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)):
        with pytest.raises(ValueError, match="The prompt's tokens are whole numbers; got torch"):
            prepare(cache, wrong)
    for number in (2, -1, 0.5, float("nan")):
        with pytest.raises(ValueError, match="attention_mask is 1 where there is a token and 0 at padding"):
            prepare(cache, ids(2, 3), torch.tensor([[number, 1, 1], [0, 1, 1]]))
    with pytest.raises(ValueError, match="attention_mask is 0 in all of a row"):
        prepare(cache, ids(2, 3), torch.tensor([[0, 1, 1], [0, 0, 0]]))
    for mask in ([[0, 1, 1], [1, 1, 1]], torch.tensor([[0.0, 1, 1], [1, 1, 1]])):
        padding = prepare(cache, ids(2, 3), mask).padding
        assert padding.tolist() == [[True, False, False]] * 2 + [[False] * 3] * 2
    for wrong in ([], [[]], [[1, 2], [3]], "text", None, torch.tensor(3), ids(2, 3, 4)):
        with pytest.raises(ValueError, match="prompt is .batch, length., with at least one token"):
            prepare(cache, wrong)
    with pytest.raises(ValueError, match=r"attention_mask has .* \(2, 5\); got \(2, 4\)"):
        prepare(cache, ids(2, 5), torch.ones(2, 4))
    with pytest.raises(ValueError, match="The prompt has 3 rows and the cache 4"):
        prepare(cache, ids(3, 5))
    with pytest.raises(ValueError, match="A cache is made before it is given"):
        prepare(GrowingCache, ids(1, 5))


def test_what_an_adapter_refuses():
    """What transformers never gives and a person may: the cache is as it was."""
    hf = to_hf(made("growing", 2))
    run(ids(2, 4), hf)
    held = hf.cache.positions.tolist()
    for wrong in ([5], [-1], [], None, "x", torch.tensor([True])):
        with pytest.raises(ValueError, match="reorder takes"):
            hf.batch_select_indices(wrong)
    for wrong, said in ((-1, "repeats must be at least 1; got -1"), ("x", "repeats is a whole number")):
        with pytest.raises(ValueError, match=said):
            hf.batch_repeat_interleave(wrong)
    with pytest.raises(ValueError, match="k is a tensor .* got a NoneType"):
        hf.update(None, None, 0)
    with pytest.raises(ValueError, match="A layer is a whole number; got None"):
        hf.update(torch.ones(2, 2, 1, 10), torch.ones(2, 2, 1, 10), None)
    assert hf.cache.positions.tolist() == held
    hf.batch_select_indices(torch.tensor([False, True]))
    hf.batch_repeat_interleave(3)
    assert hf.batch_size == 3 and hf.cache.positions.tolist() == [held[1]] * 3


def test_no_room():
    """A static cache that is full says so before it has stored anything of the step."""
    prompt, cache = ids(1, 6), StaticCache(CONFIG, max_length=8, dtype=torch.float64)
    with pytest.raises(ValueError, match="room for 8 slots and holds 8; 1 more do not fit"):
        run(prompt, to_hf(cache))
    same(run(prompt, prepare(cache, prompt), new=3), run(prompt, None, new=3))


def test_the_sizes_of_a_model():
    """head_dim and key/value heads that a config leaves out or calls otherwise; windows layer by layer."""
    read = cache_config(MODEL)
    assert (read.num_layers, read.num_kv_heads, read.head_dim, read.max_position) == (3, 2, 10, 97)
    assert read.windows == (None, None, None)
    sizes = {"vocab_size": 19, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 33}
    read = cache_config(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)))
    assert (read.num_layers, read.num_kv_heads, read.head_dim, read.max_position) == (2, 4, 6, 33)
    hybrid = {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1}
    read = cache_config(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES | hybrid)))
    assert read.windows == (None, 5, 5)
    with pytest.raises(ValueError, match="cache_config reads a model of transformers; got a int"):
        cache_config(3)
    with pytest.raises(ValueError, match="needs num_attention_heads, a whole number"):
        cache_config(torch.nn.Module.__new__(type("Odd", (), {"config": transformers.PreTrainedConfig()})))


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers is 2"),
        ({"kv_lora_rank": 32}, "kv_lora_rank is 32. In latent attention"),
        ({"v_head_dim": 6}, "heads of several sizes .head_dim 10, v_head_dim 6"),
        ({"global_head_dim": 20}, "heads of several sizes .global_head_dim 20, head_dim 10"),
    ],
)
def test_models_whose_layers_keep_other_shapes(fields, words):
    """Gemma 3n's shared layers, DeepSeek's latents, heads of two sizes: a cache whose passes never end, or
    that is made for another width."""
    config = copy.deepcopy(MODEL.config)
    for name, value in fields.items():
        setattr(config, name, value)
    model = types.SimpleNamespace(config=config)
    with pytest.raises(ValueError, match=words):
        cache_config(model)


def test_beams_are_not_reordered_in_the_middle_of_a_pass():
    """A cache with more layers than the model: beam search dropped each pass, and the text was wrong."""
    hf = to_hf(made("growing", 2))
    k = torch.zeros(2, CONFIG.num_kv_heads, 3, CONFIG.head_dim, dtype=torch.float64)
    hf.update(k, k, 0)
    with pytest.raises(ValueError, match="has not written all 3 layers of the cache"):
        hf.reorder_cache(torch.tensor([1, 0]))
    for layer in (1, 2):
        hf.update(k, k, layer)
    hf.reorder_cache(torch.tensor([1, 0]))
    assert hf.cache.length == 3
