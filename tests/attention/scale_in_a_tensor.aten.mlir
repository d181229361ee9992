module {
  func.func @main(%arg0: !torch.vtensor<[1,8,512,64],f32>, %arg1: !torch.vtensor<[1,8,512,64],f32>, %arg2: !torch.vtensor<[1,8,512,64],f32>) -> !torch.vtensor<[1,8,512,64],f32> {
    %int-2 = torch.constant.int -2
    %int-1 = torch.constant.int -1
    %0 = torch.aten.transpose.int %arg1, %int-2, %int-1 : !torch.vtensor<[1,8,512,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,8,64,512],f32>
    %1 = torch.aten.matmul %arg0, %0 : !torch.vtensor<[1,8,512,64],f32>, !torch.vtensor<[1,8,64,512],f32> -> !torch.vtensor<[1,8,512,512],f32>
    %2 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %float8.000000e00 = torch.constant.float 8.000000e+00
    %none = torch.constant.none
    %none_0 = torch.constant.none
    %cpu = torch.constant.device "cpu"
    %false = torch.constant.bool false
    %3 = torch.aten.full %2, %float8.000000e00, %none, %none_0, %cpu, %false : !torch.list<int>, !torch.float, !torch.none, !torch.none, !torch.Device, !torch.bool -> !torch.vtensor<[],f32>
    %4 = torch.aten.div.Tensor %1, %3 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[1,8,512,512],f32>
    %int-1_1 = torch.constant.int -1
    %none_2 = torch.constant.none
    %5 = torch.aten.softmax.int %4, %int-1_1, %none_2 : !torch.vtensor<[1,8,512,512],f32>, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,512],f32>
    %6 = torch.aten.matmul %5, %arg2 : !torch.vtensor<[1,8,512,512],f32>, !torch.vtensor<[1,8,512,64],f32> -> !torch.vtensor<[1,8,512,64],f32>
    return %6 : !torch.vtensor<[1,8,512,64],f32>
  }
}
