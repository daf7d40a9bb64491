"""`kvlearn size`: one model on one napkin, as a table to paste into a design document.

`Napkin` holds what was asked, `numbers` what came out (that is --json), `rows` the table: what, how much, and
the formula with the numbers put in.
"""

import io
import os
from collections import Counter
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from kvlearn import sizing
from kvlearn.sizing import CacheType, ModelShape, show_bytes


@dataclass(frozen=True)
class Napkin:
    """What is asked: a model, and how it is to be served."""

    shape: ModelShape
    context: int
    batch: int
    cache: CacheType
    weights: str
    memory: int | None = None
    block: int | None = None
    ranks: int = 1

    def numbers(self) -> dict:
        """Everything counted, in bytes, tokens and sequences; None where it cannot be said."""
        shape, kind, serve = self.shape, self.cache, {"block": self.block, "ranks": self.ranks}
        sequence = sizing.cache_bytes(shape, self.context, 1, kind, **serve)
        found = {
            "model": shape.name, "attention": shape.kind, "context": self.context, "batch": self.batch,
            "cache": kind.name, "weights": self.weights, "ranks": self.ranks, "block": self.block,
            "bytes_per_token": sizing.bytes_per_token(shape, kind, ranks=self.ranks),
            "sequence_bytes": sequence, "batch_bytes": sequence * self.batch,
            "parameters": shape.parameters, "weight_bytes": None, "total_bytes": None,
            "memory_bytes": self.memory, "fits": None, "max_batch": None, "max_context": None,
            "model_max_context": shape.max_position, "crossover_batch": None, "notes": list(shape.notes),
        }  # fmt: skip
        if shape.parameters is None:
            return found
        weight = sizing.weight_bytes(shape, self.weights, ranks=self.ranks)
        found |= {"weight_bytes": weight, "total_bytes": weight + sequence * self.batch}
        found["crossover_batch"] = weight // sequence + 1
        if self.memory is not None:
            found["fits"] = found["total_bytes"] <= self.memory
            given = (self.memory, kind, self.weights)
            found["max_batch"] = sizing.max_batch(shape, self.context, *given, **serve)
            found["max_context"] = sizing.max_context(
                shape, self.memory, self.batch, kind, self.weights, **serve
            )
        return found

    def rows(self) -> list[tuple[str, str, str]]:
        """(what, how much, how it was counted)."""
        n = self.numbers()
        on_rank = f", one of {self.ranks} ranks" if self.ranks > 1 else ""
        tokens = f"{self.context:,} tokens"
        rows = [
            ("cache of one token", show_bytes(n["bytes_per_token"]), self.token_formula()),
            (f"one sequence of {tokens}", show_bytes(n["sequence_bytes"]), self.sequence_formula()),
            (f"batch of {self.batch:,}", show_bytes(n["batch_bytes"]), f"x {self.batch:,}"),
        ]
        if n["weight_bytes"] is None:
            return [*rows, ("weights", "not known", "say how many: --parameters 8B")]
        bits = sizing.weight_bits(self.weights)
        shared = f" / {self.ranks} ranks" if self.ranks > 1 else ""
        rows += [
            (f"weights in {self.weights}", show_bytes(n["weight_bytes"]),
             f"{n['parameters']:,} parameters x {bits} bits / 8{shared}"),
            ("weights and cache" + on_rank, show_bytes(n["total_bytes"]), ""),
            (f"the cache outweighs the weights from batch {n['crossover_batch']:,}", f"at {tokens}",
             f"weights / sequence = {n['weight_bytes'] / n['sequence_bytes']:,.2f}"),
        ]  # fmt: skip
        return rows + (self.memory_rows(n) if self.memory is not None else [])

    def memory_rows(self, n: dict) -> list[tuple[str, str, str]]:
        left = self.memory - n["total_bytes"]
        room = self.memory - n["weight_bytes"]
        fits = f"yes, {show_bytes(left)} left" if left >= 0 else f"no, {show_bytes(-left)} short"
        beside = f"{show_bytes(room)} beside the weights" if room >= 0 else "the weights alone do not fit"
        longest = n["max_context"]
        longest = "no limit: every layer has a window" if longest is None else f"{longest:,} tokens"
        own = n["model_max_context"]
        if own is not None and (n["max_context"] is None or n["max_context"] > own):
            beside_own = f"{beside}; the model's own limit is {own:,}"
        else:
            beside_own = beside
        return [
            ("memory" + (" of each rank" if self.ranks > 1 else ""), show_bytes(self.memory), ""),
            ("does it fit", fits, "memory - weights - cache"),
            (f"most sequences of {self.context:,} tokens", f"{n['max_batch']:,}", beside),
            (f"longest context at batch {self.batch:,}", longest, beside_own),
        ]

    def token_formula(self) -> str:
        shape = self.shape.on_rank(self.ranks)
        layers = f"{len(shape.stored_windows)} layers"
        if shape.latent:
            numbers = f"({shape.latent_dim} latent + {shape.rope_dim} rotary key)"
        elif shape.key_shape == shape.value_shape:
            numbers = f"2 x {_heads(shape)} x {shape.head_dim}"
        else:
            numbers = f"{_heads(shape)} x ({shape.head_dim} + {shape.value_dim})"
        return f"{layers} x {numbers} x {self.bits()}"

    def bits(self) -> str:
        """What one number costs, in bytes where they are whole."""
        keys, values = (
            side.bits_of(width) / width
            for side, width in (
                (self.cache.keys, self.shape.key_shape[1]),
                (self.cache.values, self.shape.value_shape[1]),
            )
        )
        bits = float((keys + values) / 2)
        if bits % 8 == 0 and self.cache.keys.axis is None:
            return f"{bits / 8:.0f} byte" + ("s" if bits > 8 else "")
        return f"{bits:g} bits / 8 ({self.cache.keys.bits} and its scales)"

    def sequence_formula(self) -> str:
        kept = Counter(self.context if w is None else min(w, self.context) for w in self.shape.stored_windows)
        if len(kept) == 1:
            (slots,) = kept
            said = f"x {slots:,} tokens"
        else:
            said = "x tokens: " + ", ".join(
                f"{slots:,} in {count} layers" for slots, count in sorted(kept.items())
            )
        if self.block:
            said += f", in blocks of {self.block}"
        if self.cache.residual:
            said += f", the last {self.cache.residual} or more in full"
        return said

    def table(self) -> Table:
        table = Table("", "size", "how", box=box.MARKDOWN)
        for row in self.rows():
            table.add_row(*row)
        return table

    def text(self) -> str:
        """A heading, the table in Markdown, its rows never wrapped, and what to know about the model."""
        shape = self.shape
        heading = f"{shape.name or 'model'}: {shape.kind}; cache {self.cache.name}, weights {self.weights}"
        notes = [f"Note: {note}" for note in shape.notes]
        if shape.max_position is not None and self.context > shape.max_position:
            notes.append(f"Note: the model's own limit is {shape.max_position:,} tokens.")
        console = Console(file=io.StringIO(), width=300, color_system=None)
        console.print(self.table(), markup=False)
        lines = [line.rstrip() for line in console.file.getvalue().strip().splitlines()]
        return "\n".join([heading, "", *lines, *([""] if notes else []), *notes])


def read_napkin(
    model, context=None, batch=1, cache="bf16", weights="bf16", memory=None, gpu=None, block=None, ranks=1,
    parameters=None, quant_group=None, residual=None,
) -> Napkin:  # fmt: skip
    """A `Napkin` from what a person wrote. Raises ValueError, a sentence that says what to write."""
    shape = find_shape(model)
    if parameters is not None:
        shape = shape.but(parameters=sizing.read_count(parameters))
    if memory is not None and gpu is not None:
        raise ValueError("Give --memory or --gpu, one of the two.")
    if context is None and shape.max_position is None:
        raise ValueError(f"How long a context? {shape.name} does not say its own: --context 8k.")
    kind = sizing.cache_type(cache, quant_group=quant_group, residual=residual)
    return Napkin(
        shape=shape,
        context=shape.max_position if context is None else sizing.read_tokens(context),
        batch=sizing.read_whole(batch, "batch"),
        cache=kind,
        weights=weights,
        memory=sizing.gpu(gpu) if gpu is not None else None if memory is None else sizing.read_bytes(memory),
        block=None if block is None else sizing.read_whole(block, "block"),
        ranks=sizing.read_whole(ranks, "ranks"),
    )


def find_shape(model) -> ModelShape:
    """A known model, a config.json, or a folder that holds one."""
    if not isinstance(model, str | os.PathLike):
        raise ValueError(f"A model is a name, or the path of a config.json; got a {type(model).__name__}.")
    if os.path.exists(model):
        return ModelShape.from_config(model)
    try:
        return sizing.model(model)
    except ValueError as error:
        raise ValueError(f"{error} A path of a config.json, or of its folder, is read too.") from None


def _heads(shape) -> str:
    return f"{shape.num_kv_heads} KV head{'s' if shape.num_kv_heads > 1 else ''}"
