func.func @f(%a0: !torch.vtensor<[4,8],f32>, %l: !torch.list<int>) -> !torch.vtensor<[8,4],f32> {
  %y = torch.aten.permute %a0, %l : !torch.vtensor<[4,8],f32>, !torch.list<int> -> !torch.vtensor<[8,4],f32>
  return %y : !torch.vtensor<[8,4],f32>
}
