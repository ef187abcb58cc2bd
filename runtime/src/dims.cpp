#include "dims.h"

#include "base.h"

namespace aot {

using namespace format;

const char *check_dim_code(const DimCode *code, uint32_t count) {
    uint32_t depth = 0;
    for (uint32_t i = 0; i < count; ++i) {
        if (code[i].op <= dim_op::SYMBOL) {
            if (++depth > kDimStackDepth) return "the dimension's stack is too deep";
        } else if (code[i].op <= dim_op::MAX) {
            if (depth < 2) return "the dimension's stack runs empty";
            --depth;
        } else {
            return "unknown operation in a dimension";
        }
    }
    return depth == 1 ? nullptr : "a dimension must leave one value";
}

bool evaluate_dim(const DimCode *code, uint32_t count, const int64_t *symbols, int64_t *out) {
    int64_t stack[kDimStackDepth + 1] = {};  // an unused place first, below the bottom
    int64_t *top = stack;
    for (uint32_t i = 0; i < count; ++i) {
        const DimCode &c = code[i];
        if (c.op == dim_op::CONSTANT) {
            *++top = c.value;
            continue;
        }
        if (c.op == dim_op::SYMBOL) {
            *++top = symbols[c.symbol];
            continue;
        }
        const int64_t b = *top--;
        const int64_t a = *top;
        switch (c.op) {
            case dim_op::ADD:
                if (!checked_add(a, b, top)) return false;
                break;
            case dim_op::MUL:
                if (!checked_mul(a, b, top)) return false;
                break;
            case dim_op::FLOORDIV:
            case dim_op::MOD: {
                if (b == 0 || (b == -1 && a == INT64_MIN)) return false;
                int64_t quotient = a / b, rest = a % b;
                if (rest != 0 && (rest < 0) != (b < 0)) --quotient, rest += b;
                *top = c.op == dim_op::FLOORDIV ? quotient : rest;
                break;
            }
            case dim_op::MIN: *top = a < b ? a : b; break;
            default: *top = a > b ? a : b; break;
        }
    }
    *out = *top;
    return true;
}

}  // namespace aot
