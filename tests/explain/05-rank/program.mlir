func.func @f(%a0: !torch.vtensor<[2,4,8],f32>) -> !torch.vtensor<[2,4,8],f32> {
  %y = torch.aten.relu %a0 : !torch.vtensor<[2,4,8],f32> -> !torch.vtensor<[2,4,8],f32>
  return %y : !torch.vtensor<[2,4,8],f32>
}
