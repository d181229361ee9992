module {
  func.func @main(%arg0: !torch.vtensor<[1,8,512,64],f32>, %arg1: !torch.vtensor<[1,2,512,64],f32>, %arg2: !torch.vtensor<[1,2,512,64],f32>, %arg3: !torch.vtensor<[1,1,512,512],f32>) -> !torch.vtensor<[1,8,512,64],f32> {
    %int4 = torch.constant.int 4
    %int1 = torch.constant.int 1
    %none = torch.constant.none
    %0 = torch.aten.repeat_interleave.self_int %arg1, %int4, %int1, %none : !torch.vtensor<[1,2,512,64],f32>, !torch.int, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,64],f32>
    %int2 = torch.constant.int 2
    %int3 = torch.constant.int 3
    %1 = torch.aten.transpose.int %0, %int2, %int3 : !torch.vtensor<[1,8,512,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,8,64,512],f32>
    %2 = torch.aten.matmul %arg0, %1 : !torch.vtensor<[1,8,512,64],f32>, !torch.vtensor<[1,8,64,512],f32> -> !torch.vtensor<[1,8,512,512],f32>
    %float1.250000e-01 = torch.constant.float 1.250000e-01
    %3 = torch.aten.mul.Scalar %2, %float1.250000e-01 : !torch.vtensor<[1,8,512,512],f32>, !torch.float -> !torch.vtensor<[1,8,512,512],f32>
    %int1_0 = torch.constant.int 1
    %4 = torch.aten.add.Tensor %3, %arg3, %int1_0 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[1,1,512,512],f32>, !torch.int -> !torch.vtensor<[1,8,512,512],f32>
    %none_1 = torch.constant.none
    %none_2 = torch.constant.none
    %int6 = torch.constant.int 6
    %cpu = torch.constant.device "cpu"
    %int0 = torch.constant.int 0
    torch.aten._assert_tensor_metadata %4, %none_1, %none_2, %int6, %cpu, %int0 : !torch.vtensor<[1,8,512,512],f32>, !torch.none, !torch.none, !torch.int, !torch.Device, !torch.int
    %int6_3 = torch.constant.int 6
    %false = torch.constant.bool false
    %false_4 = torch.constant.bool false
    %none_5 = torch.constant.none
    %5 = torch.aten.to.dtype %4, %int6_3, %false, %false_4, %none_5 : !torch.vtensor<[1,8,512,512],f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !torch.vtensor<[1,8,512,512],f32>
    %int-1 = torch.constant.int -1
    %none_6 = torch.constant.none
    %6 = torch.aten.softmax.int %5, %int-1, %none_6 : !torch.vtensor<[1,8,512,512],f32>, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,512],f32>
    %7 = torch.aten.type_as %6, %arg0 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[1,8,512,64],f32> -> !torch.vtensor<[1,8,512,512],f32>
    %int4_7 = torch.constant.int 4
    %int1_8 = torch.constant.int 1
    %none_9 = torch.constant.none
    %8 = torch.aten.repeat_interleave.self_int %arg2, %int4_7, %int1_8, %none_9 : !torch.vtensor<[1,2,512,64],f32>, !torch.int, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,64],f32>
    %9 = torch.aten.matmul %7, %8 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[1,8,512,64],f32> -> !torch.vtensor<[1,8,512,64],f32>
    return %9 : !torch.vtensor<[1,8,512,64],f32>
  }
}
