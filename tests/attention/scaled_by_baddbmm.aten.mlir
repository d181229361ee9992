module {
  func.func @main(%arg0: !torch.vtensor<[1,8,512,64],f32>, %arg1: !torch.vtensor<[1,8,512,64],f32>, %arg2: !torch.vtensor<[1,8,512,64],f32>) -> !torch.vtensor<[1,8,512,64],f32> {
    %int8 = torch.constant.int 8
    %int-1 = torch.constant.int -1
    %int64 = torch.constant.int 64
    %0 = torch.prim.ListConstruct %int8, %int-1, %int64 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %1 = torch.aten.reshape %arg0, %0 : !torch.vtensor<[1,8,512,64],f32>, !torch.list<int> -> !torch.vtensor<[8,512,64],f32>
    %int8_0 = torch.constant.int 8
    %int-1_1 = torch.constant.int -1
    %int64_2 = torch.constant.int 64
    %2 = torch.prim.ListConstruct %int8_0, %int-1_1, %int64_2 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %3 = torch.aten.reshape %arg1, %2 : !torch.vtensor<[1,8,512,64],f32>, !torch.list<int> -> !torch.vtensor<[8,512,64],f32>
    %int8_3 = torch.constant.int 8
    %int-1_4 = torch.constant.int -1
    %int64_5 = torch.constant.int 64
    %4 = torch.prim.ListConstruct %int8_3, %int-1_4, %int64_5 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %5 = torch.aten.reshape %arg2, %4 : !torch.vtensor<[1,8,512,64],f32>, !torch.list<int> -> !torch.vtensor<[8,512,64],f32>
    %int8_6 = torch.constant.int 8
    %int512 = torch.constant.int 512
    %int512_7 = torch.constant.int 512
    %6 = torch.prim.ListConstruct %int8_6, %int512, %int512_7 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %none = torch.constant.none
    %none_8 = torch.constant.none
    %cpu = torch.constant.device "cpu"
    %false = torch.constant.bool false
    %7 = torch.aten.zeros %6, %none, %none_8, %cpu, %false : !torch.list<int>, !torch.none, !torch.none, !torch.Device, !torch.bool -> !torch.vtensor<[8,512,512],f32>
    %int1 = torch.constant.int 1
    %int2 = torch.constant.int 2
    %8 = torch.aten.transpose.int %3, %int1, %int2 : !torch.vtensor<[8,512,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[8,64,512],f32>
    %int0 = torch.constant.int 0
    %float1.250000e-01 = torch.constant.float 1.250000e-01
    %9 = torch.aten.baddbmm %7, %1, %8, %int0, %float1.250000e-01 : !torch.vtensor<[8,512,512],f32>, !torch.vtensor<[8,512,64],f32>, !torch.vtensor<[8,64,512],f32>, !torch.int, !torch.float -> !torch.vtensor<[8,512,512],f32>
    %int-1_9 = torch.constant.int -1
    %none_10 = torch.constant.none
    %10 = torch.aten.softmax.int %9, %int-1_9, %none_10 : !torch.vtensor<[8,512,512],f32>, !torch.int, !torch.none -> !torch.vtensor<[8,512,512],f32>
    %11 = torch.aten.bmm %10, %5 : !torch.vtensor<[8,512,512],f32>, !torch.vtensor<[8,512,64],f32> -> !torch.vtensor<[8,512,64],f32>
    %int1_11 = torch.constant.int 1
    %int8_12 = torch.constant.int 8
    %int512_13 = torch.constant.int 512
    %int64_14 = torch.constant.int 64
    %12 = torch.prim.ListConstruct %int1_11, %int8_12, %int512_13, %int64_14 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %13 = torch.aten.view %11, %12 : !torch.vtensor<[8,512,64],f32>, !torch.list<int> -> !torch.vtensor<[1,8,512,64],f32>
    return %13 : !torch.vtensor<[1,8,512,64],f32>
  }
}
