func.func @f(%a0: !torch.vtensor<[4,8],f32>, %a1: !torch.vtensor<[8,16],f32>, %a2: !torch.vtensor<[4,8,2],si64>) -> !torch.vtensor<[4,16],f32> {
  %u = torch.aten.mm %a2, %a2 : !torch.vtensor<[4,8,2],si64>, !torch.vtensor<[4,8,2],si64> -> !torch.vtensor<[4,8,2],f64>
  %c = torch.aten.mm %a0, %a1 : !torch.vtensor<[4,8],f32>, !torch.vtensor<[8,16],f32> -> !torch.vtensor<[4,16],f32>
  %w = torch.aten.mm %c, %a2 : !torch.vtensor<[4,16],f32>, !torch.vtensor<[4,8,2],si64> -> !torch.vtensor<[4,8],f32>
  return %c : !torch.vtensor<[4,16],f32>
}
