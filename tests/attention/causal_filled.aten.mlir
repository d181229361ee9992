module {
  func.func @main(%arg0: !torch.vtensor<[1,8,512,64],f32>, %arg1: !torch.vtensor<[1,8,512,64],f32>, %arg2: !torch.vtensor<[1,8,512,64],f32>) -> !torch.vtensor<[1,8,512,64],f32> {
    %int512 = torch.constant.int 512
    %int512_0 = torch.constant.int 512
    %0 = torch.prim.ListConstruct %int512, %int512_0 : (!torch.int, !torch.int) -> !torch.list<int>
    %none = torch.constant.none
    %none_1 = torch.constant.none
    %cpu = torch.constant.device "cpu"
    %false = torch.constant.bool false
    %1 = torch.aten.ones %0, %none, %none_1, %cpu, %false : !torch.list<int>, !torch.none, !torch.none, !torch.Device, !torch.bool -> !torch.vtensor<[512,512],f32>
    %int0 = torch.constant.int 0
    %2 = torch.aten.tril %1, %int0 : !torch.vtensor<[512,512],f32>, !torch.int -> !torch.vtensor<[512,512],f32>
    %int0_2 = torch.constant.int 0
    %3 = torch.aten.eq.Scalar %2, %int0_2 : !torch.vtensor<[512,512],f32>, !torch.int -> !torch.vtensor<[512,512],i1>
    %int2 = torch.constant.int 2
    %int3 = torch.constant.int 3
    %4 = torch.aten.transpose.int %arg1, %int2, %int3 : !torch.vtensor<[1,8,512,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,8,64,512],f32>
    %5 = torch.aten.matmul %arg0, %4 : !torch.vtensor<[1,8,512,64],f32>, !torch.vtensor<[1,8,64,512],f32> -> !torch.vtensor<[1,8,512,512],f32>
    %float8.000000e00 = torch.constant.float 8.000000e+00
    %6 = torch.aten.div.Scalar %5, %float8.000000e00 : !torch.vtensor<[1,8,512,512],f32>, !torch.float -> !torch.vtensor<[1,8,512,512],f32>
    %float-Inf = torch.constant.float 0xFFF0000000000000
    %7 = torch.aten.masked_fill.Scalar %6, %3, %float-Inf : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[512,512],i1>, !torch.float -> !torch.vtensor<[1,8,512,512],f32>
    %int-1 = torch.constant.int -1
    %none_3 = torch.constant.none
    %8 = torch.aten.softmax.int %7, %int-1, %none_3 : !torch.vtensor<[1,8,512,512],f32>, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,512],f32>
    %9 = torch.aten.matmul %8, %arg2 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[1,8,512,64],f32> -> !torch.vtensor<[1,8,512,64],f32>
    return %9 : !torch.vtensor<[1,8,512,64],f32>
  }
}
