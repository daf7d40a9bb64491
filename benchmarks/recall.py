"""What a quantised cache still recalls: `python3 dev.py python -m benchmarks.recall`, up to an hour.

The probes of `kvlearn.recall`, each for all `SCHEMES` on the same samples:

    passkey      SmolLM2-135M, five digits in a text of 128 to 2,048 tokens
    perplexity   of the tokens that follow in place of the question, over the very same cache
    pairs        the tiny model of `load("recall")`, 4 to 256 pairs

A context is read once, exactly. Then its keys and values are quantised and given back as each scheme would,
and the question follows over them, several schemes side by side as rows of one batch. Nothing is quantised
while the context is being read: that would be another experiment, in which errors add up over the layers.

Each sample is appended to a file as soon as it is done: a run that was killed goes on from there.
"""

import argparse
import hashlib
import json
import subprocess
import time
from datetime import date
from pathlib import Path

import torch
import torch.nn.functional as F

import kvlearn
from benchmarks import page
from benchmarks import recall_summary as summary
from benchmarks.recall_schemes import SCHEMES, Context
from kvlearn import recall
from kvlearn.measure import machine

HERE = Path(__file__).parent
SAMPLES = {128: 24, 512: 24, 1024: 24, 2048: 12}  # by length, in tokens; a sample's number is its seed
TEXTS = {4: 256, 8: 128, 16: 64, 32: 32, 64: 32, 128: 32, 256: 32}  # by number of pairs
PAIRS_SEED = 0
TARGETS = 24  # tokens whose perplexity is taken; the same ones at each length
ROWS = 10  # schemes side by side


def fast_attention(q, k, v, mask=None):
    """torch's own attention: the same numbers but for rounding, in less time and memory."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


class Prefilled(kvlearn.GrowingCache):
    """A cache whose keys and values can be taken out."""

    def context(self) -> Context:
        return Context(torch.stack(self._keys), torch.stack(self._values))


def after(model, context: torch.Tensor, *rests: torch.Tensor, rows=ROWS):
    """Yield (scheme, [logits of each rest, (B, L, vocab_size)]) for every scheme.

    Args:
        context, rests: (B, S) and (B, L) ids. A rest follows the context, and does not see the other rests.
        rows: texts x schemes in one pass.
    """
    config, (batch, length) = model.config, context.shape
    prefilled = Prefilled(config, batch)
    model(context, prefilled, last_only=True)
    prefilled = prefilled.context()
    together = max(1, rows // batch)
    # A context that is shorter than the residual stays exact: its schemes need no pass of their own.
    exact = [scheme for scheme in SCHEMES if prefilled.is_exact(scheme)]
    schemes = [exact[0], *(scheme for scheme in SCHEMES if scheme not in exact)]
    for start in range(0, len(schemes), together):
        some = schemes[start : start + together]
        kept = [prefilled.kept(scheme) for scheme in some]
        cache = kvlearn.StaticCache(config, batch * len(some), length + max(rest.shape[1] for rest in rests))
        for layer in range(config.num_layers):
            keys, values = (torch.cat([context[side][layer] for context in kept]) for side in (0, 1))
            cache.update(layer, keys, values)
        by_rest = []
        for rest in rests:
            cache.truncate(length)
            by_rest.append(model(rest.repeat(len(some), 1), cache).split(batch))
        for index, scheme in enumerate(some):
            logits = [rows[index] for rows in by_rest]
            yield from ((same, logits) for same in (exact if scheme is exact[0] else [scheme]))


# The probes: each returns {scheme's name: what is kept of a sample} ----------------------------------


def passkey_sample(model, tokenizer, filler, length, seed) -> dict:
    """Is the pass key right; its log-probability; the mean loss of the filler that follows."""
    generator = torch.Generator().manual_seed(seed)
    drawn = recall.draw_passkey(tokenizer, length, filler, generator, following=TARGETS + 1)
    goes_on, targets = drawn.following[:, :-1], drawn.following[:, 1:]
    scores = {}
    for scheme, (answer, filler_logits) in after(model, drawn.context, drawn.rest, goes_on):
        right, log_probability = drawn.score(answer)
        loss = recall.losses(filler_logits, targets)
        scores[scheme.name] = [int(right), float(log_probability), float(loss)]
    return scores


def pairs_sample(model, num_pairs) -> dict:
    """The share of right answers in each text."""
    generator = torch.Generator().manual_seed(PAIRS_SEED)
    drawn = recall.draw_pairs(num_pairs, TEXTS[num_pairs], generator)
    shares = {scheme.name: [] for scheme in SCHEMES}
    most = max(1, 1024 // num_pairs)  # texts at once
    for context, rest in zip(drawn.context.split(most), drawn.rest.split(most), strict=True):
        part = recall.Pairs(context, rest)
        for scheme, (logits,) in after(model, context, rest, rows=len(context)):
            shares[scheme.name] += part.right(logits).float().mean(dim=1).tolist()
    return shares


# A run that can be interrupted -----------------------------------------------------------------------


def tasks():
    """(probe, length, seed): the tiny model first, then all lengths in turn."""
    for num_pairs in TEXTS:
        yield "pairs", num_pairs, PAIRS_SEED
    for seed in range(max(SAMPLES.values())):
        for length, samples in SAMPLES.items():
            if seed < samples:
                yield "passkey", length, seed


def resume(path: Path, setup: dict) -> list[dict]:
    """The samples that the file has; it is made where there is none. A line that was cut short is dropped."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    lines = [line for line in lines if line.endswith("\n")] or [json.dumps(setup) + "\n"]
    first, *samples = (json.loads(line) for line in lines)
    if first != setup:
        raise SystemExit(f"{path} is of another setup ({first}); remove it to start anew.")
    path.write_text("".join(lines))
    return samples


def run(path: Path, setup: dict) -> list[dict]:
    """All samples, those that the file at `path` has already among them. Each is appended when it is done."""
    samples = resume(path, setup)
    done = {(record["probe"], record["length"], record["seed"]) for record in samples}
    left = [task for task in tasks() if task not in done]
    if not left:
        return samples
    model, tokenizer = kvlearn.load("smollm2-135m", attention=fast_attention)
    tiny, _ = kvlearn.load("recall", attention=fast_attention)
    filler = tokenizer.encode(recall.filler_text())
    probes = {
        "passkey": lambda length, seed: passkey_sample(model, tokenizer, filler, length, seed),
        "pairs": lambda num_pairs, seed: pairs_sample(tiny, num_pairs),
    }
    for number, (probe, length, seed) in enumerate(left, 1):
        start = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            schemes = probes[probe](length, seed)
        took = {
            "wall_seconds": round(time.perf_counter() - start[0], 2),
            "processor_seconds": round(time.process_time() - start[1], 2),
        }
        record = {"probe": probe, "length": length, "seed": seed, **took, "schemes": schemes}
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        samples.append(record)
        print(f"{number}/{len(left)} {probe} {length} seed {seed}: {took['wall_seconds']} s", flush=True)
    return samples


def setup() -> dict:
    """What samples of one run must share."""
    text = recall.filler_text()
    recipe = json.loads((kvlearn.weights.RECALL_FOLDER / "recipe.json").read_text())
    where = machine()
    return {
        "python": where["python"],
        "torch": where["versions"]["torch"],
        "filler": {
            "source": "pydoc_data.topics of CPython (PSF licence)",
            "python": "3.11.7",  # the text that ships with kvlearn, whichever Python runs this
            "characters": len(text),
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        },
        "recall_model_sha256": recipe["sha256"],
        "schemes": [scheme.name for scheme in SCHEMES],
    }


def figures(samples: list[dict], shared: dict) -> dict:
    """What recall.json holds."""
    cells = {"passkey": {}, "perplexity": {}, "pairs": {}}
    for name in (scheme.name for scheme in SCHEMES):
        for probe in cells:
            cells[probe][name] = {}
        for length in SAMPLES:
            rights, log_probabilities, losses = _columns(samples, length, name)
            exact = _columns(samples, length, "exact")
            cells["passkey"][name][str(length)] = summary.passkey_cell(rights, log_probabilities, exact[:2])
            cells["perplexity"][name][str(length)] = summary.perplexity_cell(losses, exact[2])
        for num_pairs in TEXTS:
            (sample,) = (s for s in samples if (s["probe"], s["length"]) == ("pairs", num_pairs))
            shares = sample["schemes"]
            cells["pairs"][name][str(num_pairs)] = summary.pairs_cell(shares[name], shares["exact"])
    return {
        "date": date.today().isoformat(),
        "complete": len(samples) == len(list(tasks())),
        "commit": _commit(),
        "machine": machine(),
        "wall_seconds": round(sum(sample["wall_seconds"] for sample in samples)),
        "processor_seconds": round(sum(sample["processor_seconds"] for sample in samples)),
        "model": "smollm2-135m, float32",
        "filler": shared["filler"],
        "recall_model_sha256": shared["recall_model_sha256"],
        "seeds": {
            "passkey": {
                str(length): sorted(
                    s["seed"] for s in samples if (s["probe"], s["length"]) == ("passkey", length)
                )
                for length in SAMPLES
            },
            "pairs": PAIRS_SEED,
        },
        "schemes": {scheme.name: scheme.facts() for scheme in SCHEMES},
        **cells,
    }


def _columns(samples: list[dict], length: int, name: str) -> list[tuple]:
    """What `passkey_sample` keeps of a scheme, each as a tuple over the samples by their seeds."""
    same = [s for s in samples if (s["probe"], s["length"]) == ("passkey", length)]
    return list(zip(*(s["schemes"][name] for s in sorted(same, key=lambda s: s["seed"])), strict=True))


def _commit() -> str | None:
    try:
        return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=HERE, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=Path, default=HERE / "recall.samples.jsonl", help="samples so far")
    parser.add_argument("--threads", type=int, default=None, help="of torch; all cores when left out")
    parser.add_argument("--no-run", action="store_true", help="only the figures of the samples so far")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    shared = setup()
    samples = resume(arguments.samples, shared) if arguments.no_run else run(arguments.samples, shared)
    result = figures(samples, shared)
    (HERE / "recall.json").write_text(summary.as_json(result))
    page.write()
    print(summary.table(result))


if __name__ == "__main__":
    main()
