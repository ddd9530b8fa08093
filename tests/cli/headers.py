"""GGUF files of the published sizes that end where their weights would begin."""
import struct

U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5
TYPE_F32, TYPE_Q4_K = 0, 12
Q4_K_BYTES, Q4_K_BLOCK = 144, 256
VOCAB, CONTEXT, HEAD, STATE, CONV, KEY_HEADS = 248320, 262144, 256, 128, 4, 16

# layers, width, feed-forward, query heads, KV heads, value heads, tied output, (experts, used, their width)
SIZES = {
    "0.8B": (24, 1024, 3584, 8, 2, 16, True, None),
    "2B": (24, 2048, 6144, 8, 2, 16, True, None),
    "4B": (32, 2560, 9216, 16, 4, 32, True, None),
    "9B": (32, 4096, 12288, 16, 4, 32, False, None),
    "27B": (64, 5120, 17408, 24, 4, 48, False, None),
    "35B-A3B": (40, 2048, 0, 16, 2, 32, False, (256, 8, 512)),
    "122B-A10B": (48, 3072, 0, 32, 2, 64, False, (256, 8, 1024)),
    "397B-A17B": (60, 4096, 0, 32, 2, 64, False, (512, 10, 1024)),
}


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def keys(size):
    layers, d, ff, heads, kv, value_heads, _, experts = SIZES[size]
    arch = "qwen35moe" if experts else "qwen35"
    numbers = {"block_count": layers, "context_length": CONTEXT, "embedding_length": d, "attention.head_count": heads, "attention.head_count_kv": kv, "attention.key_length": HEAD,
               "attention.value_length": HEAD, "full_attention_interval": 4, "rope.dimension_count": 64, "ssm.conv_kernel": CONV, "ssm.state_size": STATE, "ssm.group_count": KEY_HEADS,
               "ssm.time_step_rank": value_heads, "ssm.inner_size": value_heads * STATE, "vocab_size": VOCAB}
    if experts:
        numbers.update({"expert_count": experts[0], "expert_used_count": experts[1], "expert_feed_forward_length": experts[2], "expert_shared_feed_forward_length": experts[2]})
    else:
        numbers["feed_forward_length"] = ff
    out = [text("general.architecture") + struct.pack("<I", STRING) + text(arch)]
    out += [text(f"{arch}.{k}") + struct.pack("<II", U32, v) for k, v in numbers.items()]
    out += [text(f"{arch}.{k}") + struct.pack("<If", F32, v) for k, v in (("attention.layer_norm_rms_epsilon", 1e-6), ("rope.freq_base", 1e7))]
    out.append(text(f"{arch}.rope.dimension_sections") + struct.pack("<IIQ4i", ARRAY, I32, 4, 11, 11, 10, 0))
    return out


def shapes(size):
    """(name, shape, type) of every tensor."""
    layers, d, ff, heads, kv, value_heads, tied, experts = SIZES[size]
    value, channels = value_heads * STATE, 2 * KEY_HEADS * STATE + value_heads * STATE
    out = [("token_embd.weight", (d, VOCAB), TYPE_Q4_K), ("output_norm.weight", (d,), TYPE_F32)]
    if not tied:
        out.append(("output.weight", (d, VOCAB), TYPE_Q4_K))
    full = [("attn_q.weight", (d, heads * 2 * HEAD)), ("attn_k.weight", (d, kv * HEAD)), ("attn_v.weight", (d, kv * HEAD)), ("attn_output.weight", (heads * HEAD, d)),
            ("attn_q_norm.weight", (HEAD,)), ("attn_k_norm.weight", (HEAD,))]
    linear = [("attn_qkv.weight", (d, channels)), ("attn_gate.weight", (d, value)), ("ssm_conv1d.weight", (CONV, channels)), ("ssm_beta.weight", (d, value_heads)),
              ("ssm_alpha.weight", (d, value_heads)), ("ssm_dt.bias", (value_heads,)), ("ssm_a", (value_heads,)), ("ssm_norm.weight", (STATE,)), ("ssm_out.weight", (value, d))]
    if experts:
        n, _, w = experts
        feed = [("ffn_gate_inp.weight", (d, n)), ("ffn_gate_exps.weight", (d, w, n)), ("ffn_up_exps.weight", (d, w, n)), ("ffn_down_exps.weight", (w, d, n)),
                ("ffn_gate_inp_shexp.weight", (d,)), ("ffn_gate_shexp.weight", (d, w)), ("ffn_up_shexp.weight", (d, w)), ("ffn_down_shexp.weight", (w, d))]
    else:
        feed = [("ffn_gate.weight", (d, ff)), ("ffn_up.weight", (d, ff)), ("ffn_down.weight", (ff, d))]
    for i in range(layers):
        for name, shape in [("attn_norm.weight", (d,)), ("post_attention_norm.weight", (d,))] + (full if (i + 1) % 4 == 0 else linear) + feed:
            plain = len(shape) == 1 or name in ("ssm_conv1d.weight", "ffn_gate_inp.weight")
            out.append((f"blk.{i}.{name}", shape, TYPE_F32 if plain else TYPE_Q4_K))
    return out


def n_values(shape):
    n = 1
    for x in shape:
        n *= x
    return n


def n_bytes(shape, kind):
    return n_values(shape) * 4 if kind == TYPE_F32 else n_values(shape) // Q4_K_BLOCK * Q4_K_BYTES


def write(path, size):
    """The header; returns (tensors, parameters, bytes of the weights)."""
    tensors, at, infos = shapes(size), 0, []
    for name, shape, kind in tensors:
        infos.append(text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, at))
        at += (n_bytes(shape, kind) + 31) // 32 * 32
    pairs = keys(size)
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(infos))
    return len(tensors), sum(n_values(s) for _, s, _ in tensors), sum(n_bytes(s, k) for _, s, k in tensors)
