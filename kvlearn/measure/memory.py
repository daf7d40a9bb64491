"""Live memory, counted from the storages themselves.

A tensor is a view of a storage, and memory belongs to storages: several views cost nothing. The meter sees
every operation (a `TorchDispatchMode`), notes each new storage that it returns, and asks at every operation
which of them are still alive.
"""

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.ops import aten
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class StorageMeter(TorchDispatchMode):
    """Count the bytes of the storages made while a block runs, and their peak.

        with StorageMeter() as meter:
            cache = GrowingCache(decoder.config)                       # made inside, so that it counts
            generate(decoder, prompt, 20, cache=cache, on_token=meter.mark)
        meter.peak, meter.live, meter.peaks, meter.lives

    What was alive before the block (the weights) does not count. What a single operation allocates and frees
    inside itself is not seen. Works the same on every device.

    Args:
        dtype: count only storages that hold this dtype, for example a cache's: positions and masks are
            integers and booleans. None counts all.

    Attributes:
        live: bytes alive at the last operation, or at the last `mark`.
        peak: the most that was alive at once.
        lives, peaks: for each `mark`, the bytes alive then, and the most since the mark before.
        history: bytes alive after each operation that made a storage.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler at the first operation, which takes seconds

    def __init__(self, dtype: torch.dtype | None = None):
        super().__init__()
        self.dtype = dtype
        self.live = self.peak = 0
        self.lives: list[int] = []
        self.peaks: list[int] = []
        self.history: list[int] = []
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._peak_since_mark = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        # `torch.tensor(...)` makes its storage before the first operation; lift_fresh is where it shows.
        given = set() if func is aten.lift_fresh.default else {_key(t) for t in _tensors((args, kwargs))}
        result = func(*args, **kwargs)
        made = False
        for tensor in _tensors(result):
            key = _key(tensor)
            # A view or an in-place result has the storage of an argument: made earlier, here or outside.
            if key in given or self._holds(key):
                continue
            if self.dtype in (None, tensor.dtype):
                storage = tensor.untyped_storage()
                self._alive[key] = (StorageWeakRef(storage), storage.nbytes())
                made = True
        if made:
            self._count()
            self.history.append(self.live)
        return result

    def _holds(self, key: int) -> bool:
        return key in self._alive and not self._alive[key][0].expired()

    def _count(self):
        self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
        self.live = sum(nbytes for _, nbytes in self._alive.values())
        self.peak = max(self.peak, self.live)
        self._peak_since_mark = max(self._peak_since_mark, self.live)

    def mark(self, *_):
        """End a step: note the bytes alive now and the peak since the last mark. Serves as `on_token`."""
        self._count()
        self.lives.append(self.live)
        self.peaks.append(self._peak_since_mark)
        self._peak_since_mark = self.live

    def __exit__(self, *exc):
        self._count()
        return super().__exit__(*exc)


def _tensors(tree) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
