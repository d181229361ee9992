module {
  func.func @main(%arg0: !torch.vtensor<[1,8,512,64],f32>, %arg1: !torch.vtensor<[1,8,512,64],f32>, %arg2: !torch.vtensor<[1,8,512,64],f32>) -> !torch.vtensor<[1,8,512,64],f32> {
    %int8 = torch.constant.int 8
    %int-1 = torch.constant.int -1
    %int64 = torch.constant.int 64
    %0 = torch.prim.ListConstruct %int8, %int-1, %int64 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %1 = torch.aten.view %arg0, %0 : !torch.vtensor<[1,8,512,64],f32>, !torch.list<int> -> !torch.vtensor<[8,512,64],f32>
    %int8_0 = torch.constant.int 8
    %int-1_1 = torch.constant.int -1
    %int64_2 = torch.constant.int 64
    %2 = torch.prim.ListConstruct %int8_0, %int-1_1, %int64_2 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %3 = torch.aten.view %arg1, %2 : !torch.vtensor<[1,8,512,64],f32>, !torch.list<int> -> !torch.vtensor<[8,512,64],f32>
    %int8_3 = torch.constant.int 8
    %int-1_4 = torch.constant.int -1
    %int64_5 = torch.constant.int 64
    %4 = torch.prim.ListConstruct %int8_3, %int-1_4, %int64_5 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %5 = torch.aten.view %arg2, %4 : !torch.vtensor<[1,8,512,64],f32>, !torch.list<int> -> !torch.vtensor<[8,512,64],f32>
    %int0 = torch.constant.int 0
    %int2 = torch.constant.int 2
    %int1 = torch.constant.int 1
    %6 = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %7 = torch.aten.permute %3, %6 : !torch.vtensor<[8,512,64],f32>, !torch.list<int> -> !torch.vtensor<[8,64,512],f32>
    %8 = torch.aten.bmm %1, %7 : !torch.vtensor<[8,512,64],f32>, !torch.vtensor<[8,64,512],f32> -> !torch.vtensor<[8,512,512],f32>
    %float1.250000e-01 = torch.constant.float 1.250000e-01
    %9 = torch.aten.mul.Scalar %8, %float1.250000e-01 : !torch.vtensor<[8,512,512],f32>, !torch.float -> !torch.vtensor<[8,512,512],f32>
    %int-1_6 = torch.constant.int -1
    %false = torch.constant.bool false
    %10 = torch.aten._softmax %9, %int-1_6, %false : !torch.vtensor<[8,512,512],f32>, !torch.int, !torch.bool -> !torch.vtensor<[8,512,512],f32>
    %11 = torch.aten.bmm %10, %5 : !torch.vtensor<[8,512,512],f32>, !torch.vtensor<[8,512,64],f32> -> !torch.vtensor<[8,512,64],f32>
    %int1_7 = torch.constant.int 1
    %int8_8 = torch.constant.int 8
    %int512 = torch.constant.int 512
    %int64_9 = torch.constant.int 64
    %12 = torch.prim.ListConstruct %int1_7, %int8_8, %int512, %int64_9 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %13 = torch.aten.view %11, %12 : !torch.vtensor<[8,512,64],f32>, !torch.list<int> -> !torch.vtensor<[1,8,512,64],f32>
    return %13 : !torch.vtensor<[1,8,512,64],f32>
  }
}
