"""The functions that give CUDA the instructions of sm_90a: clusters, barriers in memory, the copy engine, products of warpgroups.

They need no header.  The product functions are made on demand, one for each shape and layout that a module uses.
"""

from __future__ import annotations

import re

_DEVICE = "__device__ __forceinline__"
_INTO, _FROM = "shared::cluster.global", "global.shared::cta"


def _volatile(text: str, operands: str) -> str:
    return f'asm volatile("{text}" :: {operands} : "memory");' if operands else f'asm volatile("{text}" ::: "memory");'


def _simple(name: str, text: str, **operands: str) -> tuple[str, str]:
    """A function of one instruction: parameters by name, each an address ("shared", "global") or a number ("r", or "h" of 16 bits)."""
    types = {"shared": "const void*", "global": "const void*", "r": "int", "h": "int"}
    values = {"shared": '"r"(emmy_shared({}))', "global": '"l"({})', "r": '"r"({})', "h": '"h"(static_cast<unsigned short>({}))'}
    parameters = ", ".join(f"{types[kind]} {name}" for name, kind in operands.items())
    body = _volatile(text, ", ".join(values[kind].format(name) for name, kind in operands.items()))
    return name, f"{_DEVICE} void {name}({parameters}) {{\n  {body}\n}}"


def _dependency(name: str, text: str) -> tuple[str, str]:
    """A function of one instruction on launches, which no GPU before sm_90 overlaps."""
    return name, f"{_DEVICE} void {name}() {{\n#if __CUDA_ARCH__ >= 900\n  {_volatile(text, '')}\n#endif\n}}"


def _counted(name: str, text: str) -> tuple[str, str]:
    """A function of one instruction with a constant operand."""
    return name, f'template <int N>\n{_DEVICE} void {name}() {{ asm volatile("{text} %0;" :: "n"(N) : "memory"); }}'


def _tile(rank: int) -> list[tuple[str, str]]:
    """The copies of tiles of a tensor, whose coordinates stand outermost first here and innermost first in the instruction."""
    names = [f"c{k}" for k in range(rank)]
    at = ", ".join(f"%{2 + rank - 1 - k}" for k in range(rank))
    operands = {"map": "global", "tile": "shared", **dict.fromkeys(names, "r")}
    name, last = f"cp.async.bulk.tensor.{rank}d.{_INTO}.mbarrier::complete_tx::bytes", 2 + rank
    copy = f"{name} [%1], [%0, {{{at}}}], [%{last}];"
    several = f"{name}.multicast::cluster [%1], [%0, {{{at}}}], [%{last}], %{last + 1};"
    store = f"cp.async.bulk.tensor.{rank}d.{_FROM}.bulk_group [%0, {{{at}}}], [%1];"
    return [_simple(f"emmy_copy_tile_{rank}", copy, **operands, barrier="shared"), _copy_once(rank, names, at),
            _simple(f"emmy_copy_tile_{rank}_to", several, **operands, barrier="shared", mask="h"),
            _simple(f"emmy_store_tile_{rank}", store, **operands)]


def _copy_once(rank: int, names: list[str], at: str) -> tuple[str, str]:
    """The copy of a tile that is the first to leave the second-level cache."""
    numbers, given = ", ".join(f"int {c}" for c in names), ", ".join(f'"r"({c})' for c in names)
    copy = (f"cp.async.bulk.tensor.{rank}d.{_INTO}.mbarrier::complete_tx::bytes.L2::cache_hint "
            f"[%1], [%0, {{{at}}}], [%{2 + rank}], %{3 + rank};")
    name = f"emmy_copy_tile_{rank}_once"
    return name, f"""{_DEVICE} void {name}(const void* map, const void* tile, {numbers}, const void* barrier) {{
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  {_volatile(copy, f'"l"(map), "r"(emmy_shared(tile)), {given}, "r"(emmy_shared(barrier)), "l"(policy)')}
}}"""


def _window(rank: int) -> list[tuple[str, str]]:
    """The copies of windows of a tensor: as of its tiles, and the offsets into the windows."""
    spatial = rank - 2
    operands = {"map": "global", "tile": "shared", **{f"c{k}": "r" for k in range(rank)}, **{f"o{k}": "h" for k in range(spatial)}}
    at, offsets = (", ".join(f"%{first + n - 1 - k}" for k in range(n)) for first, n in ((2, rank), (2 + rank, spatial)))
    name, barrier = f"cp.async.bulk.tensor.{rank}d.{_INTO}.im2col.mbarrier::complete_tx::bytes", f"%{2 + rank + spatial}"
    copy, mask = f"[%1], [%0, {{{at}}}], [{barrier}], {{{offsets}}}", f"%{3 + rank + spatial}"
    return [_simple(f"emmy_copy_windows_{rank}", f"{name} {copy};", **operands, barrier="shared"),
            _simple(f"emmy_copy_windows_{rank}_to", f"{name}.multicast::cluster {copy}, {mask};", **operands, barrier="shared", mask="h")]


def _store_matrices(name: str, half: str, trans: str) -> str:
    stores = []
    for n in (1, 2, 4):
        values, given = ", ".join(f"%{k + 1}" for k in range(n)), ", ".join(f'"r"(r[{k}])' for k in range(n))
        stores.append(f"""  if constexpr (N == {n})
    asm volatile("stmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 [%0], {{{values}}};" :: "r"(emmy_shared(row)), {given} : "memory");
""")
    return f"""template <int N, class T>
{_DEVICE} void {name}(void* row, const T* from) {{
  unsigned r[N];
#pragma unroll
  for (int i = 0; i < N; ++i)
    if constexpr (sizeof(T) == 4)
      asm("cvt.rn.{half}x2.f32 %0, %1, %2;" : "=r"(r[i]) : "f"(static_cast<float>(from[2 * i + 1])), "f"(static_cast<float>(from[2 * i])));
    else
      r[i] = reinterpret_cast<const unsigned*>(from)[i];
{"".join(stores)}}}"""


FUNCTIONS = {
    "emmy_map": "// what cuTensorMapEncodeTiled writes\nstruct __align__(64) emmy_map { unsigned long long words[16]; };",
    **dict((
        _simple("emmy_init_barrier", "mbarrier.init.shared::cta.b64 [%0], %1;", barrier="shared", count="r"),
        ("emmy_fence_barriers", f"""{_DEVICE} void emmy_fence_barriers() {{
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}}"""),
        _simple("emmy_expect_bytes", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", barrier="shared", bytes="r"),
        _simple("emmy_arrive", "mbarrier.arrive.shared::cta.b64 _, [%0];", barrier="shared"),
        ("emmy_wait_barrier", f"""{_DEVICE} void emmy_wait_barrier(const void* barrier, int parity) {{
  int done;
  do {{
    asm volatile("{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.s32 %0, 1, 0, p; }}"
      : "=r"(done) : "r"(emmy_shared(barrier)), "r"(parity) : "memory");
  }} while (!done);
}}"""),
        _dependency("emmy_launch_dependents", "griddepcontrol.launch_dependents;"),
        _dependency("emmy_wait_kernels", "griddepcontrol.wait;"),
        _simple("emmy_fence_async", "fence.proxy.async.shared::cta;"),
        _simple("emmy_prefetch_map", "prefetch.tensormap [%0];", map="global"),
        _simple("emmy_copy_bulk", f"cp.async.bulk.{_INTO}.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];",
                to="shared", of="global", bytes="r", barrier="shared"),
        *(function for rank in range(1, 6) for function in _tile(rank)),
        *(function for rank in range(3, 6) for function in _window(rank)),
        _simple("emmy_commit_stores", "cp.async.bulk.commit_group;"),
        _counted("emmy_wait_stores", "cp.async.bulk.wait_group"),
        _counted("emmy_wait_stores_read", "cp.async.bulk.wait_group.read"),
        _counted("emmy_grow_registers", "setmaxnreg.inc.sync.aligned.u32"),
        _counted("emmy_shrink_registers", "setmaxnreg.dec.sync.aligned.u32"),
        _simple("emmy_named_barrier", "bar.sync %0, %1;", id="r", threads="r"),
        _simple("emmy_cluster_arrive", "barrier.cluster.arrive.relaxed.aligned;"),
        _simple("emmy_cluster_wait", "barrier.cluster.wait.acquire.aligned;"),
        _simple("emmy_fence_products", "wgmma.fence.sync.aligned;"),
        _simple("emmy_commit_products", "wgmma.commit_group.sync.aligned;"),
        _counted("emmy_wait_products", "wgmma.wait_group.sync.aligned"),
    )),
    "emmy_peer": f"""// the address in another block's shared memory that corresponds to one in this block's
{_DEVICE} unsigned emmy_peer(const void* at, int rank) {{
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(emmy_shared(at)), "r"(rank));
  return there;
}}""",
    "emmy_arrive_peer": f"""{_DEVICE} void emmy_arrive_peer(const void* barrier, int rank) {{
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" :: "r"(emmy_peer(barrier, rank)) : "memory");
}}""",
    "emmy_store_cluster": f"""template <class T>
{_DEVICE} void emmy_store_cluster(const void* at, int rank, T value, const void* barrier) {{
  const unsigned to = emmy_peer(at, rank), on = emmy_peer(barrier, rank);
  if constexpr (sizeof(T) == 8)
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];"
      :: "r"(to), "l"(*reinterpret_cast<const unsigned long long*>(&value)), "r"(on) : "memory");
  else
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
      :: "r"(to), "r"(*reinterpret_cast<const unsigned*>(&value)), "r"(on) : "memory");
}}""",
    "emmy_store_cluster_vector": f"""template <class T>
{_DEVICE} void emmy_store_cluster_vector(const void* at, int rank, const T* from, const void* barrier) {{
  static_assert(sizeof(T) == 4);
  const unsigned* const r = reinterpret_cast<const unsigned*>(from);
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {{%1, %2, %3, %4}}, [%5];"
    :: "r"(emmy_peer(at, rank)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(emmy_peer(barrier, rank)) : "memory");
}}""",
    "emmy_pin": f"""// keeps uses of these registers on their side of what comes before and after
template <class T, int N>
{_DEVICE} void emmy_pin(T (&a)[N]) {{
  if constexpr (sizeof(T) == 4) {{
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(a[i]) :: "memory");
  }} else {{
    unsigned* const r = reinterpret_cast<unsigned*>(a);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) asm volatile("" : "+r"(r[i]) :: "memory");
  }}
}}""",
    "emmy_tile": f"""// describes a tile with rows of 128 bytes, swizzled by 128; chunk: bytes from 64 columns to the next 64.
// Of an address 18 bits count: above them is the rank of a block in its cluster
{_DEVICE} unsigned long long emmy_tile(const void* at, int chunk) {{
  return 1ull << 62 | 64ull << 32 | static_cast<unsigned long long>(chunk >> 4) << 16 | (emmy_shared(at) & 0x3ffff) >> 4;
}}""",
    **{f"emmy_store_{name}_{half}": _store_matrices(f"emmy_store_{name}_{half}", half, trans)
       for name, trans in (("matrices", ""), ("transposed", ".trans")) for half in ("f16", "bf16")},
}

_PRODUCT = r"emmy_product_(b?f16|tf32|e4m3|e5m2)_(\d+)_([kmr])([km])"
_DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}


def product(name: str) -> str | None:
    """The function of a product: emmy_product_<element>_<columns>_<left><right>, operands by the major dimension of their tiles, k or m
    (the left operand in registers: r); None for another name."""
    found = re.fullmatch(_PRODUCT, name)
    if not found:
        return None
    element, columns, left, right = found[1], int(found[2]), found[3], found[4]
    n = columns // 2
    sums, a = ", ".join(f"%{k}" for k in range(n)), 4 if left == "r" else 1
    of = f"{{{', '.join(f'%{n + k}' for k in range(4))}}}" if left == "r" else f"%{n}"
    majors = f", {int(right == 'm')}" if left == "r" else f", {int(left == 'm')}, {int(right == 'm')}"
    majors = majors if _DEPTHS[element] == 16 else ""       # others than halves have their rows along k
    pointer = "const unsigned* const a = reinterpret_cast<const unsigned*>(left);\n  " if left == "r" else ""
    given = ", ".join(f'"r"(a[{k}])' for k in range(4)) if left == "r" else '"l"(left)'
    parameter = "const void* left" if left == "r" else "unsigned long long left"
    outputs = "\n      ".join(", ".join(f'"+f"(sum[{k}])' for k in range(i, min(i + 8, n))) + "," * (i + 8 < n) for i in range(0, n, 8))
    return f"""{_DEVICE} void {name}(float* sum, {parameter}, unsigned long long right, bool accumulate) {{
  {pointer}asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{n + a + 1}, 0; "
    "wgmma.mma_async.sync.aligned.m64n{columns}k{_DEPTHS[element]}.f32.{element}.{element} {{{sums}}}, "
    "{of}, %{n + a}, p, 1, 1{majors}; }}"
    : {outputs}
    : {given}, "l"(right), "r"(static_cast<int>(accumulate)));
}}"""
