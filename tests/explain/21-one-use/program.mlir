func.func @f(%a0: !torch.vtensor<[4,8],f32>) -> (!torch.vtensor<[4,8],f32>, !torch.vtensor<[4,8],f32>) {
  %t = torch.aten.relu %a0 : !torch.vtensor<[4,8],f32> -> !torch.vtensor<[4,8],f32>
  %y = torch.aten.tanh %t : !torch.vtensor<[4,8],f32> -> !torch.vtensor<[4,8],f32>
  return %y, %t : !torch.vtensor<[4,8],f32>, !torch.vtensor<[4,8],f32>
}
