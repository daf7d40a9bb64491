"""Wrong quantised caches, for the exercise quantized_cache: one right cache, and what can be done wrong."""

import torch

from kvlearn.cache import KVCache


class Right(KVCache):
    """A right cache, whose parts the misconceptions replace."""

    code_dtype, scale_dims = torch.int8, -1

    def __init__(self, config, residual=4, batch_size=1, dtype=None, device=None):
        self.residual = residual
        super().__init__(config, batch_size, dtype=dtype, device=device)

    def _start(self, batch_size):
        self._sides = {}

    def _append(self, layer, k, v):
        return self._put((layer, "k"), k), self._put((layer, "v"), v)

    def _put(self, key, new):
        nothing = new[:, :, :0]
        codes, scale, recent = self._sides.get(
            key, (nothing.to(self.code_dtype), nothing[..., :1].clone(), nothing)
        )
        recent = torch.cat((recent, new), dim=2)
        due = max(0, min(self._due(recent, new), recent.shape[2]))
        more, its_scale = self._quantize(recent[:, :, :due])
        back = torch.cat((self._numbers(codes, scale), recent), dim=2)
        codes, scale = torch.cat((codes, more), dim=2), torch.cat((scale, its_scale), dim=2)
        self._sides[key] = codes, scale, self._keep(recent[:, :, due:])
        return back

    def _keep(self, recent):
        return recent.clone()

    def _due(self, recent, new):
        return recent.shape[2] - self.residual

    def _quantize(self, x):
        if x.shape[2] == 0:
            return x.to(self.code_dtype), x[..., :1]
        scale = x.abs().amax(dim=self.scale_dims, keepdim=True) / 127
        scale = scale.expand(*x.shape[:-1], 1).clone()
        return (x / scale.masked_fill(scale == 0, 1)).round().to(self.code_dtype), scale

    def _numbers(self, codes, scale):
        return codes.to(self.dtype) * scale

    def _truncate(self, layer, length):
        for key in ((layer, "k"), (layer, "v")):
            if key in self._sides:
                codes, scale, recent = self._sides[key]
                left = max(0, length - codes.shape[2])
                self._sides[key] = (
                    codes[:, :, :length].clone(), scale[:, :, :length].clone(), recent[:, :, :left].clone(),
                )  # fmt: skip

    def _tensors(self):
        return [tensor for side in self._sides.values() for tensor in side]


class SliceKept(Right):
    def _keep(self, recent):
        return recent


class OwnTokensAsCodes(Right):
    def _put(self, key, new):
        super()._put(key, new)
        codes, scale, recent = self._sides[key]
        return torch.cat((self._numbers(codes, scale), recent), dim=2)


class OneExactTooFew(Right):
    def _due(self, recent, new):
        return recent.shape[2] - max(0, self.residual - 1) if self.residual else recent.shape[2]


class OneExactTooMany(Right):
    def _due(self, recent, new):
        return recent.shape[2] - self.residual - 1


class LengthOfThisCall(Right):
    def _due(self, recent, new):
        return new.shape[2] - self.residual


class EmptiedWhole(Right):
    def _due(self, recent, new):
        return recent.shape[2] if recent.shape[2] > self.residual else 0


class PromptAtOnce(Right):
    def _due(self, recent, new):
        return recent.shape[2] - self.residual if new.shape[2] == 1 else recent.shape[2]


class NoWindow(Right):
    def _due(self, recent, new):
        return recent.shape[2]


class NeverCodes(Right):
    def _due(self, recent, new):
        return 0


class ScaleDropped(Right):
    def _numbers(self, codes, scale):
        return codes.to(self.dtype)


class FloatCodes(Right):
    code_dtype = torch.float32


class ScalesUncounted(Right):
    def _tensors(self):
        return [tensor for codes, _, recent in self._sides.values() for tensor in (codes, recent)]


class BatchScale(Right):
    scale_dims = (0, 3)


class QuantisedAgain(Right):
    """All is dequantised, and put into codes anew but for the newest."""

    def _put(self, key, new):
        if key in self._sides:
            codes, scale, recent = self._sides[key]
            recent = torch.cat((self._numbers(codes, scale), recent), dim=2)
            self._sides[key] = codes[:, :, :0], scale[:, :, :0], recent
        return super()._put(key, new)


class CutsTheWindowOnly(Right):
    def _truncate(self, layer, length):
        for key in ((layer, "k"), (layer, "v")):
            if key in self._sides:
                codes, scale, recent = self._sides[key]
                left = max(0, length - codes.shape[2])
                self._sides[key] = codes, scale, recent[:, :, :left].clone()


class ExactAgainNever(Right):
    """Going back cuts the codes and leaves the window as it was."""

    def _truncate(self, layer, length):
        for key in ((layer, "k"), (layer, "v")):
            if key in self._sides:
                codes, scale, recent = self._sides[key]
                left = max(0, length - recent.shape[2])
                self._sides[key] = (
                    codes[:, :, :left].clone(), scale[:, :, :left].clone(), recent[:, :, :length].clone(),
                )  # fmt: skip
