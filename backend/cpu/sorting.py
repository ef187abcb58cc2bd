"""Library functions that sort: keys whose unsigned order is the order of elements, and the sorters of items.

An item is a key above the place of its element, so no two items are equal.
"""

from __future__ import annotations

RADIX_LEAST = 700
"""Items from which sorting by digits is faster than merging."""

_SORTER = """\
static ITEM *sort_items_ITEM(ITEM *a, ITEM *b, i64 n) {
  if (n >= RADIX_LEAST) {
    for (i32 shift = PLACE_BITS; shift < ITEM_BITS; shift += 8) {
      i64 start[256];
      for (i32 d = 0; d < 256; d++) start[d] = 0;
      for (i64 i = 0; i < n; i++) start[(u8)(a[i] >> shift)]++;
      if (start[(u8)(a[0] >> shift)] == n) continue;
      i64 total = 0;
      for (i32 d = 0; d < 256; d++) { const i64 count = start[d]; start[d] = total; total += count; }
      for (i64 i = 0; i < n; i++) b[start[(u8)(a[i] >> shift)]++] = a[i];
      ITEM *const other = a; a = b; b = other;
    }
    return a;
  }
  for (i64 s = 0; s < n; s += 12) {
    const i64 e = s + 12 < n ? s + 12 : n;
    for (i64 i = s + 1; i < e; i++) {
      const ITEM x = a[i]; i64 j = i;
      for (; j > s && x < a[j - 1]; j--) a[j] = a[j - 1];
      a[j] = x;
    }
  }
  for (i64 w = 12; w < n; w *= 2) {
    for (i64 s = 0; s < n; s += 2 * w) {
      const i64 m = s + w < n ? s + w : n, e = m + w < n ? m + w : n;
      i64 i = s, j = m, k = s;
      while (i < m && j < e) {
        const ITEM x = a[i], y = a[j]; const i64 second = y < x;
        b[k++] = second ? y : x; j += second; i += 1 - second;
      }
      while (i < m) b[k++] = a[i++];
      while (j < e) b[k++] = a[j++];
    }
    ITEM *const other = a; a = b; b = other;
  }
  return a;
}
"""


def sort_functions() -> str:
    """sort_items_T: sorts with a second array of the same length, and says in which of both the result is."""
    out = []
    for item, bits in (("u64", 32), ("u128", 64)):
        text = _SORTER.replace("PLACE_BITS", str(bits)).replace("ITEM_BITS", str(2 * bits))
        out.append(text.replace("RADIX_LEAST", str(RADIX_LEAST)).replace("ITEM", item))
    for bits, suffix, top in ((32, "U", "0x80000000U"), (64, "ULL", "0x8000000000000000ULL")):
        key, full = f"u{bits}", f"~0{suffix}"
        out.append(f"static {key} sort_key_u{bits}(u{bits} x) {{ return x; }}\n")
        out.append(f"static {key} sort_key_i{bits}(i{bits} x) {{ return ({key})x ^ {top}; }}\n")
        out.append(
            f"static {key} sort_key_f{bits}(f{bits} x) {{ union {{ f{bits} number; {key} bits; }} u; u.number = x;\n"
            f"  if (x == 0) u.bits = 0;\n"
            f"  return x != x ? {full} : u.bits ^ (u.bits >> {bits - 1} ? {full} : {top}); }}\n"
        )
    return "".join(out)
