func.func @f(%a0: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %m = torch.constant.str "tanh"
  %y = torch.aten.gelu %a0, %m : !torch.vtensor<[4],f32>, !torch.str -> !torch.vtensor<[4],f32>
  return %y : !torch.vtensor<[4],f32>
}
