"""Which fields of a config.json say what a cache holds, which only sound like it, and their older names."""

import re

NAMES = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "kv_n_heads"),
    "head_dim": ("head_dim", "kv_channels", "dim_head"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"),
}
NESTED = ("text_config", "language_config", "llm_config")
# The fields that say what a cache holds, besides NAMES.
READ = set(
    "layer_types sliding_window use_sliding_window max_window_layers sliding_window_pattern "
    "_sliding_window_pattern attention_chunk_size multi_query kv_lora_rank qk_rope_head_dim v_head_dim "
    "num_kv_shared_layers model_type multi_query_attention multi_query_group_num".split()
)
# Of MPT's and DBRX's attn_config: the one field that is read, and those that say nothing about a cache.
ATTN_CONFIG = set(
    "kv_n_heads attn_type attn_impl attn_pdrop clip_qkv rope_theta qk_ln qk_gn softmax_scale alibi "
    "alibi_bias_max prefix_lm attn_uses_sequence_id model_type fused_qkv rope rope_impl".split()
)
# Names that sound like it and say nothing about a cache.
HARMLESS = set(
    "qk_nope_head_dim qk_head_dim q_lora_rank chunk_size_feed_forward use_cache cache_implementation "
    "shared_expert_intermediate_size n_shared_experts num_shared_experts moe_shared_expert_intermediate_size "
    "hidden_act hidden_activation no_rope_layer_interval no_rope_layers kv_bias attention_kv_bias qkv_bias "
    "interleave_moe_layer_step moe_layer_freq mlp_layer_types shared_intermediate_size pooler_hidden_act "
    "global_rope_theta rope_local_base_freq decoder_sparse_step use_shared_expert moe_layer_pattern "
    "output_attentions attention_dropout attention_bias attention_probs_dropout_prob attn_pdrop attn_dropout "
    "attention_multiplier attention_out_bias attention_output_bias attention_softmax_in_fp32 attn_config "
    "attention_value_scale attn_implementation _attn_implementation _attn_implementation_internal "
    "attn_logit_softcapping attn_scale attn_temperature_tuning query_pre_attn_scalar parallel_attn "
    "use_flash_attn "
    "num_ln_in_parallel_attn reorder_and_upcast_attn scale_attn_weights scale_attn_by_inverse_layer_idx "
    "scale_attention_softmax_in_fp32 use_bidirectional_attention use_parallel_residual lm_head_bias n_group "
    "topk_group num_expert_group num_expert_groups".split()
)
# Every field of attention or cache, by its name: what is not known is refused, not passed over.
SOUNDS_LIKE = re.compile(
    r"attn|attention|query|(^|_)heads?(_|$)|cache|groups?($|_num)|ut_steps|(^|_)cla(_|$)|loop|layer_share|share_|"
    r"kv|key_value|head_dim|window|latent|lora_rank|layer_types|layers_?block|block_(type|config)|hybrid|mamba|ssm|"
    r"^state_size|^d_state|^d_conv|time_step|(attn|attention|layer)_(idx|indices|period|offset)|"
    r"^linear_|conv_|recurren|rwkv|chunk|sparse|^index_|compress|shared?_layers|layers_shared|cross_attention|"
    r"global_(head|attn)|attention_(layers|types)|attn_(layer|type)|full_attention|attention_pattern|_v_dim|value_dim|^per_layer_config"
)
KINDS = {
    "full_attention": None,
    "sliding_attention": "sliding_window",
    "chunked_attention": "attention_chunk_size",
}

# Read as true or false; anything else, such as "no", would count as true.
FLAGS = (
    "use_sliding_window multi_query multi_query_attention new_decoder_architecture is_encoder_decoder "
    "tie_word_embeddings"
).split()

_STATES = "its layers, or some of them, keep a state of a fixed size and no keys and values"
READS_AT_ONCE = (
    "it is an encoder: it reads its text at once, and keeps no keys and values. (As a decoder its config "
    'says "is_decoder": true.)'
)
ENCODERS = set(
    "bert roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl camembert distilbert albert electra "
    "deberta deberta-v2 mpnet modernbert nomic_bert ernie big_bird roformer rembert megatron-bert xmod "
    "data2vec-text funnel layoutlm layoutlmv2 layoutlmv3 longformer mobilebert nystromformer squeezebert "
    "xlm flaubert ibert lilt luke mra tapas yoso esm convbert fnet eurobert".split()
)
_ENCODER = "it also keeps the keys and values of its encoder, and only decoders are understood"
OTHER_CACHES = {
    "longcat_flash": "each of its layers attends twice, which is not understood here",
    **dict.fromkeys("mamba mamba2 falcon_mamba rwkv xlstm recurrent_gemma lfm2 lfm2_moe".split(), _STATES),
    **dict.fromkeys(
        "t5 mt5 umt5 longt5 switch_transformers t5gemma t5gemma2 bart mbart plbart pegasus pegasus_x marian "
        "bigbird_pegasus blenderbot blenderbot-small m2m_100 nllb-moe led fsmt prophetnet whisper moonshine "
        "speech_to_text seamless_m4t seamless_m4t_v2".split(),
        _ENCODER,
    ),
}
