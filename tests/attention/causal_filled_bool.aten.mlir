module {
  func.func @main(%arg0: !torch.vtensor<[1,8,512,64],f32>, %arg1: !torch.vtensor<[1,8,512,64],f32>, %arg2: !torch.vtensor<[1,8,512,64],f32>) -> !torch.vtensor<[1,8,512,64],f32> {
    %int512 = torch.constant.int 512
    %int512_0 = torch.constant.int 512
    %0 = torch.prim.ListConstruct %int512, %int512_0 : (!torch.int, !torch.int) -> !torch.list<int>
    %int11 = torch.constant.int 11
    %none = torch.constant.none
    %cpu = torch.constant.device "cpu"
    %false = torch.constant.bool false
    %1 = torch.aten.ones %0, %int11, %none, %cpu, %false : !torch.list<int>, !torch.int, !torch.none, !torch.Device, !torch.bool -> !torch.vtensor<[512,512],i1>
    %int1 = torch.constant.int 1
    %2 = torch.aten.triu %1, %int1 : !torch.vtensor<[512,512],i1>, !torch.int -> !torch.vtensor<[512,512],i1>
    %int2 = torch.constant.int 2
    %int3 = torch.constant.int 3
    %3 = torch.aten.transpose.int %arg1, %int2, %int3 : !torch.vtensor<[1,8,512,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,8,64,512],f32>
    %4 = torch.aten.matmul %arg0, %3 : !torch.vtensor<[1,8,512,64],f32>, !torch.vtensor<[1,8,64,512],f32> -> !torch.vtensor<[1,8,512,512],f32>
    %float8.000000e00 = torch.constant.float 8.000000e+00
    %5 = torch.aten.div.Scalar %4, %float8.000000e00 : !torch.vtensor<[1,8,512,512],f32>, !torch.float -> !torch.vtensor<[1,8,512,512],f32>
    %float-Inf = torch.constant.float 0xFFF0000000000000
    %6 = torch.aten.masked_fill.Scalar %5, %2, %float-Inf : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[512,512],i1>, !torch.float -> !torch.vtensor<[1,8,512,512],f32>
    %int-1 = torch.constant.int -1
    %none_1 = torch.constant.none
    %7 = torch.aten.softmax.int %6, %int-1, %none_1 : !torch.vtensor<[1,8,512,512],f32>, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,512],f32>
    %8 = torch.aten.matmul %7, %arg2 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[1,8,512,64],f32> -> !torch.vtensor<[1,8,512,64],f32>
    return %8 : !torch.vtensor<[1,8,512,64],f32>
  }
}
