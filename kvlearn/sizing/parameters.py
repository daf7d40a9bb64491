"""How many parameters a Llama-like model has, from its config alone."""

from kvlearn.sizing.families import LLAMA_LIKE


def count_parameters(
    family, fields: dict, layers: int, heads: int, kv_heads: int, head_dim: int
) -> int | None:
    """All weights, a head that is the embedding table counted once; None where the family is not known.

    A layer has four attention projections, three matrices in its MLP (in each of its experts), and norms.
    """
    sizes = [fields.get(name) for name in ("hidden_size", "intermediate_size", "vocab_size")]
    extra = LLAMA_LIKE.get(family)
    if extra is None or not all(type(size) is int and size > 0 for size in sizes):
        return None
    if any(fields.get(name) for name in ("attention_bias", "mlp_bias", "quantization_config")):
        return None
    hidden, intermediate, vocabulary = sizes
    experts = fields.get("num_local_experts", 8) if extra.get("experts") else 1
    if type(experts) is not int:
        return None
    queries, keys = heads * head_dim, kv_heads * head_dim
    attention = hidden * (2 * queries + 2 * keys)
    attention += (queries + 2 * keys) * bool(extra.get("qkv_bias")) + 2 * head_dim * bool(
        extra.get("qk_norm")
    )
    mlp = 3 * hidden * intermediate * experts + (
        hidden * experts if extra.get("experts") else 0
    )  # and the router
    norms = extra.get("norms", 2) * hidden
    tied = fields.get("tie_word_embeddings", extra.get("tied", False))
    return vocabulary * hidden * (1 if tied else 2) + layers * (attention + mlp + norms) + hidden
