"""What families leave unsaid in their config.json, as the config classes of transformers 5.24 fill it in.

A nested config is saved as the difference from its class's defaults, so that a Gemma 3 file may name neither
head_dim nor num_key_value_heads. A field is looked up here only where a config does not have it at all.
"""


def _family(layers, heads, kv_heads, hidden, **more) -> dict:
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": hidden}
    return {**sizes, "num_key_value_heads": kv_heads, **more}


DEFAULTS = {
    "cohere": _family(40, 64, None, 8192),
    "cohere2": _family(40, 64, None, 8192, sliding_window=4096),
    "deepseek_v3": _family(61, 128, 128, 7168, kv_lora_rank=512, qk_rope_head_dim=64),
    "falcon": _family(32, 71, None, 4544, multi_query=True),
    "gemma": _family(28, 16, 16, 3072, head_dim=256),
    "gemma2": _family(26, 8, 4, 2304, head_dim=256, sliding_window=4096),
    "gemma3_text": _family(26, 8, 4, 2304, head_dim=256, sliding_window=4096),
    "glm": _family(40, 32, 2, 4096, head_dim=128),
    "glm4": _family(40, 32, 2, 4096, head_dim=128),
    "gpt_bigcode": _family(12, 12, None, 768, multi_query=True),
    "gpt_oss": _family(36, 64, 8, 2880, head_dim=64, sliding_window=128),
    "granite": _family(32, 32, None, 4096),
    "llama": _family(32, 32, None, 4096),
    "llama4_text": _family(48, 40, 8, 5120, head_dim=128, attention_chunk_size=8192),
    "ministral": _family(32, 32, 8, 4096, sliding_window=4096),
    "mistral": _family(32, 32, 8, 4096, sliding_window=4096),
    "mixtral": _family(32, 32, 8, 4096, sliding_window=None),
    "olmo": _family(32, 32, None, 4096),
    "olmo2": _family(32, 32, None, 4096),
    "olmo3": _family(32, 32, None, 4096, sliding_window=4096),
    "phi": _family(24, 32, None, 2048),
    "phi3": _family(32, 32, None, 3072, sliding_window=None),
    "qwen2": _family(32, 32, 32, 4096, use_sliding_window=False, sliding_window=4096, max_window_layers=28),
    "qwen2_moe": _family(
        24, 16, 16, 2048, use_sliding_window=False, sliding_window=4096, max_window_layers=28
    ),
    "qwen3": _family(
        32, 32, 32, 4096, head_dim=128, use_sliding_window=False, sliding_window=4096, max_window_layers=28
    ),
    "qwen3_moe": _family(24, 32, 4, 2048, use_sliding_window=False, sliding_window=4096),
    "smollm3": _family(36, 16, 4, 2048, use_sliding_window=False, sliding_window=None),
    "stablelm": _family(32, 32, 32, 2560),
    "starcoder2": _family(30, 24, 2, 3072, sliding_window=None),
}

# Where a family has a window and its config lists no layer_types: every n-th layer looks back without limit.
FULL_EVERY = {"gemma2": 2, "gpt_oss": 2, "cohere2": 4, "llama4_text": 4, "olmo3": 4, "gemma3_text": 6}

# Families whose weights are Llama's, with what is added; for counting parameters.
LLAMA_LIKE = {
    "llama": {},
    "mistral": {},
    "phi3": {},
    "mixtral": {"experts": True},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "gemma": {"tied": True},
    "gemma2": {"tied": True, "norms": 4},
    "gemma3_text": {"tied": True, "norms": 4, "qk_norm": True},
    "smollm3": {"tied": True},
}
