"""Right answers to lesson 08 that were written independently of the library and of the course."""

import numpy as np
import torch

from kvlearn import KVCache


def int8_by_where(x):
    largest = x.abs().max(dim=3, keepdim=True).values
    scale = torch.where(largest > 0, largest / 127, torch.ones_like(largest))
    return torch.clamp(torch.round(x / scale), -127, 127).to(torch.int8), scale


def int8_by_rows(x):
    codes, scales = torch.empty(x.shape, dtype=torch.int8), torch.empty(*x.shape[:3], 1, dtype=x.dtype)
    for at in np.ndindex(*x.shape[:3]):
        scale = max(float(x[at].max()), -float(x[at].min())) / 127 or 1.0
        codes[at] = torch.round(x[at] / scale).to(torch.int8)
        scales[at] = scale
    return codes, scales


def asymmetric_by_aminmax(x, bits):
    low, high = torch.aminmax(x, dim=-1, keepdim=True)
    scale = (high - low) / (2**bits - 1)
    codes = ((x - low) / scale).nan_to_num(0.0).round().clamp(0, 2**bits - 1)
    return codes.to(torch.uint8), scale, low


def asymmetric_by_rows(x, bits):
    codes = torch.zeros(x.shape, dtype=torch.uint8)
    scale, zero = x.new_ones(*x.shape[:-1], 1), x.new_zeros(*x.shape[:-1], 1)
    for at in np.ndindex(*x.shape[:-1]):
        zero[at] = x[at].min()
        spread = x[at].max() - x[at].min()
        if spread > 0:
            scale[at] = spread / (2**bits - 1)
            codes[at] = ((x[at] - zero[at]) / scale[at]).round().to(torch.uint8)
    return codes, scale, zero


def pack_by_arithmetic(codes):
    low, high = codes[..., ::2].long() % 16, codes[..., 1::2].long() % 16
    return (low + 16 * high).to(torch.uint8)


def pack_by_numpy(codes):
    nibbles = codes.numpy().astype(np.uint8) & 0x0F
    pairs = nibbles.reshape(*nibbles.shape[:-1], -1, 2)
    return torch.from_numpy(pairs[..., 0] | pairs[..., 1] << 4)


def unpack_by_shifts(packed):
    signed = packed.view(torch.int8)
    low = (signed << 4) >> 4  # up to the sign's place, and down again with the sign
    return torch.stack((low, signed >> 4), dim=-1).reshape(*packed.shape[:-1], -1)


def unpack_by_xor(packed):
    out = torch.empty(*packed.shape[:-1], 2 * packed.shape[-1], dtype=torch.int8)
    out[..., 0::2] = ((packed % 16).to(torch.int8) ^ 8) - 8
    out[..., 1::2] = ((packed // 16).to(torch.int8) ^ 8) - 8
    return out


def groups_by_reshape(x, bits, quant_group, axis):
    B, H, T, D = x.shape
    if axis == "token":
        codes, scale, zero = asymmetric_by_aminmax(x.reshape(B, H, -1, quant_group), bits)
        return codes.reshape(x.shape), scale.reshape(B, H, T, -1), zero.reshape(B, H, T, -1)
    turned = x.transpose(2, 3).contiguous()
    codes, scale, zero = groups_by_reshape(turned, bits, quant_group, "token")
    return tuple(t.transpose(2, 3).contiguous() for t in (codes, scale, zero))


def groups_by_slices(x, bits, quant_group, axis):
    dim = 2 if axis == "channel" else 3
    parts = []
    for part in x.split(quant_group, dim=dim):
        low, high = part.amin(dim, keepdim=True), part.amax(dim, keepdim=True)
        scale = (high - low) / (2**bits - 1)
        safe = torch.where(scale == 0, torch.ones_like(scale), scale)
        parts.append((((part - low) / safe).round().to(torch.uint8), scale, low))
    return tuple(torch.cat(kind, dim=dim) for kind in zip(*parts, strict=True))


def fp8_by_minimum(x, scale):
    limit = torch.tensor(448.0, dtype=x.dtype)
    return torch.maximum(torch.minimum(x / scale, limit), -limit).to(dtype=torch.float8_e4m3fn)


def fp8_by_type(x, scale):
    steps = x / scale
    steps = steps.where(steps < 448, 448.0)
    return steps.where(steps > -448, -448.0).type(torch.float8_e4m3fn)


def codes_by_divmod(length, residual, quant_group):
    if length <= residual:
        return 0, 0
    groups, _ = divmod(length - residual, quant_group)
    return groups * quant_group, length - residual


def codes_by_ranges(length, residual, quant_group):
    values = len(range(residual, length))
    return values - values % quant_group, values


class ListOfTokens(KVCache):
    """A list of tokens for each layer and side: a pair of codes and scale, or the token itself."""

    def __init__(self, config, residual=4, batch_size=1, dtype=None, device=None):
        self.window = None
        self.exact_tokens = residual
        super().__init__(config, batch_size, dtype=dtype, device=device)

    def _start(self, batch_size):
        self.lists = {}

    def _append(self, layer, k, v):
        return tuple(self.put((layer, side), new) for side, new in enumerate((k, v)))

    def put(self, key, new):
        tokens = self.lists.setdefault(key, [])
        tokens += [(new[:, :, i].clone(),) for i in range(new.shape[2])]
        back = [t[0] if len(t) == 1 else t[0].to(self.dtype) * t[1] for t in tokens]
        for i in range(max(0, len(tokens) - self.exact_tokens)):
            if len(tokens[i]) == 1:
                largest = tokens[i][0].abs().amax(-1, keepdim=True)
                scale = torch.where(largest == 0, torch.ones_like(largest), largest / 127)
                tokens[i] = (tokens[i][0] / scale).round().to(torch.int8), scale
        return torch.stack(back, dim=2) if back else new

    def _truncate(self, layer, length):
        for side in range(2):
            del self.lists.setdefault((layer, side), [])[length:]

    def _tensors(self):
        return [tensor for tokens in self.lists.values() for token in tokens for tensor in token]


class OneTensorASide(KVCache):
    """Codes and scales of all layers in lists; keys and values in one tensor of twice the heads."""

    def __init__(self, config, residual=4, batch_size=1, dtype=None, device=None):
        self.keep = residual
        super().__init__(config, batch_size, dtype=dtype, device=device)

    def _start(self, batch_size):
        heads, dim = self.key_shape
        shape = batch_size, 2 * heads, 0
        self.codes = [torch.empty(*shape, dim, dtype=torch.int8) for _ in range(self.num_layers)]
        self.scales = [torch.empty(*shape, 1, dtype=self.dtype) for _ in range(self.num_layers)]
        self.new = [torch.empty(*shape, dim, dtype=self.dtype) for _ in range(self.num_layers)]

    def _append(self, layer, k, v):
        new = torch.cat((self.new[layer], torch.cat((k, v), dim=1)), dim=2)
        everything = torch.cat((self.codes[layer].to(self.dtype) * self.scales[layer], new), dim=2)
        border = max(new.shape[2] - self.keep, 0)
        old, self.new[layer] = new[:, :, :border], new[:, :, border:].clone()
        if border:
            codes, scales = int8_by_where(old)
            self.codes[layer] = torch.cat((self.codes[layer], codes), dim=2)
            self.scales[layer] = torch.cat((self.scales[layer], scales), dim=2)
        return everything.chunk(2, dim=1)

    def _truncate(self, layer, length):
        exact = max(0, length - self.codes[layer].shape[2])
        for kept, end in ((self.codes, length), (self.scales, length), (self.new, exact)):
            kept[layer] = kept[layer][:, :, :end].clone()

    def _tensors(self):
        return self.codes + self.scales + self.new


ALTERNATIVES = {
    "quantize_int8": [int8_by_where, int8_by_rows],
    "quantize_asymmetric": [asymmetric_by_aminmax, asymmetric_by_rows],
    "pack_int4": [pack_by_arithmetic, pack_by_numpy],
    "unpack_int4": [unpack_by_shifts, unpack_by_xor],
    "quantize_by_group": [groups_by_reshape, groups_by_slices],
    "to_fp8": [fp8_by_minimum, fp8_by_type],
    "tokens_in_codes": [codes_by_divmod, codes_by_ranges],
    "quantized_cache": [ListOfTokens, OneTensorASide],
}
