"""Where in the lessons each exercise is taught: one table, by lesson and exercise.

The headings are those of the notebooks, letter by letter; a test looks each of them up, so that a lesson
cannot change a heading, nor an exercise be added, without this table.
"""

SECTIONS = {
    "00_start_here": {
        "split_heads": ("2 · Shapes",),
        "merge_heads": ("2 · Shapes",),
    },
    "01_attention": {
        "attention_weights": ("2 · One token looks at three, by hand", "3 · Why divide by √D?"),
        "scaled_dot_product_attention": ("4 · Three readings of one vector: Q, K and V",),
        "multi_head_attention": ("7 · Several heads",),
    },
    "02_causal_masking": {
        "causal_mask": ("4 · Fewer queries than keys",),
        "position_mask": ("5 · One rule instead of many triangles",),
        "masked_attention": ("3 · Before the softmax, not after it", "6 · A query that sees nothing"),
        "changed_layers": ("11 · The experiment",),
    },
    "03_naive_decoder": {
        "rms_norm": ("4 · RMSNorm: one size for all",),
        "apply_rope": ("6 · Many pairs, fast and slow",),
        "grouped_attention": ("7 · Nine heads that ask, three that answer",),
        "greedy_decode": ("11 · The loop that writes",),
        "count_projections": ("12 · What was repeated", "13 · A number that you may be told, taken apart"),
    },
    "04_kv_cache": {
        "growing_cache": ("A cache for a whole model",),
        "static_cache": ("The copy inside `torch.cat`",),
        "cached_decode": ("Two phases: prefill and decode",),
        "chunked_prefill": ("A prompt in pieces",),
        "your_own_llm": ("A cache for a whole model", "The next turn"),
    },
    "05_napkin": {
        "read_sizes": ("Where the numbers come from",),
        "bytes_per_token": ("One token, counted by hand",),
        "cache_size": ("One token, counted by hand", "GiB or GB"),
        "hybrid_bytes": ("Models for which the plain formula is wrong",),
        "latent_bytes": ("Models for which the plain formula is wrong",),
        "quantised_bytes": ("Fewer bits are not as few as they say",),
        "sequences_that_fit": ("What fits",),
        "crossover_batch": ("Claim: at 128k the cache presses more than the weights",),
    },
    "06_fewer_heads": {
        "attend_in_groups": ("Without copies",),
        "mean_pool_heads": ("Can a trained model be changed?",),
        "expand_latents": ("One latent for all heads",),
        "absorbed_scores": ("Absorb the matrix", "What positions do to it"),
        "absorbed_values": ("Absorb the matrix",),
        "decode_intensity": ("Arithmetic intensity",),
    },
    "07_fewer_tokens": {
        "window_mask": ("A window, by hand",),
        "windowed_prefill": ("Attend first, trim later",),
        "ring_positions": ("Where does a token lie? The ring",),
        "ring_write": ("Where does a token lie? The ring",),
        "may_roll_back": ("What a rollback may do",),
        "sliding_window_cache": ("Attend first, trim later", "Name it: `SlidingWindowCache`"),
    },
    "08_fewer_bits": {
        "quantize_int8": ("A number as a count of steps",),
        "quantize_asymmetric": ("Who shares a scale?",),
        "pack_int4": ("Two codes in one byte",),
        "unpack_int4": ("Two codes in one byte",),
        "quantize_by_group": ("Who shares a scale?",),
        "to_fp8": ("Eight bits with a point: fp8",),
        "tokens_in_codes": ("The residual window",),
        "quantized_cache": ("The residual window", "The cache"),
    },
}
LESSON = {name: lesson for lesson, exercises in SECTIONS.items() for name in exercises}


def where_to_read(exercise: str) -> str | None:
    """`Lesson 00, section "2 · Shapes" (notebooks/00_start_here.ipynb)`; None where no lesson teaches it."""
    lesson = LESSON.get(exercise)
    if lesson is None:
        return None
    headings = SECTIONS[lesson][exercise]
    named = " and ".join(f'"{heading.replace("`", "")}"' for heading in headings)
    plural = "s" if len(headings) > 1 else ""
    return f"Lesson {lesson[:2]}, section{plural} {named} (notebooks/{lesson}.ipynb)"
