module {
  func.func @main(%arg0: !torch.vtensor<[512,1024],f16>, %arg1: !torch.vtensor<[512,2048],f16>, %arg2: !torch.vtensor<[2048],f32>) -> !torch.vtensor<[1024],f32> {
    %int0 = torch.constant.int 0
    %int1 = torch.constant.int 1
    %0 = torch.aten.transpose.int %arg0, %int0, %int1 : !torch.vtensor<[512,1024],f16>, !torch.int, !torch.int -> !torch.vtensor<[1024,512],f16>
    %1 = torch.aten.mm %0, %arg1 : !torch.vtensor<[1024,512],f16>, !torch.vtensor<[512,2048],f16> -> !torch.vtensor<[1024,2048],f16>
    %none = torch.constant.none
    %none_0 = torch.constant.none
    %int5 = torch.constant.int 5
    %cpu = torch.constant.device "cpu"
    %int0_1 = torch.constant.int 0
    torch.aten._assert_tensor_metadata %1, %none, %none_0, %int5, %cpu, %int0_1 : !torch.vtensor<[1024,2048],f16>, !torch.none, !torch.none, !torch.int, !torch.Device, !torch.int
    %int6 = torch.constant.int 6
    %false = torch.constant.bool false
    %false_2 = torch.constant.bool false
    %none_3 = torch.constant.none
    %2 = torch.aten.to.dtype %1, %int6, %false, %false_2, %none_3 : !torch.vtensor<[1024,2048],f16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !torch.vtensor<[1024,2048],f32>
    %3 = torch.aten.mv %2, %arg2 : !torch.vtensor<[1024,2048],f32>, !torch.vtensor<[2048],f32> -> !torch.vtensor<[1024],f32>
    %4 = torch.aten.relu %3 : !torch.vtensor<[1024],f32> -> !torch.vtensor<[1024],f32>
    return %4 : !torch.vtensor<[1024],f32>
  }
}
