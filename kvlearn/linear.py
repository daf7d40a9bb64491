"""A linear layer that reads its weights with all cores, also when there is only one token.

A decode step multiplies every weight matrix by one vector. Nothing is reused: each weight is read from memory
for one multiplication, and the time is the time to read them. On a CPU torch gives such a product to a single
core, which cannot draw all the bandwidth of the memory. The rows of the matrix are independent, so here each
core is given its share of them.

`python3 dev.py bench` measures what a decode step takes beside what the memory allows.
"""

import math

import torch
from torch import Tensor, nn

FEW_TOKENS = 8  # with more, the matrix library shares the work out itself


class Linear(nn.Linear):
    """x W^T, and a bias where asked for: (..., in_features) -> (..., out_features), as `torch.nn.Linear`."""

    def __init__(self, in_features: int, out_features: int, bias: bool = False):
        super().__init__(in_features, out_features, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[:-1].numel()
        shares = math.gcd(torch.get_num_threads(), self.out_features)
        if x.device.type != "cpu" or tokens > FEW_TOKENS or shares == 1:
            return super().forward(x)
        weight = self.weight.unflatten(0, (shares, -1))  # (shares, out_features / shares, in_features)
        everyone = x.reshape(1, tokens, -1).expand(shares, -1, -1)
        out = torch.bmm(everyone, weight.mT)  # (shares, tokens, out_features / shares)
        out = out.transpose(0, 1).reshape(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias
