func.func @f(%a0: !torch.vtensor<[4,8],f32>, %a1: !torch.vtensor<[7],f32>) -> !torch.vtensor<[4,8],f32> {
  %s = torch.constant.int 1
  %y = torch.aten.add.Tensor %a0, %a1, %s : !torch.vtensor<[4,8],f32>, !torch.vtensor<[7],f32>, !torch.int -> !torch.vtensor<[4,8],f32>
  return %y : !torch.vtensor<[4,8],f32>
}
