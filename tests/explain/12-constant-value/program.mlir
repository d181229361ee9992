func.func @f(%a0: !torch.vtensor<[4],f32>, %a1: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %s = torch.constant.int 2
  %y = torch.aten.add.Tensor %a0, %a1, %s : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.int -> !torch.vtensor<[4],f32>
  return %y : !torch.vtensor<[4],f32>
}
