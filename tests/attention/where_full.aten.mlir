module {
  func.func @main(%arg0: !torch.vtensor<[1,8,512,64],f32>, %arg1: !torch.vtensor<[1,8,512,64],f32>, %arg2: !torch.vtensor<[1,8,512,64],f32>, %arg3: !torch.vtensor<[512,512],i1>) -> !torch.vtensor<[1,8,512,64],f32> {
    %int-1 = torch.constant.int -1
    %int-2 = torch.constant.int -2
    %0 = torch.aten.transpose.int %arg1, %int-1, %int-2 : !torch.vtensor<[1,8,512,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,8,64,512],f32>
    %1 = torch.aten.matmul %arg0, %0 : !torch.vtensor<[1,8,512,64],f32>, !torch.vtensor<[1,8,64,512],f32> -> !torch.vtensor<[1,8,512,512],f32>
    %2 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %float8.000000e00 = torch.constant.float 8.000000e+00
    %none = torch.constant.none
    %none_0 = torch.constant.none
    %cpu = torch.constant.device "cpu"
    %false = torch.constant.bool false
    %3 = torch.aten.full %2, %float8.000000e00, %none, %none_0, %cpu, %false : !torch.list<int>, !torch.float, !torch.none, !torch.none, !torch.Device, !torch.bool -> !torch.vtensor<[],f32>
    %4 = torch.aten.div.Tensor %1, %3 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[1,8,512,512],f32>
    %int0 = torch.constant.int 0
    %5 = torch.aten.unsqueeze %arg3, %int0 : !torch.vtensor<[512,512],i1>, !torch.int -> !torch.vtensor<[1,512,512],i1>
    %int1 = torch.constant.int 1
    %6 = torch.aten.unsqueeze %5, %int1 : !torch.vtensor<[1,512,512],i1>, !torch.int -> !torch.vtensor<[1,1,512,512],i1>
    %7 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %float-3.402820e38 = torch.constant.float -3.4028234663852886E+38
    %none_1 = torch.constant.none
    %none_2 = torch.constant.none
    %cpu_3 = torch.constant.device "cpu"
    %false_4 = torch.constant.bool false
    %8 = torch.aten.full %7, %float-3.402820e38, %none_1, %none_2, %cpu_3, %false_4 : !torch.list<int>, !torch.float, !torch.none, !torch.none, !torch.Device, !torch.bool -> !torch.vtensor<[],f32>
    %9 = torch.aten.where.self %6, %4, %8 : !torch.vtensor<[1,1,512,512],i1>, !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[1,8,512,512],f32>
    %int-1_5 = torch.constant.int -1
    %none_6 = torch.constant.none
    %10 = torch.aten.softmax.int %9, %int-1_5, %none_6 : !torch.vtensor<[1,8,512,512],f32>, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,512],f32>
    %none_7 = torch.constant.none
    %none_8 = torch.constant.none
    %int6 = torch.constant.int 6
    %cpu_9 = torch.constant.device "cpu"
    %int0_10 = torch.constant.int 0
    torch.aten._assert_tensor_metadata %10, %none_7, %none_8, %int6, %cpu_9, %int0_10 : !torch.vtensor<[1,8,512,512],f32>, !torch.none, !torch.none, !torch.int, !torch.Device, !torch.int
    %int6_11 = torch.constant.int 6
    %false_12 = torch.constant.bool false
    %false_13 = torch.constant.bool false
    %none_14 = torch.constant.none
    %11 = torch.aten.to.dtype %10, %int6_11, %false_12, %false_13, %none_14 : !torch.vtensor<[1,8,512,512],f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !torch.vtensor<[1,8,512,512],f32>
    %12 = torch.aten.matmul %11, %arg2 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[1,8,512,64],f32> -> !torch.vtensor<[1,8,512,64],f32>
    return %12 : !torch.vtensor<[1,8,512,64],f32>
  }
}
