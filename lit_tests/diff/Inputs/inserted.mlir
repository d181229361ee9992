func.func @f(%x: f32) -> f32 {
  %a = math.exp %x : f32
  %n = arith.negf %x : f32
  %b = math.cos %n : f32
  %c = arith.addf %a, %b : f32
  return %c : f32
}
