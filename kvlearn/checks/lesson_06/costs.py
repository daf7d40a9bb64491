"""Answers that must not only be right but also cheap: in bytes that are alive, or in operations.

What is done outside torch cannot be counted, and is refused.
"""

from contextlib import ExitStack

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kvlearn.checks.call import call_function
from kvlearn.checks.compare import compare, is_tensor
from kvlearn.checks.engine import WrongAnswer
from kvlearn.measure import StorageMeter


def observe_memory(reference, limit, sentence: str):
    """An `observe` that refuses right numbers if limit(case) bytes or more were alive on the way."""
    return _observe(reference, limit, sentence, StorageMeter, lambda meter: meter.peak, "bytes were alive")


def observe_operations(reference, limit, sentence: str):
    """An `observe` that refuses right numbers if limit(case) operations or more were done."""
    return _observe(
        reference, limit, sentence, _Operations, lambda meter: meter.total, "operations were done"
    )


class _Operations(ExitStack):
    """Operations of matrix products, and of sums of products that are written without one."""

    def __enter__(self):
        from torch.utils.flop_counter import FlopCounterMode  # not paid for by `import kvlearn`

        super().__enter__()
        self.products = self.enter_context(FlopCounterMode(display=False))
        self.others = self.enter_context(_Elementwise(self.products.flop_registry))
        return self

    @property
    def total(self) -> int:
        return self.products.get_total_flops() + self.others.total


class _Elementwise(TorchDispatchMode):
    """Two operations for each number that an operation reads or makes, whichever are more; none for views."""

    def __init__(self, counted_elsewhere):
        super().__init__()
        self.elsewhere, self.total = counted_elsewhere, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given, made = _tensors((args, kwargs)), _tensors(result)
        storages = {tensor.untyped_storage()._cdata for tensor in given}
        view = all(tensor.untyped_storage()._cdata in storages for tensor in made)
        if func._overloadpacket not in self.elsewhere and (func._schema.is_mutable or not view):
            self.total += 2 * max(tensor.numel() for tensor in given + made)
        return result


def _tensors(tree) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class _InTorch(TorchFunctionMode):
    """Refuses to let numbers out of torch, where nobody counts what is done with them."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.tolist):
            raise WrongAnswer(
                "This check counts what is done on the way, and it can count in torch only: please leave "
                "the numbers in tensors, without numpy and lists."
            )
        return function(*args, **(kwargs or {}))


def _observe(reference, limit, sentence, make_meter, read, unit):
    """Wrong numbers are given back as they are: what is wrong with them comes first."""

    def observe(answer, case):
        if answer is reference:
            return call_function(answer, case)
        with make_meter() as meter, _InTorch():
            result = call_function(answer, case)
        cost = read(meter)
        if is_tensor(result) and cost >= limit(case):
            if compare(result, reference(*case.inputs.values())) is None:
                raise WrongAnswer(
                    f"The numbers are right. {sentence} With {case.label}: {cost:,} {unit}; fewer than "
                    f"{limit(case):,} are wanted."
                )
        return result

    return observe
