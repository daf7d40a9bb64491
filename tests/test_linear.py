"""The ways to multiply by a weight matrix, against a float64 loop; and how one of them is chosen."""

import pytest
import torch

from kvlearn import linear
from kvlearn.linear import FEW_TOKENS, by_inputs, by_length, by_outputs, fastest, least_time, whole, widened

IN = 6
WAYS = [whole, by_outputs, by_inputs, widened]


@pytest.fixture(params=[1, 2, 3, 4])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def matrix(out_features, by_column, dtype=torch.float64):
    weight = torch.randn(out_features, IN, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = weight.to(dtype)
    return weight.T.contiguous().T if by_column else weight


def by_hand(x, weight):
    """Each number of the output as a sum of Python floats."""
    rows = [
        [sum(a * b for a, b in zip(row, w, strict=True)) for w in weight.tolist()]
        for row in x.reshape(-1, IN).tolist()
    ]
    return torch.tensor(rows, dtype=torch.float64).reshape(*x.shape[:-1], len(weight))


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_x_times_the_transposed_weight(threads, way, by_column):
    """Catches shares put back in the wrong order: tokens and shares trade places once there are two of each.

    Sizes that the cores do not divide would lose rows or columns, or raise."""
    tolerance = 1e-5 if way is widened else 1e-12  # it computes in float32
    for out_features in (12, 5, 1):
        weight = matrix(out_features, by_column)
        for shape in [(1, 1), (3, 1), (1, 5), (2, 4), (2, 5, 3), ()]:
            x = torch.randn(*shape, IN, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            out = way(weight)(x)
            assert out.shape == (*shape, out_features)
            torch.testing.assert_close(out, by_hand(x, weight), atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_keeps_the_dtype(way, dtype):
    """Catches a share, or a widened product, that comes back in another dtype than x."""
    x = torch.randn(2, 3, IN, generator=torch.Generator().manual_seed(1)).to(dtype)
    weight = matrix(12, False, dtype)
    out = way(weight)(x)
    assert out.dtype == dtype
    exact = by_hand(x, weight)
    torch.testing.assert_close(
        out.double(), exact, atol=4 * torch.finfo(dtype).eps * exact.abs().max(), rtol=0
    )


def test_no_way_copies_the_weights():
    """Catches a copy made for the product: it would read all weights twice, or keep them twice."""
    for by_column, way in ((False, by_outputs), (True, by_inputs)):
        weight = matrix(12, by_column, torch.float32)
        product = way(weight)
        weight.fill_(2.0)
        assert product(torch.ones(1, IN)).tolist() == [[2.0 * IN] * 12]


@pytest.mark.parametrize("tokens, name", [(1, "few"), (FEW_TOKENS, "few"), (FEW_TOKENS + 1, "many")])
def test_few_tokens_and_many_have_their_own_way(tokens, name):
    """Catches a prompt multiplied token by token's way, or the length taken from the wrong axis."""
    product = by_length(lambda x: "few", lambda x: "many")
    assert product(torch.ones(1, tokens, IN)) == product(torch.ones(tokens, 1, IN)) == name


def test_the_least_time_wins(monkeypatch):
    """Catches the slowest taken for the fastest, and one slow turn that decides."""
    now, turns = [0.0], {"steady": 0, "unlucky": 0, "hopeless": 0}
    monkeypatch.setattr(linear.time, "perf_counter", lambda: now[0])
    costs = {"steady": [5] * 9, "unlucky": [9, 3, 9, 9], "hopeless": [90] * 9}

    def product(name):
        def run(x):
            now[0] += costs[name][turns[name]]
            turns[name] += 1

        return [run]

    assert least_time({name: product(name) for name in turns}, torch.ones(1)) == "unlucky"
    assert turns["hopeless"] == 1 and turns["unlucky"] == turns["steady"] == linear.ROUNDS


def test_a_large_matrix_is_timed_once_and_a_small_one_never(monkeypatch):
    """Catches a measurement for every layer of a model, and one whose matrices fit the processor's cache."""
    fastest.cache_clear()
    timed = []

    def record(candidates, x):
        timed.append({key: products for key, products in candidates.items()})
        return by_inputs, True

    monkeypatch.setattr(linear, "least_time", record)
    monkeypatch.setattr(linear, "BEYOND_CACHE_BYTES", 4_000_000)
    try:
        assert fastest(30, 20, torch.float32, 2) == (whole, False) and not timed
        assert [fastest(700, 500, torch.float32, 2) for _ in range(3)] == [(by_inputs, True)] * 3
    finally:
        fastest.cache_clear()
    (candidates,) = timed
    assert set(candidates) == {(whole, False), (by_outputs, False), (whole, True), (by_inputs, True)}
    assert {len(products) for products in candidates.values()} == {1 + 4_000_000 // (700 * 500 * 4)}


def test_bfloat16_is_widened_only_where_that_is_faster(monkeypatch):
    """Catches float32 rounded for nothing, and a choice that does not look at the measurement."""
    for way in (whole, widened):
        linear.fastest_for_many.cache_clear()
        monkeypatch.setattr(linear, "least_time", lambda candidates, x, way=way: way)
        try:
            assert linear.fastest_for_many(torch.bfloat16, 1) is way
            assert linear.fastest_for_many(torch.float32, 1) is whole
        finally:
            linear.fastest_for_many.cache_clear()


def test_only_a_part_of_a_huge_matrix_is_timed(monkeypatch):
    """Catches a measurement that needs several times the memory of the largest layer of a large model."""
    fastest.cache_clear()
    widths = []

    def record(candidates, x):
        widths.extend(products[0](x).shape[-1] for products in candidates.values())
        return whole, False

    monkeypatch.setattr(linear, "least_time", record)
    monkeypatch.setattr(linear, "HUGE_BYTES", 2_000_000)
    monkeypatch.setattr(linear, "BEYOND_CACHE_BYTES", 1_000_000)
    try:
        fastest(7000, 500, torch.float32, 2)
    finally:
        fastest.cache_clear()
    assert widths == [1000] * 4
