module {
  func.func @main(%arg0: !torch.vtensor<[1,8,512,64],f32>, %arg1: !torch.vtensor<[1,2,512,64],f32>, %arg2: !torch.vtensor<[1,2,512,64],f32>, %arg3: !torch.vtensor<[1,1,512,512],f32>) -> !torch.vtensor<[1,8,512,64],f32> {
    %int2 = torch.constant.int 2
    %0 = torch.aten.unsqueeze %arg1, %int2 : !torch.vtensor<[1,2,512,64],f32>, !torch.int -> !torch.vtensor<[1,2,1,512,64],f32>
    %int1 = torch.constant.int 1
    %int2_0 = torch.constant.int 2
    %int4 = torch.constant.int 4
    %int512 = torch.constant.int 512
    %int64 = torch.constant.int 64
    %1 = torch.prim.ListConstruct %int1, %int2_0, %int4, %int512, %int64 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %2 = torch.aten.expand %0, %1, %false : !torch.vtensor<[1,2,1,512,64],f32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[1,2,4,512,64],f32>
    %int1_1 = torch.constant.int 1
    %int8 = torch.constant.int 8
    %int512_2 = torch.constant.int 512
    %int64_3 = torch.constant.int 64
    %3 = torch.prim.ListConstruct %int1_1, %int8, %int512_2, %int64_3 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %4 = torch.aten.reshape %2, %3 : !torch.vtensor<[1,2,4,512,64],f32>, !torch.list<int> -> !torch.vtensor<[1,8,512,64],f32>
    %int2_4 = torch.constant.int 2
    %int3 = torch.constant.int 3
    %5 = torch.aten.transpose.int %4, %int2_4, %int3 : !torch.vtensor<[1,8,512,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,8,64,512],f32>
    %6 = torch.aten.matmul %arg0, %5 : !torch.vtensor<[1,8,512,64],f32>, !torch.vtensor<[1,8,64,512],f32> -> !torch.vtensor<[1,8,512,512],f32>
    %float8.000000e00 = torch.constant.float 8.000000e+00
    %7 = torch.aten.div.Scalar %6, %float8.000000e00 : !torch.vtensor<[1,8,512,512],f32>, !torch.float -> !torch.vtensor<[1,8,512,512],f32>
    %int1_5 = torch.constant.int 1
    %8 = torch.aten.add.Tensor %7, %arg3, %int1_5 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[1,1,512,512],f32>, !torch.int -> !torch.vtensor<[1,8,512,512],f32>
    %int-1 = torch.constant.int -1
    %int6 = torch.constant.int 6
    %9 = torch.aten.softmax.int %8, %int-1, %int6 : !torch.vtensor<[1,8,512,512],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,8,512,512],f32>
    %none = torch.constant.none
    %none_6 = torch.constant.none
    %int6_7 = torch.constant.int 6
    %cpu = torch.constant.device "cpu"
    %int0 = torch.constant.int 0
    torch.aten._assert_tensor_metadata %9, %none, %none_6, %int6_7, %cpu, %int0 : !torch.vtensor<[1,8,512,512],f32>, !torch.none, !torch.none, !torch.int, !torch.Device, !torch.int
    %int6_8 = torch.constant.int 6
    %false_9 = torch.constant.bool false
    %false_10 = torch.constant.bool false
    %none_11 = torch.constant.none
    %10 = torch.aten.to.dtype %9, %int6_8, %false_9, %false_10, %none_11 : !torch.vtensor<[1,8,512,512],f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !torch.vtensor<[1,8,512,512],f32>
    %int2_12 = torch.constant.int 2
    %11 = torch.aten.unsqueeze %arg2, %int2_12 : !torch.vtensor<[1,2,512,64],f32>, !torch.int -> !torch.vtensor<[1,2,1,512,64],f32>
    %int1_13 = torch.constant.int 1
    %int2_14 = torch.constant.int 2
    %int4_15 = torch.constant.int 4
    %int512_16 = torch.constant.int 512
    %int64_17 = torch.constant.int 64
    %12 = torch.prim.ListConstruct %int1_13, %int2_14, %int4_15, %int512_16, %int64_17 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %false_18 = torch.constant.bool false
    %13 = torch.aten.expand %11, %12, %false_18 : !torch.vtensor<[1,2,1,512,64],f32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[1,2,4,512,64],f32>
    %int1_19 = torch.constant.int 1
    %int8_20 = torch.constant.int 8
    %int512_21 = torch.constant.int 512
    %int64_22 = torch.constant.int 64
    %14 = torch.prim.ListConstruct %int1_19, %int8_20, %int512_21, %int64_22 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %15 = torch.aten.reshape %13, %14 : !torch.vtensor<[1,2,4,512,64],f32>, !torch.list<int> -> !torch.vtensor<[1,8,512,64],f32>
    %16 = torch.aten.matmul %10, %15 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[1,8,512,64],f32> -> !torch.vtensor<[1,8,512,64],f32>
    return %16 : !torch.vtensor<[1,8,512,64],f32>
  }
}
