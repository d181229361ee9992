module {
  func.func @main(%arg0: !torch.vtensor<[1,8,512,64],f32>, %arg1: !torch.vtensor<[1,8,512,64],f32>, %arg2: !torch.vtensor<[1,8,512,64],f32>, %arg3: !torch.vtensor<[512,512],i1>) -> !torch.vtensor<[1,8,512,64],f32> {
    %int2 = torch.constant.int 2
    %int3 = torch.constant.int 3
    %0 = torch.aten.transpose.int %arg1, %int2, %int3 : !torch.vtensor<[1,8,512,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,8,64,512],f32>
    %1 = torch.aten.matmul %arg0, %0 : !torch.vtensor<[1,8,512,64],f32>, !torch.vtensor<[1,8,64,512],f32> -> !torch.vtensor<[1,8,512,512],f32>
    %float8.000000e00 = torch.constant.float 8.000000e+00
    %2 = torch.aten.div.Scalar %1, %float8.000000e00 : !torch.vtensor<[1,8,512,512],f32>, !torch.float -> !torch.vtensor<[1,8,512,512],f32>
    %int0 = torch.constant.int 0
    %3 = torch.aten.eq.Scalar %arg3, %int0 : !torch.vtensor<[512,512],i1>, !torch.int -> !torch.vtensor<[512,512],i1>
    %float-3.402820e38 = torch.constant.float -3.4028234663852886E+38
    %4 = torch.aten.masked_fill.Scalar %2, %3, %float-3.402820e38 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[512,512],i1>, !torch.float -> !torch.vtensor<[1,8,512,512],f32>
    %int-1 = torch.constant.int -1
    %none = torch.constant.none
    %5 = torch.aten.softmax.int %4, %int-1, %none : !torch.vtensor<[1,8,512,512],f32>, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,512],f32>
    %6 = torch.aten.matmul %5, %arg2 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[1,8,512,64],f32> -> !torch.vtensor<[1,8,512,64],f32>
    return %6 : !torch.vtensor<[1,8,512,64],f32>
  }
}
