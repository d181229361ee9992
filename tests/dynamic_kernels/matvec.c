#include <stddef.h>

/* One row of a matrix times a vector: y[r] = sum of a[r][k] * x[k]. */
void row(const float *a, size_t a_offset, const float *x, size_t x_offset, float *y,
         size_t y_offset, size_t r, size_t k) {
  const float *left = a + a_offset + r * k;
  const float *right = x + x_offset;
  float sum = 0.0f;
  for (size_t i = 0; i < k; ++i) sum += left[i] * right[i];
  y[y_offset + r] = sum;
}
