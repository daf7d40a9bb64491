"""Train the tiny model of `load("recall")`: `python3 dev.py python -m benchmarks.train_recall`.

Some minutes on one core. The task is `kvlearn.recall.draw_pairs`: the loss is taken only where a key is asked
for. Two things are needed for it to be learned at all in so few steps:

- The texts grow. Their longest has `frontier` pairs, which starts at 4 and grows by 1.41 up to 256 whenever
  the running accuracy at the frontier passes 0.9; up to 8 pairs only 16 keys are used. Half of the steps are
  at the frontier, half below it.
- The last matrix of each feed-forward block starts at zero. Else the model stays for long with a guess among
  the values that it has seen.

The weights are written as a Hugging Face Llama folder, with the recipe and the checksum. The same seed on the
same machine with one thread gives the same file; another machine rounds differently and gives another model
that is as good.
"""

import argparse
import hashlib
import json
import math
import time
from datetime import date
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from kvlearn import Decoder, DecoderConfig
from kvlearn.checkpoint import hf_name
from kvlearn.measure import machine
from kvlearn.recall import PAIRS_VOCABULARY, draw_pairs
from kvlearn.weights import RECALL_FOLDER

CONFIG = DecoderConfig(
    vocab_size=PAIRS_VOCABULARY,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=128,
    max_position=4096,
    rope_theta=10000.0,
    norm_eps=1e-5,
    tie_embeddings=False,
)
RECIPE = {
    "seed": 0,
    "initial_spread": 0.02,  # standard deviation of the matrices; the norms start at 1
    "steps": 2000,
    "warm_up_steps": 100,
    "decay": "linear over the last 40 % of the steps, down to 2 %",
    "optimizer": "AdamW",
    "learning_rate": 3e-3,
    "betas": [0.9, 0.98],
    "weight_decay": 0.05,  # of matrices; the norms have none
    "gradient_clipping": 1.0,
    "first_pairs": 4,
    "most_pairs": 256,
    "growth": 1.41,
    "accuracy_to_grow": 0.9,
    "running_average": 0.9,
    "few_keys": 16,  # the only ones while the frontier is at most few_keys_up_to
    "few_keys_up_to": 8,
    "tokens_a_step": [2048, 4096],  # while the frontier is at most 32, and beyond
}
EVALUATED = (4, 8, 16, 32, 64, 128, 256, 512)


def causal(q, k, v, mask):
    """Attention over a whole text: torch's own is the faster one to train with."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def new_model() -> Decoder:
    """Small random weights from torch's global generator; the feed-forward blocks start as zero."""
    model = Decoder(CONFIG, attention=causal)
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=RECIPE["initial_spread"])
    for layer in model.layers:
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def learning_rate(step: int) -> float:
    """The share of the full rate at a step: up, level, down."""
    steps, last = RECIPE["steps"], 0.02
    up = (step + 1) / RECIPE["warm_up_steps"]
    down = last + (1 - last) * (steps - step) / (0.4 * steps)
    return min(1.0, up, down)


def train(seed: int) -> tuple[Decoder, int]:
    """The trained model, and the number of pairs that the texts had grown to."""
    torch.manual_seed(seed)
    model = new_model()
    generator = torch.Generator().manual_seed(seed)
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    norms = [weight for weight in model.parameters() if weight.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": RECIPE["weight_decay"]}, {"params": norms, "weight_decay": 0}],
        lr=RECIPE["learning_rate"],
        betas=tuple(RECIPE["betas"]),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate)
    frontier, running = RECIPE["first_pairs"], 0.0
    for step in range(RECIPE["steps"]):
        pairs = frontier if step % 2 == 0 else _below(frontier, generator)
        loss, accuracy = _loss(model, pairs, frontier, generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), RECIPE["gradient_clipping"])
        optimizer.step()
        schedule.step()
        if pairs == frontier:
            keep = RECIPE["running_average"]
            running = keep * running + (1 - keep) * accuracy
            if running > RECIPE["accuracy_to_grow"] and frontier < RECIPE["most_pairs"]:
                frontier, running = min(RECIPE["most_pairs"], round(frontier * RECIPE["growth"])), 0.0
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss:.3f}, up to {frontier} pairs", flush=True)
    return model.requires_grad_(False).eval(), frontier


def _below(frontier: int, generator: torch.Generator) -> int:
    """A number of pairs from the first to the frontier, uniform in its logarithm."""
    first = RECIPE["first_pairs"]
    share = torch.rand((), generator=generator).item()
    return round(first * math.exp(share * math.log(frontier / first)))


def _loss(model, num_pairs, frontier, generator):
    few = frontier <= RECIPE["few_keys_up_to"]
    tokens = RECIPE["tokens_a_step"][frontier > 32]
    keys = {"num_keys": RECIPE["few_keys"]} if few else {}
    texts = draw_pairs(num_pairs, max(1, tokens // (4 * num_pairs + 1)), generator, **keys)
    logits = model(torch.cat((texts.context, texts.rest), dim=1))
    logits = logits[:, texts.context.shape[1] :: 2]  # where a key is asked for
    accuracy = (logits.argmax(dim=2) == texts.answers).float().mean().item()
    return F.cross_entropy(logits.flatten(0, 1), texts.answers.flatten()), accuracy


def accuracies(model: Decoder, batches: int = 8) -> dict[int, float]:
    """The share of right answers for each number of pairs, on texts of a seed that is not the training's."""
    generator = torch.Generator().manual_seed(12345)
    shares = {}
    for pairs in EVALUATED:
        right = [_loss(model, pairs, 512, generator)[1] for _ in range(batches)]
        shares[pairs] = round(sum(right) / len(right), 4)
    return shares


def save(model: Decoder, facts: dict, folder: Path) -> None:
    """config.json, model.safetensors and recipe.json."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {hf_name(name): tensor.contiguous() for name, tensor in model.state_dict().items()}
    path = folder / "model.safetensors"
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors makes files that nobody else can read, and the package ships this one
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": CONFIG.vocab_size,
        "hidden_size": CONFIG.hidden_size,
        "num_hidden_layers": CONFIG.num_layers,
        "num_attention_heads": CONFIG.num_heads,
        "num_key_value_heads": CONFIG.num_kv_heads,
        "head_dim": CONFIG.head_dim,
        "intermediate_size": CONFIG.intermediate_size,
        "max_position_embeddings": CONFIG.max_position,
        "rope_theta": CONFIG.rope_theta,
        "rms_norm_eps": CONFIG.norm_eps,
        "tie_word_embeddings": CONFIG.tie_embeddings,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    facts = {"sha256": checksum, **facts}
    (folder / "recipe.json").write_text(json.dumps(facts, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=RECALL_FOLDER, help="where the model is written")
    folder = parser.parse_args().folder
    torch.set_num_threads(1)  # so that sums are made in one order
    start = time.process_time()
    model, frontier = train(RECIPE["seed"])
    facts = {
        "made_by": "benchmarks/train_recall.py",
        "task": "kvlearn.recall.draw_pairs",
        "recipe": RECIPE,
        "pairs_reached": frontier,
        "accuracy": accuracies(model),
        "processor_seconds": round(time.process_time() - start),
        "date": date.today().isoformat(),
        "machine": machine(),
    }
    save(model, facts, folder)
    print(f"{folder}: accuracy {facts['accuracy']}")


if __name__ == "__main__":
    main()
