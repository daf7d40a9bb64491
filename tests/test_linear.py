"""The linear layer that shares its rows out among the cores, against a float64 loop and torch's own."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kvlearn.linear import FEW_TOKENS, Linear

IN = 7


@pytest.fixture(params=[1, 2, 3, 4])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def layer(out_features, dtype=torch.float64):
    torch.manual_seed(0)
    return Linear(IN, out_features).to(dtype)


def by_hand(x, weight):
    """Each number of the output as a sum of Python floats."""
    rows = [
        [sum(a * b for a, b in zip(row, w, strict=True)) for w in weight.tolist()]
        for row in x.reshape(-1, IN).tolist()
    ]
    return torch.tensor(rows, dtype=torch.float64).reshape(*x.shape[:-1], len(weight))


@pytest.mark.parametrize("out_features", [12, 6, 5, 1])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 5), (2, 4), (3, 3), (2, 5, 3), ()])
def test_is_x_times_the_transposed_weight(threads, shape, out_features):
    """Shares put back in the wrong order: tokens and shares change places as soon as there are two of each.

    Sizes that the cores do not divide would lose rows, or raise."""
    linear = layer(out_features)
    x = torch.randn(*shape, IN, dtype=torch.float64)
    out = linear(x)
    assert out.shape == (*shape, out_features)
    torch.testing.assert_close(out, by_hand(x, linear.weight), atol=1e-12, rtol=0)


def test_a_bias_is_added_once(threads):
    """Qwen2's biases, lost in the shares or added by each of them."""
    torch.manual_seed(0)
    linear = Linear(IN, 12, bias=True).double()
    x = torch.randn(2, 1, IN, dtype=torch.float64)
    torch.testing.assert_close(linear(x), by_hand(x, linear.weight) + linear.bias, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_is_torchs_linear_in_low_precision(threads, dtype):
    """A share computed in another dtype than the layer's."""
    linear = layer(12, dtype)
    x = torch.randn(2, 3, IN, dtype=dtype)
    torch.testing.assert_close(linear(x), torch.nn.functional.linear(x, linear.weight))


def test_gradients_are_torchs(threads):
    """A detached share: fine-tuning would leave its rows as they were."""
    linear = layer(12)
    x = torch.randn(1, 2, IN, dtype=torch.float64, requires_grad=True)
    (linear(x) ** 2).sum().backward()
    ours = (x.grad.clone(), linear.weight.grad.clone())
    x.grad = linear.weight.grad = None
    (torch.nn.functional.linear(x, linear.weight) ** 2).sum().backward()
    torch.testing.assert_close(ours, (x.grad, linear.weight.grad))


class Products(TorchDispatchMode):
    """The products that were done: how many matrices in one call, and where they lie."""

    def __init__(self):
        super().__init__()
        self.shares, self.weights = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.bmm.default:
            self.shares.append(args[1].shape[0])
            self.weights.append(args[1].data_ptr())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("tokens, shared", [(1, True), (FEW_TOKENS, True), (FEW_TOKENS + 1, False)])
def test_few_tokens_are_shared_out_and_many_are_not(tokens, shared):
    """One token on one core: right, and half as fast. A copy of the weights: it would read them twice."""
    linear = layer(6)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        with torch.no_grad(), Products() as seen:
            linear(torch.randn(1, tokens, IN, dtype=torch.float64))
    finally:
        torch.set_num_threads(before)
    assert seen.shares == ([2] if shared else [])  # gcd(4 cores, 6 rows)
    assert set(seen.weights) <= {linear.weight.data_ptr()}
