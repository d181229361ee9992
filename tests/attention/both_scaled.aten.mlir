module {
  func.func @main(%arg0: !torch.vtensor<[1,8,512,64],f32>, %arg1: !torch.vtensor<[1,8,512,64],f32>, %arg2: !torch.vtensor<[1,8,512,64],f32>) -> !torch.vtensor<[1,8,512,64],f32> {
    %float3.535530e-01 = torch.constant.float 0.35355339059327379
    %0 = torch.aten.mul.Scalar %arg0, %float3.535530e-01 : !torch.vtensor<[1,8,512,64],f32>, !torch.float -> !torch.vtensor<[1,8,512,64],f32>
    %int-2 = torch.constant.int -2
    %int-1 = torch.constant.int -1
    %1 = torch.aten.transpose.int %arg1, %int-2, %int-1 : !torch.vtensor<[1,8,512,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,8,64,512],f32>
    %float3.535530e-01_0 = torch.constant.float 0.35355339059327379
    %2 = torch.aten.mul.Scalar %1, %float3.535530e-01_0 : !torch.vtensor<[1,8,64,512],f32>, !torch.float -> !torch.vtensor<[1,8,64,512],f32>
    %3 = torch.aten.matmul %0, %2 : !torch.vtensor<[1,8,512,64],f32>, !torch.vtensor<[1,8,64,512],f32> -> !torch.vtensor<[1,8,512,512],f32>
    %int-1_1 = torch.constant.int -1
    %none = torch.constant.none
    %4 = torch.aten.softmax.int %3, %int-1_1, %none : !torch.vtensor<[1,8,512,512],f32>, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,512],f32>
    %5 = torch.aten.matmul %4, %arg2 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[1,8,512,64],f32> -> !torch.vtensor<[1,8,512,64],f32>
    return %5 : !torch.vtensor<[1,8,512,64],f32>
  }
}
