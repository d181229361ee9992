module {
  func.func @main(%arg0: !torch.vtensor<[1,8,512,64],f32>, %arg1: !torch.vtensor<[1,8,512,64],f32>, %arg2: !torch.vtensor<[1,8,512,64],f32>) -> !torch.vtensor<[1,8,512,64],f32> {
    %float1.250000e-01 = torch.constant.float 1.250000e-01
    %0 = torch.aten.mul.Scalar %arg0, %float1.250000e-01 : !torch.vtensor<[1,8,512,64],f32>, !torch.float -> !torch.vtensor<[1,8,512,64],f32>
    %int-2 = torch.constant.int -2
    %int-1 = torch.constant.int -1
    %1 = torch.aten.transpose.int %arg1, %int-2, %int-1 : !torch.vtensor<[1,8,512,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,8,64,512],f32>
    %2 = torch.aten.matmul %0, %1 : !torch.vtensor<[1,8,512,64],f32>, !torch.vtensor<[1,8,64,512],f32> -> !torch.vtensor<[1,8,512,512],f32>
    %int-1_0 = torch.constant.int -1
    %none = torch.constant.none
    %3 = torch.aten.softmax.int %2, %int-1_0, %none : !torch.vtensor<[1,8,512,512],f32>, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,512],f32>
    %4 = torch.aten.matmul %3, %arg2 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[1,8,512,64],f32> -> !torch.vtensor<[1,8,512,64],f32>
    return %4 : !torch.vtensor<[1,8,512,64],f32>
  }
}
