module {
  func.func @main(%arg0: !torch.vtensor<[512,1024],f16>, %arg1: !torch.vtensor<[512,2048],f16>, %arg2: !torch.vtensor<[2048],f32>) -> !torch.vtensor<[1024],f32> {
    %int1 = torch.constant.int 1
    %int0 = torch.constant.int 0
    %0 = torch.prim.ListConstruct %int1, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
    %1 = torch.aten.permute %arg0, %0 : !torch.vtensor<[512,1024],f16>, !torch.list<int> -> !torch.vtensor<[1024,512],f16>
    %2 = torch.aten.mm %1, %arg1 : !torch.vtensor<[1024,512],f16>, !torch.vtensor<[512,2048],f16> -> !torch.vtensor<[1024,2048],f16>
    %none = torch.constant.none
    %none_0 = torch.constant.none
    %int5 = torch.constant.int 5
    %cpu = torch.constant.device "cpu"
    %int0_1 = torch.constant.int 0
    torch.aten._assert_tensor_metadata %2, %none, %none_0, %int5, %cpu, %int0_1 : !torch.vtensor<[1024,2048],f16>, !torch.none, !torch.none, !torch.int, !torch.Device, !torch.int
    %int6 = torch.constant.int 6
    %none_2 = torch.constant.none
    %none_3 = torch.constant.none
    %none_4 = torch.constant.none
    %false = torch.constant.bool false
    %none_5 = torch.constant.none
    %3 = torch.aten._to_copy %2, %int6, %none_2, %none_3, %none_4, %false, %none_5 : !torch.vtensor<[1024,2048],f16>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[1024,2048],f32>
    %4 = torch.aten.mul.Tensor %3, %arg2 : !torch.vtensor<[1024,2048],f32>, !torch.vtensor<[2048],f32> -> !torch.vtensor<[1024,2048],f32>
    %int1_6 = torch.constant.int 1
    %5 = torch.prim.ListConstruct %int1_6 : (!torch.int) -> !torch.list<int>
    %false_7 = torch.constant.bool false
    %none_8 = torch.constant.none
    %6 = torch.aten.sum.dim_IntList %4, %5, %false_7, %none_8 : !torch.vtensor<[1024,2048],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[1024],f32>
    %7 = torch.aten.relu %6 : !torch.vtensor<[1024],f32> -> !torch.vtensor<[1024],f32>
    return %7 : !torch.vtensor<[1024],f32>
  }
}
