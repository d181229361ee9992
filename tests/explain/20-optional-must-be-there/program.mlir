func.func @f(%a0: !torch.vtensor<[4,8],f32>, %a1: !torch.vtensor<[16,8],f32>) -> !torch.vtensor<[4,16],f32> {
  %n = torch.constant.none
  %y = torch.aten.linear %a0, %a1, %n : !torch.vtensor<[4,8],f32>, !torch.vtensor<[16,8],f32>, !torch.none -> !torch.vtensor<[4,16],f32>
  return %y : !torch.vtensor<[4,16],f32>
}
