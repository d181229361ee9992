module {
  func.func @main(%arg0: !torch.vtensor<[1,8,512,64],f32>, %arg1: !torch.vtensor<[1,2,512,64],f32>, %arg2: !torch.vtensor<[1,2,512,64],f32>) -> !torch.vtensor<[1,8,512,64],f32> {
    %int512 = torch.constant.int 512
    %int512_0 = torch.constant.int 512
    %0 = torch.prim.ListConstruct %int512, %int512_0 : (!torch.int, !torch.int) -> !torch.list<int>
    %float-Inf = torch.constant.float 0xFFF0000000000000
    %none = torch.constant.none
    %none_1 = torch.constant.none
    %cpu = torch.constant.device "cpu"
    %false = torch.constant.bool false
    %1 = torch.aten.full %0, %float-Inf, %none, %none_1, %cpu, %false : !torch.list<int>, !torch.float, !torch.none, !torch.none, !torch.Device, !torch.bool -> !torch.vtensor<[512,512],f32>
    %int1 = torch.constant.int 1
    %2 = torch.aten.triu %1, %int1 : !torch.vtensor<[512,512],f32>, !torch.int -> !torch.vtensor<[512,512],f32>
    %int4 = torch.constant.int 4
    %int1_2 = torch.constant.int 1
    %none_3 = torch.constant.none
    %3 = torch.aten.repeat_interleave.self_int %arg1, %int4, %int1_2, %none_3 : !torch.vtensor<[1,2,512,64],f32>, !torch.int, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,64],f32>
    %int2 = torch.constant.int 2
    %int3 = torch.constant.int 3
    %4 = torch.aten.transpose.int %3, %int2, %int3 : !torch.vtensor<[1,8,512,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,8,64,512],f32>
    %5 = torch.aten.matmul %arg0, %4 : !torch.vtensor<[1,8,512,64],f32>, !torch.vtensor<[1,8,64,512],f32> -> !torch.vtensor<[1,8,512,512],f32>
    %float8.000000e00 = torch.constant.float 8.000000e+00
    %6 = torch.aten.div.Scalar %5, %float8.000000e00 : !torch.vtensor<[1,8,512,512],f32>, !torch.float -> !torch.vtensor<[1,8,512,512],f32>
    %int1_4 = torch.constant.int 1
    %7 = torch.aten.add.Tensor %6, %2, %int1_4 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[512,512],f32>, !torch.int -> !torch.vtensor<[1,8,512,512],f32>
    %int-1 = torch.constant.int -1
    %none_5 = torch.constant.none
    %8 = torch.aten.softmax.int %7, %int-1, %none_5 : !torch.vtensor<[1,8,512,512],f32>, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,512],f32>
    %int4_6 = torch.constant.int 4
    %int1_7 = torch.constant.int 1
    %none_8 = torch.constant.none
    %9 = torch.aten.repeat_interleave.self_int %arg2, %int4_6, %int1_7, %none_8 : !torch.vtensor<[1,2,512,64],f32>, !torch.int, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,64],f32>
    %10 = torch.aten.matmul %8, %9 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[1,8,512,64],f32> -> !torch.vtensor<[1,8,512,64],f32>
    return %10 : !torch.vtensor<[1,8,512,64],f32>
  }
}
