func.func @joined(%x: !torch.vtensor<[4,8],f32>, %z: !torch.vtensor<[3,8],f32>) -> (!torch.vtensor<[7,8],f32>, !torch.vtensor<[3,8],f32>) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int4 = torch.constant.int 4
  %int7 = torch.constant.int 7
  %l = torch.prim.ListConstruct %x, %z : (!torch.vtensor<[4,8],f32>, !torch.vtensor<[3,8],f32>) -> !torch.list<vtensor>
  %y = torch.aten.cat %l, %int0 : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[7,8],f32>
  %t = torch.aten.slice.Tensor %y, %int0, %int4, %int7, %int1 : !torch.vtensor<[7,8],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[3,8],f32>
  return %y, %t : !torch.vtensor<[7,8],f32>, !torch.vtensor<[3,8],f32>
}
