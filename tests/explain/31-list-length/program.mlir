func.func @f(%a0: !torch.vtensor<[4,8,2],f32>) -> !torch.vtensor<[8,4,2],f32> {
  %i0 = torch.constant.int 1
  %i1 = torch.constant.int 0
  %i2 = torch.constant.int 2
  %l = torch.prim.ListConstruct %i0, %i1, %i2 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.permute %a0, %l : !torch.vtensor<[4,8,2],f32>, !torch.list<int> -> !torch.vtensor<[8,4,2],f32>
  return %y : !torch.vtensor<[8,4,2],f32>
}
