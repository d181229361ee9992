module {
  func.func @main(%arg0: !torch.vtensor<[1,8,512,64],f32>, %arg1: !torch.vtensor<[1,8,512,64],f32>, %arg2: !torch.vtensor<[1,8,512,64],f32>, %arg3: !torch.vtensor<[512,512],i1>) -> !torch.vtensor<[1,8,512,64],f32> {
    %int-1 = torch.constant.int -1
    %int-2 = torch.constant.int -2
    %0 = torch.aten.transpose.int %arg1, %int-1, %int-2 : !torch.vtensor<[1,8,512,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,8,64,512],f32>
    %1 = torch.aten.matmul %arg0, %0 : !torch.vtensor<[1,8,512,64],f32>, !torch.vtensor<[1,8,64,512],f32> -> !torch.vtensor<[1,8,512,512],f32>
    %float8.000000e00 = torch.constant.float 8.000000e+00
    %2 = torch.aten.div.Scalar %1, %float8.000000e00 : !torch.vtensor<[1,8,512,512],f32>, !torch.float -> !torch.vtensor<[1,8,512,512],f32>
    %none = torch.constant.none
    %none_0 = torch.constant.none
    %int11 = torch.constant.int 11
    %cpu = torch.constant.device "cpu"
    %int0 = torch.constant.int 0
    torch.aten._assert_tensor_metadata %arg3, %none, %none_0, %int11, %cpu, %int0 : !torch.vtensor<[512,512],i1>, !torch.none, !torch.none, !torch.int, !torch.Device, !torch.int
    %int6 = torch.constant.int 6
    %false = torch.constant.bool false
    %false_1 = torch.constant.bool false
    %none_2 = torch.constant.none
    %3 = torch.aten.to.dtype %arg3, %int6, %false, %false_1, %none_2 : !torch.vtensor<[512,512],i1>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !torch.vtensor<[512,512],f32>
    %float1.000000e00 = torch.constant.float 1.000000e+00
    %int1 = torch.constant.int 1
    %4 = torch.aten.rsub.Scalar %3, %float1.000000e00, %int1 : !torch.vtensor<[512,512],f32>, !torch.float, !torch.int -> !torch.vtensor<[512,512],f32>
    %float-3.402820e38 = torch.constant.float -3.4028234663852886E+38
    %5 = torch.aten.mul.Scalar %4, %float-3.402820e38 : !torch.vtensor<[512,512],f32>, !torch.float -> !torch.vtensor<[512,512],f32>
    %int1_3 = torch.constant.int 1
    %6 = torch.aten.add.Tensor %2, %5, %int1_3 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[512,512],f32>, !torch.int -> !torch.vtensor<[1,8,512,512],f32>
    %int-1_4 = torch.constant.int -1
    %none_5 = torch.constant.none
    %7 = torch.aten.softmax.int %6, %int-1_4, %none_5 : !torch.vtensor<[1,8,512,512],f32>, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,512],f32>
    %8 = torch.aten.matmul %7, %arg2 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[1,8,512,64],f32> -> !torch.vtensor<[1,8,512,64],f32>
    return %8 : !torch.vtensor<[1,8,512,64],f32>
  }
}
