"""The CUDA of expressions: every operator of `emmy.ir.operators`, every constant and conversion.

Math functions are the accurate ones; nothing contracts, since nvcc runs with `--fmad=false` and only `fma` fuses.
Operators that C lacks are functions named `emmy_…`, which `prelude` adds to a module that uses them.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from emmy.instructions import ptx
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_expr import operands
from emmy.ir.kernel_ir import Apply, Block, Const, Convert, Element, Expr, Thread, Var
from emmy.ir.node import IRError, postorder

TYPES = {dt.bool_: "bool", dt.i8: "signed char", dt.u8: "unsigned char", dt.i32: "int", dt.i64: "long long", dt.f16: "__half",
    dt.bf16: "__nv_bfloat16", dt.f32: "float", dt.f64: "double", dt.e4m3: "emmy_e4m3", dt.e5m2: "emmy_e5m2", dt.tf32: "float"}
PRIMARY, UNARY, TERNARY = 16, 14, 3

# symbol and precedence, as in C; all of them group to the left
INFIX = {"add": ("+", 12), "sub": ("-", 12), "mul": ("*", 13), "div": ("/", 13), "lt": ("<", 10), "le": ("<=", 10), "eq": ("==", 9),
    "ne": ("!=", 9), "xor": ("!=", 9), "and": ("&&", 5), "or": ("||", 4)}
_INTEGER_INFIX = {"truncdiv": ("/", 13), "fmod": ("%", 13), "xor": ("^", 7), "and": ("&", 8), "or": ("|", 6)}
_BOOL_INFIX = {"max": ("||", 4), "min": ("&&", 5)}
_SAME_NAME = ("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "floor", "ceil", "trunc", "fmod", "pow")
_CALLS = {"float": {"abs": "fabs", "round": "rint", **{f: f for f in _SAME_NAME}}, "int": {"max": "max", "min": "min"}, "bool": {}}
_HELPERS = {"sign": "emmy_sign", "mod": "emmy_mod", "floordiv": "emmy_floordiv", "max": "emmy_max", "min": "emmy_min", "exp2": "emmy_exp2",
    "shl": "emmy_shl", "shr": "emmy_shr"}
# what C computes in int of integers of a byte, and may leave their range
_LEAVING = ("neg", "abs", "not", "add", "sub", "mul", "truncdiv", "floordiv")
_WIDENED = {dt.f16: "__half2float", dt.bf16: "__bfloat162float", dt.e4m3: "float", dt.e5m2: "float"}
_NARROWED = {dt.f16: "__float2half_rn", dt.bf16: "__float2bfloat16_rn", dt.e4m3: "emmy_e4m3", dt.e5m2: "emmy_e5m2"}

_DEVICE = "__device__ __forceinline__"


def _byte_type(name: str, mantissa: int, bias: int, tops: str, over: int, nan: int, half: str) -> str:
    """A type of a byte in CUDA: rounded to nearest even, as torch does; `tops`: whether a magnitude is beyond what becomes `over`."""
    drop, least = 23 - mantissa, 2 ** (bias - 1 + mantissa)
    return f"""struct {name} {{
  unsigned char bits;
  {name}() = default;
  {_DEVICE} static {name} of(unsigned char bits) {{ {name} x; x.bits = bits; return x; }}
  {_DEVICE} explicit {name}(float x) {{
    const unsigned word = __float_as_uint(x), size = word & 0x7fffffffu, sign = word >> 24 & 0x80u;
    const float magnitude = __uint_as_float(size);
    unsigned to = (size + {hex((1 << (drop - 1)) - 1)}u + (size >> {drop} & 1u) >> {drop}) - {(127 - bias) << mantissa}u;
    if (magnitude < {2.0 ** (1 - bias)!r}f) to = __float2uint_rn(magnitude * {float(least)}f);
    if ({tops}) to = {over:#x}u;
    bits = static_cast<unsigned char>(sign | (magnitude != magnitude ? {nan:#x}u : to));
  }}
  {_DEVICE} explicit operator float() const {{
    float x;
    {half}
  }}
}};"""


FUNCTIONS = {
    "emmy_e4m3": _byte_type("emmy_e4m3", 3, 7, "magnitude > 464.0f", 0x7F, 0x7F,
                            """const unsigned short half = (bits & 0x80) << 8 | (bits & 0x7f) << 7;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return (bits & 0x7f) == 0x7f ? __int_as_float(0x7fffffff) : x * 256.0f;"""),
    "emmy_e5m2": _byte_type("emmy_e5m2", 2, 15, "magnitude >= 61440.0f", 0x7C, 0x7F, """const unsigned short half = bits << 8;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return x;"""),
    "emmy_sign": f"""template <class T>
{_DEVICE} T emmy_sign(T x) {{ return x != x ? x : static_cast<T>((x > 0) - (x < 0)); }}""",
    "emmy_mod": f"""{_DEVICE} float emmy_mod(float x, float y) {{ float r = fmodf(x, y); return r != 0 && (r < 0) != (y < 0) ? r + y : r; }}
{_DEVICE} double emmy_mod(double x, double y) {{ double r = fmod(x, y); return r != 0 && (r < 0) != (y < 0) ? r + y : r; }}
{_DEVICE} int emmy_mod(int x, int y) {{ int r = x % y; return r != 0 && (r < 0) != (y < 0) ? r + y : r; }}
{_DEVICE} long long emmy_mod(long long x, long long y) {{ long long r = x % y; return r != 0 && (r < 0) != (y < 0) ? r + y : r; }}""",
    "emmy_floordiv": f"""template <class T>
{_DEVICE} T emmy_floordiv(T x, T y) {{ return x / y - (x % y != 0 && (x < 0) != (y < 0)); }}""",
    "emmy_shl": f"""template <class T>
{_DEVICE} T emmy_shl(T x, T by) {{
  return static_cast<unsigned long long>(by) < 8 * sizeof(T) ? static_cast<T>(static_cast<unsigned long long>(x) << by) : T(0);
}}""",
    "emmy_shr": f"""// beyond its bits a number is its sign
template <class T>
{_DEVICE} T emmy_shr(T x, T by) {{
  return static_cast<T>(static_cast<unsigned long long>(by) < 8 * sizeof(T) ? x >> by : x >> 8 * sizeof(T) - 1 >> 1);
}}""",
    "emmy_max": f"""{_DEVICE} float emmy_max(float x, float y) {{
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}}
{_DEVICE} double emmy_max(double x, double y) {{ return x > y || x != x ? x : y; }}""",
    "emmy_min": f"""{_DEVICE} float emmy_min(float x, float y) {{
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}}
{_DEVICE} double emmy_min(double x, double y) {{ return x < y || x != x ? x : y; }}""",
    "emmy_exp2": f"""// relative error 2^-22; subnormal results are zeros
{_DEVICE} float emmy_exp2(float x) {{
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}}
{_DEVICE} double emmy_exp2(double x) {{ return exp2(x); }}""",
    "emmy_vector": """// N elements that move in one access
template <class T, int N>
struct alignas(sizeof(T) * N) emmy_vector { T at[N]; };""",
    "emmy_load": f"""template <int N, class To, class From>
{_DEVICE} void emmy_load(To* to, const From* from) {{
  const emmy_vector<From, N> v = *reinterpret_cast<const emmy_vector<From, N>*>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = static_cast<To>(v.at[i]);
}}""",
    "emmy_store": f"""template <int N, class To, class From>
{_DEVICE} void emmy_store(To* to, const From* from) {{
  emmy_vector<To, N> v;
#pragma unroll
  for (int i = 0; i < N; ++i) v.at[i] = static_cast<To>(from[i]);
  *reinterpret_cast<emmy_vector<To, N>*>(to) = v;
}}""",
    "emmy_shared": f"{_DEVICE} unsigned emmy_shared(const void* at) {{ return static_cast<unsigned>(__cvta_generic_to_shared(at)); }}",
    "emmy_copy_async": f"""{_DEVICE} void emmy_copy_async(void* to, const void* from, bool there = true) {{
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" :: "r"(emmy_shared(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}}""",
    "emmy_copy_words": f"""template <int N>
{_DEVICE} void emmy_copy_words(void* to, const void* from, bool there = true) {{
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" :: "r"(emmy_shared(to)), "l"(from), "n"(N), "r"(there ? N : 0) : "memory");
}}""",
    "emmy_commit_copies": f"""{_DEVICE} void emmy_commit_copies() {{ asm volatile("cp.async.commit_group;" ::: "memory"); }}""",
    "emmy_wait_copies": f"""template <int N>
{_DEVICE} void emmy_wait_copies() {{ asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }}""",
    **{name: f"""template <int N, class T>
{_DEVICE} void {name}(T* to, const T* row) {{
  unsigned* const r = reinterpret_cast<unsigned*>(to);
  if constexpr (N == 1)
    asm volatile("ldmatrix.sync.aligned.m8n8.x1{trans}.shared.b16 {{%0}}, [%1];" : "=r"(r[0]) : "r"(emmy_shared(row)) : "memory");
  else if constexpr (N == 2)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2{trans}.shared.b16 {{%0, %1}}, [%2];"
      : "=r"(r[0]), "=r"(r[1]) : "r"(emmy_shared(row)) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(emmy_shared(row)) : "memory");
}}""" for name, trans in (("emmy_load_matrix", ""), ("emmy_load_transposed", ".trans"))},
    "emmy_tf32": f"""// rounded to the nearest, ties away from zero
{_DEVICE} float emmy_tf32(float x) {{
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return __uint_as_float(y);
}}""",
    **{f"emmy_mma_{x}": f"""{_DEVICE} void emmy_mma_{x}(float* sum, const {TYPES[x]}* left, const {TYPES[x]}* right) {{
  const unsigned* const a = reinterpret_cast<const unsigned*>(left);
  const unsigned* const b = reinterpret_cast<const unsigned*>(right);
  asm volatile("mma.sync.aligned.m16n8k{32 // x.bytes}.row.col.f32.{x}.{x}.f32 "
    "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
    : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}""" for x in (dt.f16, dt.bf16, dt.tf32, dt.e4m3, dt.e5m2)},
}
FUNCTIONS |= {
    "emmy_take_ticket": f"""{_DEVICE} int emmy_take_ticket(long long* word) {{
  return static_cast<int>(atomicAdd(reinterpret_cast<unsigned long long*>(word), 1ull));
}}""",
    "emmy_publish": f"""// a flag and a value, in one access
{_DEVICE} void emmy_publish(long long* word, int flag, int value) {{
  const long long both = static_cast<long long>(flag) << 32 | static_cast<unsigned int>(value);
  asm volatile("st.relaxed.gpu.global.s64 [%0], %1;" :: "l"(word), "l"(both) : "memory");
}}""",
    "emmy_await": f"""// the word, once its flag is set
{_DEVICE} long long emmy_await(const long long* word) {{
  long long both;
  do asm volatile("ld.relaxed.gpu.global.s64 %0, [%1];" : "=l"(both) : "l"(word) : "memory"); while (!(both >> 32));
  return both;
}}""",
}
FUNCTIONS |= {
    "emmy_give_signal": f"""// what the thread has seen written comes before it
{_DEVICE} void emmy_give_signal(int* word) {{ asm volatile("st.release.gpu.global.s32 [%0], 1;" :: "l"(word) : "memory"); }}""",
    "emmy_await_signal": f"""// what was written before the signal was given comes before what follows; the word is for the next launch then
{_DEVICE} void emmy_await_signal(int* word) {{
  int given;
  do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(given) : "l"(word) : "memory"); while (!given);
  asm volatile("st.relaxed.gpu.global.s32 [%0], 0;" :: "l"(word) : "memory");
}}""",
}
FUNCTIONS |= ptx.FUNCTIONS


def prelude(text: str) -> str:
    """The includes and functions that CUDA text uses."""
    used = set(re.findall(r"\bemmy_\w+", text))
    known = FUNCTIONS | {name: body for name in sorted(used) if (body := ptx.product(name))}
    while more := {f for name in used & known.keys() for f in re.findall(r"\bemmy_\w+", known[name])} - used:
        used |= more
    includes = [f"#include <{h}>" for h, t in (("cuda_bf16.h", "bfloat16"), ("cuda_fp16.h", "__half")) if t in text]
    return "\n\n".join(filter(None, ("\n".join(includes), *(body for name, body in known.items() if name in used))))


def spell(e: Expr) -> str:
    """The expression in CUDA, with no parentheses that C does not need."""
    return spelled(e)[0]


def at_least(e: Expr, precedence: int) -> str:
    """The expression as an operand of something that binds this tightly."""
    return _bound(spelled(e), precedence)


def spelled(e: Expr) -> tuple[str, int]:
    """The expression in CUDA, and its precedence; from the leaves up, for it may be deeper than the stack."""
    return [_spelled(x) for x in postorder((e,), operands)][-1]


def _bound(value: tuple[str, int], precedence: int) -> str:
    text, own = value
    return text if own >= precedence else f"({text})"


@lru_cache(maxsize=1 << 16)
def _spelled(e: Expr) -> tuple[str, int]:
    match e:
        case Const(element, bits): return constant(element, bits)
        case Var(name, _): return name, PRIMARY
        case Thread(): return "thread", PRIMARY
        case Block(axis): return f"block_{'xyz'[axis]}", PRIMARY
        case Element(array, _, index): return f"{array}[{_spelled(index)[0]}]", PRIMARY
        case Convert(element, x): return conversion(_spelled(x), x.dtype, element)
        case Apply(op, args): return _apply(op, args)
    raise AssertionError(type(e))


def _apply(op: str, args: tuple[Expr, ...]) -> tuple[str, int]:
    made, of = _unbounded(op, args), args[-1].dtype
    return _cast(of, made) if of in (dt.i8, dt.u8) and op in _LEAVING else made


def _cast(to: DType, value: tuple[str, int]) -> tuple[str, int]:
    """A value that C converts by itself, as text and its precedence."""
    return f"({TYPES[to]}){_bound(value, UNARY)}", UNARY


def _unbounded(op: str, args: tuple[Expr, ...]) -> tuple[str, int]:
    of, made = args[-1].dtype, [_spelled(a) for a in args]
    x = [text for text, _ in made]
    infix = (INFIX | (_INTEGER_INFIX if of.kind == "int" else _BOOL_INFIX if of.kind == "bool" else {})).get(op)
    if infix:
        symbol, p = infix
        return f"{_bound(made[0], p)} {symbol} {_bound(made[1], p + 1)}", p
    suffix = "f" if of is dt.f32 else ""
    match op:
        case "neg" | "not":
            symbol, operand = "-" if op == "neg" else "!" if of is dt.bool_ else "~", _bound(made[0], UNARY)
            return symbol + (f"({operand})" if operand.startswith("-") else operand), UNARY
        case "select": return f"{_bound(made[0], TERNARY + 1)} ? {_bound(made[1], TERNARY)} : {_bound(made[2], TERNARY)}", TERNARY
        case "recip": return f"{constant(of, dt.bits(of, 1))[0]} / {_bound(made[0], 14)}", 13
        case "isnan": return f"isnan({x[0]})", PRIMARY
        case "fma": return f"__fma{suffix}_rn({', '.join(x)})", PRIMARY
        case "abs" if of.kind == "int": return f"{'llabs' if of is dt.i64 else 'abs'}({x[0]})", PRIMARY
        case "truncdiv": return f"trunc{suffix}({_bound(made[0], 13)} / {_bound(made[1], 14)})", PRIMARY
        case "floordiv" if of.kind == "float": return f"floor{suffix}({_bound(made[0], 13)} / {_bound(made[1], 14)})", PRIMARY
    if op in _CALLS[of.kind]:
        return f"{_CALLS[of.kind][op]}{suffix}({', '.join(x)})", PRIMARY
    if op in _HELPERS:
        of_type = f"<{TYPES[of]}>" if op in ("shl", "shr", "floordiv") and of.bytes == 1 else ""      # C makes them int
        return f"{_HELPERS[op]}{of_type}({', '.join(x)})", PRIMARY
    raise IRError(f"{op} of {of} has no CUDA")


def constant(element: DType, bits: int) -> tuple[str, int]:
    """A constant in CUDA, exactly, and its precedence."""
    value = dt.value(element, bits)
    if element is dt.bool_:
        return str(bool(value)).lower(), PRIMARY
    if element.kind == "int":
        suffix = "LL" if element is dt.i64 else ""
        lowest = 0 > value == np.iinfo(element.numpy).min
        return (f"(-{-(int(value) + 1)}{suffix} - 1)", PRIMARY) if lowest else (f"{value}{suffix}", PRIMARY if value >= 0 else UNARY)
    if element.bytes == 1 and element.kind == "float":
        return f"emmy_{element}::of({bits:#04x})", PRIMARY
    if element in (dt.f16, dt.bf16):
        return f"__ushort_as_{'half' if element is dt.f16 else 'bfloat16'}({bits:#06x})", PRIMARY
    if np.isfinite(value):
        return decimal(element, bits) + ("f" if element is dt.f32 else ""), UNARY if bits >> (element.bytes * 8 - 1) else PRIMARY
    if np.isinf(value) and element is dt.f32:
        return ("-INFINITY", UNARY) if value < 0 else ("INFINITY", PRIMARY)
    return (f"__int_as_float({bits:#x})" if element is dt.f32 else f"__longlong_as_double({bits:#x}LL)"), PRIMARY


def decimal(element: DType, bits: int) -> str:
    """The shortest decimal that reads back as this finite float."""
    value = dt.value(element, bits)
    text = str(value)
    if dt.bits(element, float(text)) != bits:
        text = repr(float(value))
    return text if re.search(r"[.e]", text) else text + ".0"


def conversion(value: tuple[str, int], source: DType, target: DType) -> tuple[str, int]:
    """A value of dtype `source`, as text and its precedence, converted to `target`."""
    x, own = value
    if source.stored is target:
        return value
    if target is dt.tf32:
        return f"emmy_tf32({conversion(value, source, dt.f32)[0]})", PRIMARY
    if source.compute is not source:
        return conversion((f"{_WIDENED[source]}({x})", PRIMARY), dt.f32, target)
    if target in _NARROWED:
        return f"{_NARROWED[target]}({conversion(value, source, dt.f32)[0]})", PRIMARY
    if target is dt.bool_:
        return f"{x if own >= UNARY else f'({x})'} != {constant(source, 0)[0]}", 9
    return _cast(target, _cast(dt.i64, value) if source.kind == "float" and target in (dt.i8, dt.u8) else value)
