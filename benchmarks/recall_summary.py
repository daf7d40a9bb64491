"""From the samples of `benchmarks/recall.py` to its figures: means, intervals, and what was lost in pairs.

All intervals are of 95 %. A share has Wilson's; a mean, and a mean difference of the same samples under two
schemes, have a seeded bootstrap's over the samples.
"""

import json
import math
import re

import numpy as np

Z = 1.959964  # 97.5 % of a normal distribution lie below
RESAMPLES = 4000


def wilson(hits: int, count: int) -> list[float]:
    """The interval of a share of `hits` in `count`: of use at 0 and 1 too (Wilson 1927)."""
    share, spread = hits / count, Z**2 / count
    middle = (share + spread / 2) / (1 + spread)
    reach = Z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return [rounded(max(0.0, middle - reach)), rounded(min(1.0, middle + reach))]


def bootstrap(samples) -> list[float]:
    """The interval of the mean of the samples, from means of samples drawn again from them."""
    samples = np.asarray(samples, dtype=float)
    drawn = np.random.default_rng(0).integers(len(samples), size=(RESAMPLES, len(samples)))
    return [rounded(end) for end in np.quantile(samples[drawn].mean(axis=1), (0.025, 0.975))]


def rounded(number: float) -> float:
    return round(float(number), 5)


def passkey_cell(rights, log_probabilities, exact) -> dict:
    """One scheme at one length. `exact` holds the same two lists for the exact cache, in the same order."""
    exact_rights, exact_log_probabilities = exact
    change = np.subtract(log_probabilities, exact_log_probabilities)
    return {
        "samples": len(rights),
        "recall": rounded(np.mean(rights)),
        "recall_interval": wilson(sum(rights), len(rights)),
        "lost": sum(a and not b for a, b in zip(exact_rights, rights, strict=True)),
        "gained": sum(b and not a for a, b in zip(exact_rights, rights, strict=True)),
        "log_probability": rounded(np.mean(log_probabilities)),
        "log_probability_interval": bootstrap(log_probabilities),
        "log_probability_change": rounded(change.mean()),
        "log_probability_change_interval": bootstrap(change),
        "each_right": [int(right) for right in rights],
        "each_log_probability": [round(value, 4) for value in log_probabilities],
    }


def perplexity_cell(losses, exact) -> dict:
    """One scheme at one length. The ratio is to the exact cache's perplexity on the same windows."""
    change = np.subtract(losses, exact)
    return {
        "samples": len(losses),
        "perplexity": rounded(np.exp(np.mean(losses))),
        "perplexity_interval": [rounded(end) for end in np.exp(bootstrap(losses))],
        "ratio": rounded(np.exp(change.mean())),
        "ratio_interval": [rounded(end) for end in np.exp(bootstrap(change))],
        "each_loss": [round(value, 4) for value in losses],
    }


def pairs_cell(shares, exact) -> dict:
    """One scheme at one number of pairs; `shares` has the share of right answers in each text."""
    change = np.subtract(shares, exact)
    return {
        "samples": len(shares),
        "accuracy": rounded(np.mean(shares)),
        "accuracy_interval": bootstrap(shares),
        "change": rounded(change.mean()),
        "change_interval": bootstrap(change),
    }


def as_json(figures: dict) -> str:
    """The figures as JSON, a cell a line, so that a change can be read."""
    text = json.dumps(figures, indent=1)
    innermost = re.compile(r"\{[^{}]*\}")
    return innermost.sub(lambda cell: re.sub(r"\s*\n\s*", " ", cell[0]), text) + "\n"


LAYOUT = """\
In `recall.json`: `schemes[name]` says what a scheme is; `passkey[name][length]`, `perplexity[name][length]`
and `pairs[name][number of pairs]` hold its figures. Of pass keys: `recall`, how many are `lost` and `gained`
against the exact cache on the same texts, the mean log-probability of a digit of the answer and its change
from exact, and each sample in the order of `seeds`. Of perplexity: `perplexity`, and the `ratio` to that of
the exact cache on the same words. Of pairs: `accuracy`, and its `change` from exact. Each `..._interval` is
of 95 %: where that of a change holds 0, or that of a ratio 1, no loss was seen."""


def table(figures: dict) -> str:
    """Markdown tables: recall and perplexity of the real model, accuracy of the tiny one."""
    lengths, pairs = list(figures["passkey"]["exact"]), list(figures["pairs"]["exact"])
    counts = [figures["passkey"]["exact"][length]["samples"] for length in lengths]
    lines = [
        "## Recall from a quantised cache",
        "",
        "SmolLM2-135M reads a text exactly; then its cache is quantised, and it is asked for a five-digit "
        f"pass key in the text ({', '.join(map(str, counts))} texts of {', '.join(lengths)} tokens). Beside "
        "the share of pass keys recalled, the perplexity over the same cache of words that follow instead. "
        "A scheme is named by code; by token, KIVI-style or one scale a tensor; newest tokens that stay "
        "exact; and the side, if only one. Bits are those of a quantised number with its share of scales. "
        "Perplexities compare within a column: where there are fewer texts, the words are others too.",
        "",
        _row(["scheme", "bits", *(f"recall {n}" for n in lengths), *(f"perplexity {n}" for n in lengths)]),
        "|---|" + "--:|" * (1 + 2 * len(lengths)),
    ]
    for name, facts in figures["schemes"].items():
        cells = [name, f"{facts['bits_of_a_quantised_number']:g}"]
        cells += [f"{figures['passkey'][name][n]['recall']:.2f}" for n in lengths]
        cells += [f"{figures['perplexity'][name][n]['perplexity']:.2f}" for n in lengths]
        lines.append(_row(cells))
    lines += [
        "",
        "The tiny model that is trained to recall pairs of a key and a value: the share of right values by "
        "number of pairs.",
        "",
        _row(["scheme", *pairs]),
        "|---|" + "--:|" * len(pairs),
    ]
    for name in figures["schemes"]:
        lines.append(_row([name, *(f"{figures['pairs'][name][n]['accuracy']:.3f}" for n in pairs)]))
    cost = (
        f"The run took {figures['processor_seconds'] / 60:.0f} minutes of processor time, in "
        f"{figures['wall_seconds'] / 60:.0f} minutes on a machine that others used too."
    )
    return "\n".join([*lines, "", LAYOUT, "", cost])


def _row(cells) -> str:
    return f"| {' | '.join(cells)} |"
