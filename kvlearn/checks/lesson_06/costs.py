"""Answers that must not only be right but also cheap: in bytes that are alive, or in operations."""

from kvlearn.checks.call import call_function
from kvlearn.checks.compare import compare, is_tensor
from kvlearn.checks.engine import WrongAnswer
from kvlearn.measure import StorageMeter


def observe_memory(reference, limit, sentence: str):
    """An `observe` that refuses right numbers if limit(case) bytes or more were alive on the way."""
    return _observe(reference, limit, sentence, StorageMeter, lambda meter: meter.peak, "bytes were alive")


def observe_operations(reference, limit, sentence: str):
    """An `observe` that refuses right numbers if matrix products took limit(case) operations or more."""

    def counter():
        from torch.utils.flop_counter import FlopCounterMode  # not paid for by `import kvlearn`

        return FlopCounterMode(display=False)

    return _observe(
        reference, limit, sentence, counter, lambda c: c.get_total_flops(), "operations were done"
    )


def _observe(reference, limit, sentence, make_meter, read, unit):
    """Wrong numbers are given back as they are: what is wrong with them comes first."""

    def observe(answer, case):
        if answer is reference:
            return call_function(answer, case)
        with make_meter() as meter:
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
