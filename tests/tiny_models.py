"""Small models to load in tests: made by transformers, and written as GGUF by the gguf package."""

import gguf
import torch
import transformers

# Every size another number; heads * head_dim (60) is not hidden_size, as in many models.
SIZES = {
    "vocab_size": 283,
    "hidden_size": 42,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 52,
    "max_position_embeddings": 97,
    "rms_norm_eps": 1e-5,
}
# GGUF quantises rows in blocks of 32 numbers.
GGUF_SIZES = SIZES | {"hidden_size": 96, "head_dim": 32, "intermediate_size": 128}
CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }} {{ m['content'] }}<|im_end|>{% endfor %}"


def llama(sizes=SIZES, theta=5000.0, tied=False, dtype=torch.float64, **fields):
    """A random transformers Llama, its norms not 1 (a norm that is left out would not show)."""
    torch.manual_seed(3)
    rope = {"rope_theta": theta, "rope_type": "default"}
    config = transformers.LlamaConfig(
        **sizes, rope_parameters=rope, tie_word_embeddings=tied, eos_token_id=2, bos_token_id=1, **fields
    )
    model = transformers.LlamaForCausalLM(config).to(dtype).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            weights.copy_(torch.randn_like(weights) * 0.3 + (1.0 if "norm" in name else 0.0))
    return model


def in_float64(model):
    """The model in float64 throughout. Transformers' Llama and its kin take their norms in float32 whatever
    the model's dtype (its eager attention, the softmax too: hence SDPA), so torch's own RMSNorm stands in."""
    model.double().set_attn_implementation("sdpa")
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("RMSNorm") and hasattr(child, "variance_epsilon"):
                norm = torch.nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon, dtype=torch.float64)
                norm.weight = child.weight
                setattr(module, name, norm)
    return model


def ggml_order(weights, heads):
    """Rows as llama.cpp's converter writes them: row i of a head's first half, then row i of its second."""
    half = weights.shape[0] // heads // 2
    rows = [
        weights[head * 2 * half + part * half + i]
        for head in range(heads)
        for i in range(half)
        for part in range(2)
    ]
    return torch.stack(rows)


GGML_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def ggml_name(name):
    name = name.removesuffix(".weight")
    if name.startswith("model.layers."):
        _, _, layer, rest = name.split(".", 3)
        return f"blk.{layer}.{GGML_NAMES[rest]}.weight"
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    return names[name] + ".weight"


def write_gguf(path, model, kind="F32", tokenizer=True, **metadata):
    """Write a transformers Llama as llama.cpp's converter would.

    `kind` is how matrices are stored; `metadata` adds or replaces keys (double underscores for dots).
    Returns {Hugging Face name: the numbers that the file holds}.
    """
    config, kind = model.config, gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, metadata.pop("architecture", "llama"))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    for key, value in metadata.items():
        kinds = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        kinds[type(value)](key.replace("__", "."), value)
    if tokenizer:
        write_tokenizer(writer, config.vocab_size)
    held = {}
    for name, weights in model.state_dict().items():
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        heads = next((count for part, count in heads.items() if part in name), None)
        rows = ggml_order(weights, heads) if heads else weights
        stored = kind if weights.ndim == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(rows.float().numpy(), stored)
        writer.add_tensor(ggml_name(name), data, raw_dtype=stored)
        lossy = gguf.quants.quantize(weights.float().numpy(), stored)  # block by block along a row: any order
        held[name] = torch.from_numpy(gguf.quants.dequantize(lossy, stored).copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def write_tokenizer(writer, vocab_size):
    """Three special tokens, the 256 bytes, some merges, and unused ids to fill the vocabulary."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["h e", "l l", "he ll", "hell o", "1 2", "Ġ t", "Ġt he"]
    merged = [pair.replace(" ", "") for pair in merges]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, *merged]
    tokens += [f"<unused{i}>" for i in range(vocab_size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (vocab_size - 3))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT)
