func.func @f(%a0: !torch.vtensor<[2,4,4],f32>) -> !torch.vtensor<[8,4],f32> {
  %i0 = torch.constant.int 8
  %i1 = torch.constant.int -1
  %l = torch.prim.ListConstruct %i0, %i1 : (!torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.view %a0, %l : !torch.vtensor<[2,4,4],f32>, !torch.list<int> -> !torch.vtensor<[8,4],f32>
  return %y : !torch.vtensor<[8,4],f32>
}
