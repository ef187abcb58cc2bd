// Only basic IEEE operations in a fixed order. Built with -ffp-contract=off, so that no multiply-add is fused.
#include "recipe.h"

#include <algorithm>
#include <cmath>

namespace aot {

using namespace format;

namespace {

struct Tensor {
    uint32_t dtype = 0;
    Vector<int64_t> shape;
    Vector<uint8_t> data;
    explicit Tensor(const Memory &memory) : shape(Allocator<int64_t>(memory)), data(Allocator<uint8_t>(memory)) {}
    size_t elements() const {
        size_t n = 1;
        for (int64_t extent : shape) n *= static_cast<size_t>(extent);
        return n;
    }
};

enum : uint32_t { BOOL = 1, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64 };

struct Half {
    uint16_t bits;
};
struct Brain {
    uint16_t bits;
};

uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
}

float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

// Round to nearest even, from f64 at once: what numpy does from f32 and from f64.
Half to_half(double x) {
    const uint64_t bits = bits_of(x);
    const uint16_t sign = static_cast<uint16_t>(bits >> 48 & 0x8000);
    const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
    const uint64_t mantissa = bits & ((uint64_t{1} << 52) - 1);
    if (exponent == 1024) {
        const uint16_t payload = static_cast<uint16_t>(mantissa >> 42);
        return {static_cast<uint16_t>(sign | 0x7c00 | (mantissa ? (payload ? payload : 1) : 0))};
    }
    if (exponent > 15) return {static_cast<uint16_t>(sign | 0x7c00)};
    if (exponent < -25) return {sign};
    const uint64_t whole = mantissa | uint64_t{1} << 52;
    const int shift = exponent < -14 ? 42 + (-14 - exponent) : 42;
    uint64_t kept = whole >> shift;
    const uint64_t rest = whole & ((uint64_t{1} << shift) - 1), half = uint64_t{1} << (shift - 1);
    if (rest > half || (rest == half && (kept & 1))) ++kept;
    const uint64_t base = exponent < -14 ? 0 : static_cast<uint64_t>(exponent + 14) << 10;
    return {static_cast<uint16_t>(sign | (base + kept))};
}

float from_half(Half h) {
    const uint32_t sign = static_cast<uint32_t>(h.bits & 0x8000) << 16;
    const uint32_t exponent = h.bits >> 10 & 0x1f, mantissa = h.bits & 0x3ff;
    if (exponent == 31) return float_of(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0) {
        const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
        return sign ? -tiny : tiny;
    }
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

Brain to_brain(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return {static_cast<uint16_t>((bits >> 31) ? 0xffc0 : 0x7fc0)};
    return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// What arithmetic is done in, for each storage type.
template <class T> struct Wide {
    using type = T;
    static T load(T x) { return x; }
    static T store(T x) { return x; }
};
template <> struct Wide<Half> {
    using type = float;
    static float load(Half x) { return from_half(x); }
    static Half store(float x) { return to_half(x); }
};
template <> struct Wide<Brain> {
    using type = float;
    static float load(Brain x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
    static Brain store(float x) { return to_brain(x); }
};

// Calls `f` with a null pointer of the storage type; false for types without arithmetic.
template <class F> bool with_type(uint32_t dtype, F &&f) {
    switch (dtype) {
        case I8: f(static_cast<int8_t *>(nullptr)); return true;
        case I16: f(static_cast<int16_t *>(nullptr)); return true;
        case I32: f(static_cast<int32_t *>(nullptr)); return true;
        case I64: f(static_cast<int64_t *>(nullptr)); return true;
        case U8: f(static_cast<uint8_t *>(nullptr)); return true;
        case U16: f(static_cast<uint16_t *>(nullptr)); return true;
        case U32: f(static_cast<uint32_t *>(nullptr)); return true;
        case U64: f(static_cast<uint64_t *>(nullptr)); return true;
        case F16: f(static_cast<Half *>(nullptr)); return true;
        case BF16: f(static_cast<Brain *>(nullptr)); return true;
        case F32: f(static_cast<float *>(nullptr)); return true;
        case F64: f(static_cast<double *>(nullptr)); return true;
        default: return false;
    }
}

template <class W> W apply(uint32_t op, W a, W b) {
    if constexpr (std::is_floating_point_v<W>) {
        switch (op) {
            case recipe_op::ADD: return a + b;
            case recipe_op::SUB: return a - b;
            case recipe_op::MUL: return a * b;
            default: return a / b;
        }
    } else {
        // 64-bit unsigned arithmetic wraps, as numpy's integers do.
        const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
        return static_cast<W>(op == recipe_op::ADD ? x + y : op == recipe_op::SUB ? x - y : x * y);
    }
}

// A float as an integer, toward zero. Values outside the type's range give what x86-64's conversions give (numpy leaves
// them to the compiler, and C++ to nobody).
template <class To> To to_integer(double x) {
    if constexpr (std::is_same_v<To, uint64_t>) {
        if (x >= 0x1p63 && x < 0x1p64) return static_cast<uint64_t>(x);
    }
    if constexpr (sizeof(To) == 8 || std::is_same_v<To, uint32_t>) {
        return static_cast<To>(x >= -0x1p63 && x < 0x1p63 ? static_cast<int64_t>(x) : INT64_MIN);
    }
    return static_cast<To>(x >= -0x1p31 && x < 0x1p31 ? static_cast<int32_t>(x) : INT32_MIN);
}

template <class From, class To> void convert(const From *from, To *to, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        const auto value = Wide<From>::load(from[i]);
        if constexpr (std::is_same_v<To, Half>) {
            // numpy converts integers to f16 through f32.
            if constexpr (std::is_same_v<From, double>) to[i] = to_half(value);
            else to[i] = to_half(static_cast<float>(value));
        } else if constexpr (std::is_same_v<To, Brain>) {
            to[i] = to_brain(static_cast<float>(value));
        } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<decltype(Wide<From>::load(from[0]))>) {
            to[i] = to_integer<To>(value);
        } else {
            to[i] = static_cast<To>(value);
        }
    }
}

class Machine {
public:
    Machine(const Artifact &artifact, const ProgramEntry &program, const ConstantEntry &constant,
            SourceWeights &sources, const char *file)
        : a_(artifact), p_(program), constant_(constant), sources_(sources), file_(file),
          stack_(Allocator<Tensor>(artifact.memory)) {
        // A recipe reorders and pads; one that inflates far beyond that is not ours.
        uint64_t largest = constant.bytes;
        for (uint32_t i = 0; i < program.sources.count; ++i) {
            const uint64_t bytes = artifact.sources[program.sources.first + i].bytes;
            if (bytes > largest) largest = bytes;
        }
        limit_ = largest > (uint64_t{1} << 58) ? uint64_t{1} << 62 : 16 * largest + (1 << 20);
    }

    void run(uint8_t *to) {
        for (uint32_t i = 0; i < constant_.recipe.count; ++i) step(a_.recipes[constant_.recipe.first + i]);
        if (stack_.size() != 1) fail("it must leave one tensor");
        const Tensor &result = stack_.back();
        bool fits = result.dtype == constant_.dtype && result.shape.size() == constant_.shape.count;
        for (uint32_t i = 0; fits && i < constant_.shape.count; ++i) {
            fits = result.shape[i] == a_.integer(constant_.shape.first + i);
        }
        if (!fits) fail("its result does not fit the constant");
        if (!result.data.empty()) memcpy(to, result.data.data(), result.data.size());
    }

private:
    [[noreturn]] void fail(const char *what) const {
        throw damaged(file_, "recipes", 0, "the recipe of constant %s: %s", a_.text(constant_.name), what);
    }

    Tensor pop() {
        if (stack_.empty()) fail("the stack runs empty");
        Tensor top = std::move(stack_.back());
        stack_.pop_back();
        return top;
    }

    // A tensor with room for its elements, zeroed.
    Tensor make(uint32_t dtype, const int64_t *shape, size_t rank) const {
        const DType *found = find_dtype(dtype);
        if (!found) fail("unknown element type");
        Tensor made(a_.memory);
        made.dtype = dtype;
        int64_t bytes = item_bytes(*found);
        for (size_t i = 0; i < rank; ++i) {
            if (shape[i] < 0 || !checked_mul(bytes, shape[i], &bytes)) fail("impossible shape");
            made.shape.push_back(shape[i]);
        }
        if (static_cast<uint64_t>(bytes) > limit_) fail("a tensor in between is too large");
        made.data.resize(static_cast<size_t>(bytes));
        return made;
    }

    Tensor make_run(uint32_t dtype, Run shape) const {
        int64_t extents[kMaxRank];
        for (uint32_t i = 0; i < shape.count; ++i) extents[i] = a_.integer(shape.first + i);
        return make(dtype, extents, shape.count);
    }

    void step(const RecipeEntry &r) {
        switch (r.op) {
            case recipe_op::SOURCE: {
                const uint32_t index = static_cast<uint32_t>(a_.integer(r.operands.first));
                const SourceEntry &source = a_.sources[p_.sources.first + index];
                Tensor made = make_run(source.dtype, source.shape);
                const uint8_t *bytes = sources_.bytes(index);
                if (!made.data.empty()) memcpy(made.data.data(), bytes, made.data.size());
                stack_.push_back(std::move(made));
                return;
            }
            case recipe_op::SCALAR: {
                Tensor wide = make(F64, nullptr, 0);
                memcpy(wide.data.data(), &r.scalar, 8);
                stack_.push_back(cast(std::move(wide), r.dtype));
                return;
            }
            case recipe_op::ADD:
            case recipe_op::SUB:
            case recipe_op::MUL:
            case recipe_op::DIV: {
                Tensor right = pop(), left = pop();
                stack_.push_back(binary(r.op, left, right));
                return;
            }
            case recipe_op::NEG:
            case recipe_op::SQRT: unary(r.op); return;
            case recipe_op::CAST: stack_.push_back(cast(pop(), r.dtype)); return;
            case recipe_op::RESHAPE: {
                Tensor top = pop();
                Vector<int64_t> shape(Allocator<int64_t>(a_.memory));
                int64_t elements = 1;
                for (uint32_t i = 0; i < r.shape.count; ++i) {
                    shape.push_back(a_.integer(r.shape.first + i));
                    if (shape.back() < 0 || !checked_mul(elements, shape.back(), &elements)) fail("impossible shape");
                }
                if (static_cast<size_t>(elements) != top.elements()) fail("a reshape changes the number of elements");
                top.shape = std::move(shape);
                stack_.push_back(std::move(top));
                return;
            }
            case recipe_op::PACK: stack_.push_back(pack(pop(), r)); return;
            case recipe_op::CONCAT: concat(r); return;
            default: stack_.push_back(winograd(pop())); return;
        }
    }

    Tensor cast(Tensor from, uint32_t dtype) const {
        if (from.dtype == dtype) return from;
        Tensor to = make(dtype, from.shape.data(), from.shape.size());
        const size_t n = from.elements();
        const uint32_t source = from.dtype == BOOL ? static_cast<uint32_t>(U8) : from.dtype;
        bool known = with_type(source, [&](auto *s) {
            using From = std::remove_pointer_t<decltype(s)>;
            const From *in = reinterpret_cast<const From *>(from.data.data());
            if (dtype == BOOL) {
                for (size_t i = 0; i < n; ++i) to.data[i] = Wide<From>::load(in[i]) != 0;
                return;
            }
            bool fits = with_type(dtype, [&](auto *t) {
                using To = std::remove_pointer_t<decltype(t)>;
                convert(in, reinterpret_cast<To *>(to.data.data()), n);
            });
            if (!fits) fail("cast to an element type without arithmetic");
        });
        if (!known) fail("cast of an element type without arithmetic");
        return to;
    }

    void unary(uint32_t op) {
        if (stack_.empty()) fail("the stack runs empty");
        Tensor &top = stack_.back();
        const size_t n = top.elements();
        bool known = with_type(top.dtype, [&](auto *t) {
            using T = std::remove_pointer_t<decltype(t)>;
            using W = typename Wide<T>::type;
            T *data = reinterpret_cast<T *>(top.data.data());
            for (size_t i = 0; i < n; ++i) {
                if constexpr (std::is_floating_point_v<W>) {
                    const W x = Wide<T>::load(data[i]);
                    data[i] = Wide<T>::store(op == recipe_op::NEG ? -x : std::sqrt(x));
                } else {
                    if (op == recipe_op::SQRT) fail("square root of an integer");
                    data[i] = static_cast<T>(uint64_t{0} - static_cast<uint64_t>(data[i]));
                }
            }
        });
        if (!known) fail("arithmetic on an element type without it");
    }

    Tensor binary(uint32_t op, const Tensor &left, const Tensor &right) const {
        if (left.dtype != right.dtype) fail("operands of two element types");
        const size_t rank = left.shape.size() > right.shape.size() ? left.shape.size() : right.shape.size();
        int64_t shape[kMaxRank];
        size_t left_strides[kMaxRank], right_strides[kMaxRank];
        size_t left_step = 1, right_step = 1;  // they may wrap where there are no elements
        for (size_t i = 0; i < rank; ++i) {  // from the last axis
            const size_t axis = rank - 1 - i;
            const int64_t l = i < left.shape.size() ? left.shape[left.shape.size() - 1 - i] : 1;
            const int64_t r = i < right.shape.size() ? right.shape[right.shape.size() - 1 - i] : 1;
            if (l != r && l != 1 && r != 1) fail("shapes that do not broadcast");
            shape[axis] = l == 1 ? r : l;
            left_strides[axis] = l == 1 ? 0 : left_step;
            right_strides[axis] = r == 1 ? 0 : right_step;
            left_step *= static_cast<size_t>(l), right_step *= static_cast<size_t>(r);
        }
        Tensor result = make(left.dtype, shape, rank);
        const size_t n = result.elements();
        bool known = with_type(left.dtype, [&](auto *t) {
            using T = std::remove_pointer_t<decltype(t)>;
            using W = typename Wide<T>::type;
            if (!std::is_floating_point_v<W> && op == recipe_op::DIV) fail("division of integers");
            const T *a = reinterpret_cast<const T *>(left.data.data());
            const T *b = reinterpret_cast<const T *>(right.data.data());
            T *out = reinterpret_cast<T *>(result.data.data());
            int64_t index[kMaxRank] = {};
            size_t at_left = 0, at_right = 0;
            for (size_t i = 0; i < n; ++i) {
                out[i] = Wide<T>::store(apply<W>(op, Wide<T>::load(a[at_left]), Wide<T>::load(b[at_right])));
                for (size_t axis = rank; axis-- > 0;) {
                    at_left += left_strides[axis], at_right += right_strides[axis];
                    if (++index[axis] < shape[axis]) break;
                    at_left -= left_strides[axis] * static_cast<size_t>(shape[axis]);
                    at_right -= right_strides[axis] * static_cast<size_t>(shape[axis]);
                    index[axis] = 0;
                }
            }
        });
        if (!known) fail("arithmetic on an element type without it");
        return result;
    }

    Tensor pack(const Tensor &from, const RecipeEntry &r) const {
        Tensor to = make_run(from.dtype, r.shape);
        const size_t rank = r.shape.count, source_rank = from.shape.size();
        if (source_rank > kMaxRank || r.coefficients.count != rank * source_rank) fail("coefficients do not fit");
        const size_t n = to.elements();
        if (n == 0) return to;
        if (rank == 0) {
            if (from.elements()) memcpy(to.data.data(), from.data.data(), to.data.size());
            return to;
        }
        const int64_t *const coefficients = &a_.integers[r.coefficients.first].value;
        const size_t item = item_bytes(*find_dtype(from.dtype));
        uint64_t strides[kMaxRank];
        uint64_t step = 1;
        for (size_t axis = source_rank; axis-- > 0;) strides[axis] = step, step *= static_cast<uint64_t>(from.shape[axis]);
        // Coefficients times extents must not overflow.
        for (size_t i = 0; i < rank * source_rank; ++i) {
            int64_t reach;
            if (!checked_mul(coefficients[i], to.shape[i % rank], &reach) || reach > INT64_MAX / 128 ||
                reach < -(INT64_MAX / 128)) {
                fail("coefficients too large");
            }
        }
        if (copy_in_squares(to, from, coefficients, strides, item)) return to;
        const int64_t inner = to.shape[rank - 1];
        int64_t index[kMaxRank] = {}, base[kMaxRank] = {};
        uint8_t *out = to.data.data();
        for (size_t done = 0; done < n; done += static_cast<size_t>(inner), out += static_cast<size_t>(inner) * item) {
            // The part of the innermost axis that lies inside the source.
            int64_t first = 0, last = inner - 1;
            uint64_t at = 0, stride = 0;  // they may wrap where no element lies inside
            for (size_t axis = 0; axis < source_rank; ++axis) {
                const int64_t c = coefficients[axis * rank + rank - 1], top = from.shape[axis] - 1;
                at += static_cast<uint64_t>(base[axis]) * strides[axis];
                stride += static_cast<uint64_t>(c) * strides[axis];
                if (c == 0) {
                    if (base[axis] < 0 || base[axis] > top) last = -1;
                } else {
                    // base + c * i in 0..top
                    const int64_t low = c > 0 ? -base[axis] : base[axis] - top;
                    const int64_t high = c > 0 ? top - base[axis] : base[axis];
                    const int64_t size = c > 0 ? c : -c;
                    const int64_t from_i = low > 0 ? (low + size - 1) / size : 0;
                    const int64_t to_i = high < 0 ? -1 : high / size;
                    if (from_i > first) first = from_i;
                    if (to_i < last) last = to_i;
                }
            }
            if (first <= last) {
                copy(out, from.data.data(), at, stride, static_cast<size_t>(first), static_cast<size_t>(last), item);
            }
            for (size_t axis = rank - 1; axis-- > 0;) {
                for (size_t s = 0; s < source_rank; ++s) base[s] += coefficients[s * rank + axis];
                if (++index[axis] < to.shape[axis]) break;
                for (size_t s = 0; s < source_rank; ++s) base[s] -= coefficients[s * rank + axis] * to.shape[axis];
                index[axis] = 0;
            }
        }
        return to;
    }

    // A transposition: neighbours in the source are neighbours along another axis than the last. In squares, each line of
    // the source's memory is read once. False where it is something else, or reads elements outside of the source.
    bool copy_in_squares(Tensor &to, const Tensor &from, const int64_t *coefficients, const uint64_t *source_strides,
                         size_t item) const {
        const size_t rank = to.shape.size(), source_rank = from.shape.size();
        size_t steps[kMaxRank] = {}, across = rank;
        for (size_t source = 0; source < source_rank; ++source) {
            int64_t last = 0;
            for (size_t axis = 0; axis < rank; ++axis) {
                const int64_t c = coefficients[source * rank + axis];
                if (c < 0) return false;
                last += c * (to.shape[axis] - 1);
                steps[axis] += static_cast<size_t>(c) * source_strides[source];
            }
            if (last >= from.shape[source]) return false;
        }
        for (size_t axis = 0; axis + 1 < rank; ++axis) {
            if (steps[axis] == 1 && to.shape[axis] > 1) across = axis;
        }
        if (across == rank || steps[rank - 1] == 1) return false;
        // Of the types that weights have; each costs the library half a kilobyte.
        if (item == 1) squares<uint8_t>(to, from, steps, across);
        else if (item == 2) squares<uint16_t>(to, from, steps, across);
        else if (item == 4) squares<uint32_t>(to, from, steps, across);
        return item <= 4;
    }

    template <class T> static void squares(Tensor &to, const Tensor &from, const size_t *steps, size_t across) {
        constexpr size_t kSide = 256 / sizeof(T);
        const size_t rank = to.shape.size(), width = static_cast<size_t>(to.shape[rank - 1]);
        const size_t height = static_cast<size_t>(to.shape[across]), step = steps[rank - 1];
        size_t strides[kMaxRank], next = 1;
        for (size_t axis = rank; axis-- > 0;) strides[axis] = next, next *= static_cast<size_t>(to.shape[axis]);
        const T *in = reinterpret_cast<const T *>(from.data.data());
        T *out = reinterpret_cast<T *>(to.data.data());
        int64_t index[kMaxRank] = {};
        for (bool more = true; more;) {
            for (size_t row = 0; row < height; row += kSide) {
                const size_t rows = std::min(kSide, height - row);
                for (size_t column = 0; column < width; column += kSide) {
                    const size_t columns = std::min(kSide, width - column);
                    for (size_t r = row; r < row + rows; ++r) {
                        const T *source = in + r + column * step;
                        T *target = out + r * strides[across] + column;
                        for (size_t c = 0; c < columns; ++c) target[c] = source[c * step];
                    }
                }
            }
            more = false;
            for (size_t axis = rank - 1; axis-- > 0;) {
                if (axis == across) continue;
                in += steps[axis], out += strides[axis];
                if (++index[axis] < to.shape[axis]) {
                    more = true;
                    break;
                }
                in -= steps[axis] * static_cast<size_t>(to.shape[axis]);
                out -= strides[axis] * static_cast<size_t>(to.shape[axis]);
                index[axis] = 0;
            }
        }
    }

    void concat(const RecipeEntry &r) {
        const size_t axis = static_cast<size_t>(a_.integer(r.operands.first));
        const size_t count = static_cast<size_t>(a_.integer(r.operands.first + 1));
        if (count > stack_.size()) fail("the stack runs empty");
        const size_t begin = stack_.size() - count;
        const Tensor &first = stack_[begin];
        const size_t rank = first.shape.size();
        if (axis >= rank || rank > kMaxRank) fail("no such axis to join along");
        int64_t shape[kMaxRank];
        for (size_t i = 0; i < rank; ++i) shape[i] = first.shape[i];
        for (size_t part = begin + 1; part < stack_.size(); ++part) {
            const Tensor &other = stack_[part];
            if (other.dtype != first.dtype || other.shape.size() != rank) fail("parts of two kinds");
            for (size_t i = 0; i < rank; ++i) {
                if (i != axis && other.shape[i] != shape[i]) fail("parts that do not fit together");
            }
            if (other.shape[axis] > INT64_MAX - shape[axis]) fail("impossible shape");
            shape[axis] += other.shape[axis];
        }
        Tensor joined = make(first.dtype, shape, rank);
        if (!joined.data.empty()) {
            size_t outer = 1;
            for (size_t i = 0; i < axis; ++i) outer *= static_cast<size_t>(shape[i]);
            uint8_t *out = joined.data.data();
            for (size_t row = 0; row < outer; ++row) {
                for (size_t part = begin; part < stack_.size(); ++part) {
                    const Tensor &from = stack_[part];
                    const size_t run = from.data.size() / outer;
                    if (run) memcpy(out, from.data.data() + row * run, run);
                    out += run;
                }
            }
        }
        for (size_t i = 0; i < count; ++i) pop();
        stack_.push_back(std::move(joined));
    }

    static void copy(uint8_t *to, const uint8_t *from, uint64_t at, uint64_t stride, size_t first, size_t last,
                     size_t item) {
        if (stride == 1) {
            memcpy(to + first * item, from + (at + first) * item, (last - first + 1) * item);
            return;
        }
        for (size_t i = first; i <= last; ++i) {
            const uint8_t *source = from + (at + i * stride) * item;
            uint8_t *target = to + i * item;
            switch (item) {
                case 1: *target = *source; break;
                case 2: memcpy(target, source, 2); break;
                case 4: memcpy(target, source, 4); break;
                default: memcpy(target, source, 8); break;
            }
        }
    }

    // [O, C, 3, 3] -> [16, C, O]: G g G^T of F(2x2, 3x3) (Lavin and Gray, 2015), in f64, rounded once.
    Tensor winograd(const Tensor &from) const {
        if (from.shape.size() != 4 || from.shape[2] != 3 || from.shape[3] != 3) fail("Winograd wants [O, C, 3, 3]");
        const size_t o = static_cast<size_t>(from.shape[0]), c = static_cast<size_t>(from.shape[1]);
        const int64_t shape[3] = {16, from.shape[1], from.shape[0]};
        Tensor to = make(from.dtype, shape, 3);
        bool known = with_type(from.dtype, [&](auto *t) {
            using T = std::remove_pointer_t<decltype(t)>;
            using W = typename Wide<T>::type;
            if constexpr (std::is_floating_point_v<W>) {
                const T *weight = reinterpret_cast<const T *>(from.data.data());
                T *out = reinterpret_cast<T *>(to.data.data());
                for (size_t i = 0; i < o * c; ++i) {
                    double rows[4][3], g[3][3];
                    for (size_t k = 0; k < 9; ++k) g[k / 3][k % 3] = Wide<T>::load(weight[i * 9 + k]);
                    for (size_t k = 0; k < 3; ++k) {
                        rows[0][k] = g[0][k];
                        rows[1][k] = ((g[0][k] + g[1][k]) + g[2][k]) * 0.5;
                        rows[2][k] = ((g[0][k] - g[1][k]) + g[2][k]) * 0.5;
                        rows[3][k] = g[2][k];
                    }
                    for (size_t row = 0; row < 4; ++row) {
                        const double *x = rows[row];
                        const double tile[4] = {x[0], ((x[0] + x[1]) + x[2]) * 0.5, ((x[0] - x[1]) + x[2]) * 0.5, x[2]};
                        for (size_t column = 0; column < 4; ++column) {
                            T &target = out[((row * 4 + column) * c + i % c) * o + i / c];
                            const double value = tile[column];
                            convert(&value, &target, 1);
                        }
                    }
                }
            } else {
                fail("Winograd wants floats");
            }
        });
        if (!known) fail("arithmetic on an element type without it");
        return to;
    }

    const Artifact &a_;
    const ProgramEntry &p_;
    const ConstantEntry &constant_;
    SourceWeights &sources_;
    const char *file_;
    uint64_t limit_ = 0;
    Vector<Tensor> stack_;
};

}  // namespace

void run_recipe(const Artifact &artifact, const ProgramEntry &program, const ConstantEntry &constant,
                SourceWeights &sources, const char *file, uint8_t *to) {
    Machine(artifact, program, constant, sources, file).run(to);
}

}  // namespace aot
