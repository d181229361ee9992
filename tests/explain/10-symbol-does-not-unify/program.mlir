func.func @f(%a0: !torch.vtensor<[4,8],f32>, %a1: !torch.vtensor<[9,16],f32>) -> !torch.vtensor<[4,16],f32> {
  %c = torch.aten.mm %a0, %a1 : !torch.vtensor<[4,8],f32>, !torch.vtensor<[9,16],f32> -> !torch.vtensor<[4,16],f32>
  return %c : !torch.vtensor<[4,16],f32>
}
