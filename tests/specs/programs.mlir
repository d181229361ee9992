// Programs that are compiled with the specs of the corpus.
#mk = affine_map<(d0, d1, d2) -> (d0, d2)>
#kn = affine_map<(d0, d1, d2) -> (d2, d1)>
#nk = affine_map<(d0, d1, d2) -> (d1, d2)>
#mn = affine_map<(d0, d1, d2) -> (d0, d1)>
func.func @named_64(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>, %c: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %r = linalg.matmul ins(%a, %b : tensor<64x64xf32>, tensor<64x64xf32>) outs(%c : tensor<64x64xf32>) -> tensor<64x64xf32>
  return %r : tensor<64x64xf32>
}
func.func @named_128(%a: tensor<128x64xf32>, %b: tensor<64x128xf32>, %c: tensor<128x128xf32>) -> tensor<128x128xf32> {
  %r = linalg.matmul ins(%a, %b : tensor<128x64xf32>, tensor<64x128xf32>) outs(%c : tensor<128x128xf32>) -> tensor<128x128xf32>
  return %r : tensor<128x128xf32>
}
func.func @generic_64(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>, %c: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %r = linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<64x64xf32>, tensor<64x64xf32>) outs(%c : tensor<64x64xf32>) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %p = arith.mulf %x, %y : f32
    %s = arith.addf %acc, %p : f32
    linalg.yield %s : f32
  } -> tensor<64x64xf32>
  return %r : tensor<64x64xf32>
}
func.func @half_64(%a: tensor<64x128xf16>, %b: tensor<64x128xf16>, %c: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %zero = arith.constant 0.0 : f32
  %init = linalg.fill ins(%zero : f32) outs(%c : tensor<64x64xf32>) -> tensor<64x64xf32>
  %r = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<64x128xf16>, tensor<64x128xf16>) outs(%init : tensor<64x64xf32>) {
  ^bb0(%x: f16, %y: f16, %acc: f32):
    %u = arith.extf %x : f16 to f32
    %v = arith.extf %y : f16 to f32
    %p = arith.mulf %u, %v : f32
    %s = arith.addf %acc, %p : f32
    linalg.yield %s : f32
  } -> tensor<64x64xf32>
  return %r : tensor<64x64xf32>
}
func.func @half_128(%a: tensor<128x128xf16>, %b: tensor<64x128xf16>, %c: tensor<128x64xf32>) -> tensor<128x64xf32> {
  %zero = arith.constant 0.0 : f32
  %init = linalg.fill ins(%zero : f32) outs(%c : tensor<128x64xf32>) -> tensor<128x64xf32>
  %r = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<128x128xf16>, tensor<64x128xf16>) outs(%init : tensor<128x64xf32>) {
  ^bb0(%x: f16, %y: f16, %acc: f32):
    %u = arith.extf %x : f16 to f32
    %v = arith.extf %y : f16 to f32
    %p = arith.mulf %u, %v : f32
    %s = arith.addf %acc, %p : f32
    linalg.yield %s : f32
  } -> tensor<128x64xf32>
  return %r : tensor<128x64xf32>
}
func.func @batched(%a: tensor<4x64x64xf32>, %b: tensor<4x64x64xf32>, %c: tensor<4x64x64xf32>) -> tensor<4x64x64xf32> {
  %r = linalg.batch_matmul ins(%a, %b : tensor<4x64x64xf32>, tensor<4x64x64xf32>) outs(%c : tensor<4x64x64xf32>) -> tensor<4x64x64xf32>
  return %r : tensor<4x64x64xf32>
}
func.func @dynamic(%a: tensor<?x64xf32>, %b: tensor<64x64xf32>, %c: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = linalg.matmul ins(%a, %b : tensor<?x64xf32>, tensor<64x64xf32>) outs(%c : tensor<?x64xf32>) -> tensor<?x64xf32>
  return %r : tensor<?x64xf32>
}
func.func @convolution(%x: tensor<2x18x18x32xf32>, %w: tensor<3x3x32x64xf32>, %c: tensor<2x16x16x64xf32>) -> tensor<2x16x16x64xf32> {
  %r = linalg.conv_2d_nhwc_hwcf ins(%x, %w : tensor<2x18x18x32xf32>, tensor<3x3x32x64xf32>) outs(%c : tensor<2x16x16x64xf32>) -> tensor<2x16x16x64xf32>
  return %r : tensor<2x16x16x64xf32>
}
func.func @strided(%x: tensor<2x33x33x32xf16>, %w: tensor<64x3x3x32xf16>, %c: tensor<2x16x16x64xf32>) -> tensor<2x16x16x64xf32> {
  %r = linalg.generic {indexing_maps = [
      affine_map<(n, i, j, f, u, v, c) -> (n, i * 2 + u, j * 2 + v, c)>,
      affine_map<(n, i, j, f, u, v, c) -> (f, u, v, c)>,
      affine_map<(n, i, j, f, u, v, c) -> (n, i, j, f)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
      ins(%x, %w : tensor<2x33x33x32xf16>, tensor<64x3x3x32xf16>) outs(%c : tensor<2x16x16x64xf32>) {
  ^bb0(%a: f16, %b: f16, %acc: f32):
    %p = arith.extf %a : f16 to f32
    %q = arith.extf %b : f16 to f32
    %m = arith.mulf %p, %q : f32
    %s = arith.addf %acc, %m : f32
    linalg.yield %s : f32
  } -> tensor<2x16x16x64xf32>
  return %r : tensor<2x16x16x64xf32>
}
func.func @attention(%q: tensor<4x128x64xf16>, %k: tensor<4x256x64xf16>, %v: tensor<4x64x256xf16>) -> tensor<4x128x64xf16> {
  %scale = arith.constant 0.125 : f16
  %e = tensor.empty() : tensor<4x128x64xf16>
  %r = iree_linalg_ext.attention <{indexing_maps = [
      affine_map<(b, m, n, k1, k2) -> (b, m, k1)>, affine_map<(b, m, n, k1, k2) -> (b, k2, k1)>,
      affine_map<(b, m, n, k1, k2) -> (b, n, k2)>, affine_map<(b, m, n, k1, k2) -> ()>,
      affine_map<(b, m, n, k1, k2) -> (b, m, n)>]}>
      ins(%q, %k, %v, %scale : tensor<4x128x64xf16>, tensor<4x256x64xf16>, tensor<4x64x256xf16>, f16)
      outs(%e : tensor<4x128x64xf16>) {
  ^bb0(%score: f32):
    iree_linalg_ext.yield %score : f32
  } -> tensor<4x128x64xf16>
  return %r : tensor<4x128x64xf16>
}
func.func @sum(%x: tensor<64x128xf32>, %c: tensor<64xf32>) -> tensor<64xf32> {
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]} ins(%x : tensor<64x128xf32>) outs(%c : tensor<64xf32>) {
  ^bb0(%a: f32, %acc: f32):
    %s = arith.addf %a, %acc : f32
    linalg.yield %s : f32
  } -> tensor<64xf32>
  return %r : tensor<64xf32>
}
