"""What tensor cores are measured on: products of matrices, attention, and both fused with what stands around them in models.

Sizes of products are rows, columns, length of the sum; of attention batch, heads, (heads of keys,) length, (length of keys,) depth.
"""

from __future__ import annotations


def linear(inputs: int, outputs: int) -> str:
    """A layer without bias from the size of one number to that of another."""
    return f"nn.Linear({{{inputs}}}, {{{outputs}}}, bias=False, {{dtype}})"


ATTENTION_INPUTS = ("q = torch.randn({0}, {1}, {2}, {3}, {dtype}); k = torch.randn({0}, {1}, {2}, {3}, {dtype}); "
                    "v = torch.randn({0}, {1}, {2}, {3}, {dtype}); ")
GROUPED_INPUTS = ("q = torch.randn({0}, {1}, {3}, {5}, {dtype}); k = torch.randn({0}, {2}, {4}, {5}, {dtype}); "
                  "v = torch.randn({0}, {2}, {4}, {5}, {dtype}); ")
PAGED_INPUTS = ("q = torch.randn({0}, {1}, {3}, {5}, {dtype}); k = torch.randn({0} * {4} // 16, 16, {2}, {5}, {dtype}); "
                "v = torch.randn({0} * {4} // 16, 16, {2}, {5}, {dtype}); t = torch.randint(0, {0} * {4} // 16, ({0}, {4} // 16)); ")
# Documents packed one after the other, each longer than the one before: tokens, heads, heads of keys, depth, documents.
PACKED_INPUTS = ("q, k, v = torch.randn({0}, {1}, {3}, {dtype}), torch.randn({0}, {2}, {3}, {dtype}), torch.randn({0}, {2}, {3}, {dtype}); "
                 "o = torch.tensor([{0} * n * (n + 1) // ({4} * ({4} + 1)) for n in range({4} + 1)], dtype=torch.int32); ")
VARLEN = f"from torch.nn.attention.varlen import varlen_attn; {PACKED_INPUTS}varlen_attn(q, k, v, o, o, *[2 * {{0}} // {{4}}] * 2"
DOCUMENTS = (f"{PACKED_INPUTS}t = torch.arange({{0}}); d = (o[1:] <= t[:, None]).sum(1); "
             "q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v)); "
             "F.scaled_dot_product_attention(q, k, v, attn_mask=MASK, enable_gqa=True)")
# Tokens packed expert after expert, each with more than the one before, and a matrix for each: rows, columns, length of the sum, experts.
EXPERTS = ("x = torch.randn({0}, {2}, {dtype}); "
           "g, u = (nn.Linear({2}, {3} * {1}, bias=False, {dtype}).weight.view({3}, {1}, {2}) for _ in 'gu'); "
           "o = torch.tensor([{0} * n * (n + 1) // ({3} * ({3} + 1)) for n in range(1, {3} + 1)], dtype=torch.int32); ")
PROGRAMS = {
    "grouped_mm": EXPERTS.replace("g, u", "g,").replace("'gu'", "'g'") + "torch._grouped_mm(x, g.transpose(1, 2), offs=o)",
    "grouped_gate": EXPERTS + "F.silu(torch._grouped_mm(x, g.transpose(1, 2), offs=o)) * torch._grouped_mm(x, u.transpose(1, 2), offs=o)",
    "varlen_attn": f"{VARLEN})",
    "varlen_attn_causal": f"{VARLEN}, window_size=(-1, 0))",
    "sdpa_documents": DOCUMENTS.replace("MASK", "d[:, None] == d"),
    "sdpa_offsets": DOCUMENTS.replace("MASK", "(o[d][:, None] <= t) & (t < o[d + 1][:, None])"),
    "scaled_mm": "x, w = (nn.Parameter(torch.randn(n, {2}).to({dtype}), requires_grad=False) for n in ({0}, {1})); "
                 "torch._scaled_mm(x, w.t(), torch.tensor(0.5), torch.tensor(2.0), out_dtype=torch.bfloat16)",
    "linear+bias+gelu": "x = torch.randn({0}, {2}, {dtype}); F.gelu(nn.Linear({2}, {1}, {dtype})(x))",
    "linear+residual": "x, r = torch.randn({0}, {2}, {dtype}), torch.randn({0}, {1}, {dtype}); "
                       f"{linear(2, 1)}(x) + r",
    "bmm": "a, b = torch.randn({0}, {1}, {3}, {dtype}), torch.randn({0}, {3}, {2}, {dtype}); a @ b",
    "sdpa": ATTENTION_INPUTS + "F.scaled_dot_product_attention(q, k, v)",
    "sdpa_causal": ATTENTION_INPUTS + "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "attention_causal": ATTENTION_INPUTS + "m = torch.ones({2}, {2}, dtype=torch.bool).tril(); "
                        "F.softmax((q @ k.transpose(-2, -1) * {3} ** -0.5).masked_fill(~m, float('-inf')), dim=-1) @ v",
    "sdpa_grouped": GROUPED_INPUTS + "F.scaled_dot_product_attention(q, k, v, enable_gqa=True)",
    "sdpa_paged": PAGED_INPUTS + "k, v = (x[t].flatten(1, 2).transpose(1, 2) for x in (k, v)); "
                  "F.scaled_dot_product_attention(q, k, v, enable_gqa=True)",
    "sdpa_grouped_causal": GROUPED_INPUTS + "F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)",
    "gated_mlp": "x = torch.randn({0}, {1}, {dtype}); "
                 f"g, u, d = {linear(1, 2)}, {linear(1, 2)}, {linear(2, 1)}; d(F.silu(g(x)) * u(x))",
    "mlp+residual": "x = torch.randn({0}, {1}, {dtype}); u, d = nn.Linear({1}, {2}, {dtype}), nn.Linear({2}, {1}, {dtype}); "
                    "d(F.gelu(u(x))) + x",
    "lora": f"x = torch.randn({{0}}, {{1}}, {{dtype}}); w, a, b = {linear(1, 2)}, {linear(1, 3)}, {linear(3, 2)}; w(x) + b(a(x))",
    "qkv": f"x = torch.randn({{0}}, {{1}}, {{dtype}}); q, k, v = {linear(1, 1)}, {linear(1, 2)}, {linear(1, 2)}; (q(x), k(x), v(x))",
    "qkv+rope": "x, c, s = torch.randn({0}, {1}, {dtype}), torch.randn({0}, 1, {3}, {dtype}), torch.randn({0}, 1, {3}, {dtype}); "
                f"q, k, v = {linear(1, 1)}, {linear(1, 2)}, {linear(1, 2)}; heads = lambda y: y.view({{0}}, -1, {{3}}); "
                "turned = lambda y: (y * c + torch.cat((-y.chunk(2, -1)[1], y.chunk(2, -1)[0]), -1) * s).flatten(1); "
                "(turned(heads(q(x))), turned(heads(k(x))), v(x))",
}

# Layers whose weights are integers of 8 bits, or of 4, two to a byte: sizes of rows, columns, the sum, and inputs that share a scale.
OCTETS = ("w = nn.Parameter(torch.randint(-128, 128, ({1}, {2}), dtype=torch.int8), requires_grad=False); "
          "x = torch.randn({0}, {2}, {dtype}); ")
NIBBLES = ("p = nn.Parameter(torch.randint(0, 256, ({1}, {2} // 2), dtype=torch.uint8), requires_grad=False); "
           "x = torch.randn({0}, {2}, {dtype}); "
           "w = torch.stack(((p & 15).to(torch.int8) - 8, (p >> 4).to(torch.int8) - 8), -1).view({1}, {2}); ")
BY_OUTPUT = "s = nn.Parameter(torch.rand({1}, {dtype}) / 128, requires_grad=False); F.linear(x, w.to(x.dtype)) * s"
BY_GROUP = ("s = nn.Parameter(torch.rand({1}, {2} // {3}, {dtype}) / 128, requires_grad=False); "
            "F.linear(x, (w.to(x.dtype).view({1}, -1, {3}) * s[:, :, None]).view({1}, {2}))")
PROGRAMS |= {"linear_int8": OCTETS + BY_OUTPUT, "linear_int8_groups": OCTETS + BY_GROUP,
             "linear_int4": NIBBLES + BY_OUTPUT, "linear_int4_groups": NIBBLES + BY_GROUP}

# Six programs of Mirage's evaluation ("Mirage: A Multi-Level Superoptimizer for Tensor Programs", OSDI 2025), on standard normal inputs.
MIRAGE_ATTENTION = ("q, k, v = torch.randn({0}, {1}, {3}, {dtype}), torch.randn({0}, {3}, {2}, {dtype}), "
                    "torch.randn({0}, {2}, {3}, {dtype}); ")
PROGRAMS |= {
    "mirage_gqa": f"{MIRAGE_ATTENTION}F.softmax(q @ k, dim=-1) @ v",
    "mirage_qknorm": f"{MIRAGE_ATTENTION}F.softmax(F.rms_norm(q, ({{3}},)) @ k, dim=-1) @ F.rms_norm(v, ({{3}},))",
    "mirage_rmsnorm": "x, w = torch.randn({0}, {2}, {dtype}), torch.randn({2}, {1}, {dtype}); F.rms_norm(x, ({2},)) @ w",
    "mirage_lora": "x, w, a, b = torch.randn({0}, {2}, {dtype}), torch.randn({2}, {1}, {dtype}), torch.randn({2}, {3}, {dtype}), "
                   "torch.randn({3}, {1}, {dtype}); x @ w + (x @ a) @ b",
    "mirage_mlp": "x, g, u = torch.randn({0}, {2}, {dtype}), torch.randn({2}, {1}, {dtype}), torch.randn({2}, {1}, {dtype}); "
                  "F.silu(x @ g) * (x @ u)",
    "mirage_ntrans": "h, x, a = torch.randn({0}, {1}, {dtype}), torch.randn({0}, {1}, {dtype}), torch.randn({0}, {1}, {dtype}); "
                     "F.rms_norm(x + a * (F.rms_norm(h, ({1},)) + x), ({1},))",
}
HALVES, BF16, FP16 = ("bf16", "fp16"), ("bf16",), ("fp16",)
BATCHES = 1, 8, 16
GEMM = (
    (("linear",), HALVES, ((4096,) * 3, (8192,) * 3, (2048,) * 3, (1024,) * 3)),
    (("linear",), BF16, ((4096, 14336, 4096), (4096, 4096, 14336), (512, 4096, 4096), (512, 12288, 4096), (512, 28672, 4096), (128,) * 3)),
    # projections and MLPs of Llama-3-8B and -70B, Qwen2.5-7B, Mixtral, BERT and ViT-L
    (("linear",), BF16, ((2048, 6144, 4096), (2048, 4096, 14336), (2048, 28672, 4096), (2048, 8192, 8192), (2048, 10240, 8192),
                         (2048, 28672, 8192), (2048, 4608, 3584), (2048, 3584, 3584), (2048, 18944, 3584), (2048, 3584, 18944),
                         (512, 14336, 4096), (512, 4096, 14336), (512, 3584, 3584), (4096, 768, 768), (4096, 3072, 768), (4096, 768, 3072),
                         (6304, 3072, 1024), (6304, 4096, 1024), (6304, 1024, 4096), (6304, 1024, 1024))),
    (("linear",), BF16, tuple((m, n, 4096) for m in (1, 4, 16, 64) for n in (4096, 14336, 128256))),
    (("matmul",), BF16, ((4096,) * 3, (2048,) * 3)),
    (("linear",), ("fp32",), ((2048,) * 3, (1024,) * 3)),
    (("linear",), ("tf32",), ((4096,) * 3, (1024,) * 3)),
    (("scaled_mm",), ("e4m3",), ((8192,) * 3, (4096,) * 3)),
    (("bmm",), BF16, ((16, 1024, 1024, 1024), (96, 512, 512, 64))),
    # experts of Mixtral-8x7B, of Qwen3-30B-A3B, and of Mixtral at decoding
    (("grouped_mm",), BF16, ((8192, 14336, 4096, 8), (8192, 4096, 14336, 8), (32768, 768, 2048, 128), (32768, 2048, 768, 128),
                             (32, 14336, 4096, 8))),
)
DECODING = ((1, 1024), (1, 8192), (1, 131072), (16, 1024), (16, 8192), (64, 1024), (64, 8192))      # batch, keys
ATTENTION = (
    (("sdpa", "sdpa_causal"), BF16, ((32, 16, 512, 64), (4, 16, 1024, 64), (4, 16, 4096, 64), (1, 16, 16384, 64),
                                     (16, 16, 512, 128), (16, 16, 1024, 128), (4, 16, 4096, 128), (1, 16, 16384, 128),
                                     (4, 8, 2048, 256))),
    (("attention", "attention_causal"), BF16, ((4, 16, 1024, 64), (4, 16, 4096, 128))),
    (("sdpa_grouped_causal",), BF16, ((1, 32, 8, 4096, 4096, 128),)),
    (("sdpa_grouped",), BF16, tuple((batch, 32, 4, 1, keys, 128) for batch, keys in DECODING)),
    (("sdpa_paged",), BF16, ((16, 32, 4, 1, 8192, 128),)),
    (("softcap_attention",), BF16, ((4, 16, 1024, 64),)),
    (("varlen_attn", "varlen_attn_causal"), BF16, ((16384, 16, 16, 128, 8), (16384, 16, 16, 64, 8), (8192, 32, 8, 128, 16))),
    (("sdpa_documents", "sdpa_offsets"), BF16, ((8192, 16, 16, 128, 8),)),
)
FUSED = (
    (("linear+bias+gelu",), BF16, ((4096,) * 3, (2048, 3072, 768))),
    (("linear+residual",), BF16, ((2048, 4096, 4096),)),
    (("rmsnorm+linear",), BF16, ((4096,) * 3, (16, 4096, 4096))),
    (("layernorm+linear",), BF16, ((4096,) * 3,)),
    (("gated_mlp",), BF16, ((16, 4096, 14336), (4096, 4096, 14336))),
    (("mlp+residual",), BF16, ((4096, 1024, 4096),)),
    (("lora",), BF16, ((4096, 4096, 4096, 16), (16, 4096, 4096, 16))),
    (("qkv",), BF16, ((16, 4096, 1024), (2048, 4096, 1024))),
    (("qkv+rope",), BF16, ((16, 4096, 1024, 128), (2048, 4096, 1024, 128))),
    (("(ab)c",), BF16, ((4096, 64, 4096, 64),)),
    (("grouped_gate",), BF16, ((8192, 14336, 4096, 8), (32768, 768, 2048, 128))),
)
MIRAGE = (
    (("mirage_gqa", "mirage_qknorm"), FP16, tuple((2 * b, 256, 4096, 64) for b in BATCHES)),
    (("mirage_rmsnorm",), FP16, tuple((2 * b, 6144, 4096) for b in BATCHES)),
    (("mirage_lora",), FP16, tuple((b, 4096, 256, 16) for b in BATCHES)),
    (("mirage_mlp",), FP16, tuple((b, 4096, 4096) for b in BATCHES)),
    (("mirage_ntrans",), FP16, tuple((8 * b, 4096) for b in BATCHES)),
)
QUANTISED = (
    (("linear_int8", "linear_int8_groups", "linear_int4", "linear_int4_groups"), BF16,
     tuple((m, 4096, 4096, 128) for m in (1, 4, 16, 64, 4096))),
    (("linear_int8", "linear_int4_groups"), BF16, tuple((m, 14336, 4096, 128) for m in (1, 16, 4096))),
    (("linear_int8",), FP16, ((1, 4096, 4096, 128), (4096, 4096, 4096, 128))),
)
SUITES = {"gemm": GEMM, "attention": ATTENTION, "fused": FUSED, "mirage": MIRAGE, "quantised": QUANTISED}
