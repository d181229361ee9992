module {
  func.func @main(%arg0: !torch.vtensor<[1,8,512,64],f32>, %arg1: !torch.vtensor<[1,8,512,64],f32>, %arg2: !torch.vtensor<[1,8,512,64],f32>, %arg3: !torch.vtensor<[512,512],i1>) -> !torch.vtensor<[1,8,512,64],f32> {
    %int2 = torch.constant.int 2
    %int3 = torch.constant.int 3
    %0 = torch.aten.transpose.int %arg1, %int2, %int3 : !torch.vtensor<[1,8,512,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,8,64,512],f32>
    %1 = torch.aten.matmul %arg0, %0 : !torch.vtensor<[1,8,512,64],f32>, !torch.vtensor<[1,8,64,512],f32> -> !torch.vtensor<[1,8,512,512],f32>
    %float8.000000e00 = torch.constant.float 8.000000e+00
    %2 = torch.aten.div.Scalar %1, %float8.000000e00 : !torch.vtensor<[1,8,512,512],f32>, !torch.float -> !torch.vtensor<[1,8,512,512],f32>
    %float-Inf = torch.constant.float 0xFFF0000000000000
    %3 = torch.aten.where.ScalarOther %arg3, %2, %float-Inf : !torch.vtensor<[512,512],i1>, !torch.vtensor<[1,8,512,512],f32>, !torch.float -> !torch.vtensor<[1,8,512,512],f32>
    %int-1 = torch.constant.int -1
    %none = torch.constant.none
    %4 = torch.aten.softmax.int %3, %int-1, %none : !torch.vtensor<[1,8,512,512],f32>, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,512],f32>
    %5 = torch.aten.matmul %4, %arg2 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[1,8,512,64],f32> -> !torch.vtensor<[1,8,512,64],f32>
    return %5 : !torch.vtensor<[1,8,512,64],f32>
  }
}
