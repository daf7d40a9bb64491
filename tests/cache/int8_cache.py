"""A right lossy cache that is not the library's, for the conformance suite to accept.

It quantises when the step is over, so that an unfinished step leaves nothing to take back. It does not say
how it quantises.
"""

import torch

from kvlearn.cache import KVCache


class Int8Cache(KVCache):
    """int8 codes with one scale a token and head in rooms of a fixed size, and the newest 6 tokens exact."""

    exact, newest = False, 6

    def __init__(self, config, batch_size=1, dtype=None):
        super().__init__(config, batch_size, max_length=config.max_position, dtype=dtype)

    def _start(self, batch_size):
        heads, dim = self.key_shape
        room = self.num_layers, 2, batch_size, heads, self.max_position
        self.codes, self.scale = torch.empty(*room, dim, dtype=torch.int8), torch.empty(*room, 1)
        self.recent = [torch.empty(2, batch_size, heads, 0, dim, dtype=self.dtype)] * self.num_layers
        self.coded = 0

    def _append(self, layer, k, v):
        self.recent[layer] = torch.cat((self.recent[layer], torch.stack((k, v))), dim=3)
        codes, scale = (room[layer, :, :, :, : self.coded] for room in (self.codes, self.scale))
        return tuple(torch.cat(((codes * scale).to(self.dtype), self.recent[layer]), dim=3))

    def _settle(self):
        due = max(0, self.recent[0].shape[3] - self.newest)
        for layer, recent in enumerate(self.recent):
            codes, scale = self.quantize(recent[:, :, :, :due])
            self.codes[layer, :, :, :, self.coded : self.coded + due] = codes
            self.scale[layer, :, :, :, self.coded : self.coded + due] = scale
            self.recent[layer] = recent[:, :, :, due:].clone()
        self.coded += due

    def quantize(self, x):
        """x (2, B, Hkv, L, D)."""
        scale = x.abs().amax(dim=4, keepdim=True).float() / 127
        return (x / scale.clamp(min=1e-30)).round(), scale

    def truncate(self, length):
        super().truncate(length)
        self.coded = min(self.coded, self.length)

    def _truncate(self, layer, length):
        self.recent[layer] = self.recent[layer][:, :, :, : max(0, length - self.coded)].clone()

    def _reorder(self, index):
        self.codes, self.scale = self.codes[:, :, index], self.scale[:, :, index]
        self.recent = [recent[:, index] for recent in self.recent]

    def _tensors(self):
        return [room[:, :, :, :, : self.coded] for room in (self.codes, self.scale)] + self.recent
