!t = f32
func.func @f(%value: !t) -> !t {
  %second = math.cos %value : !t
  %first = math.exp %value : !t
  %sum = arith.addf %first, %second : !t
  return %sum : !t
}
