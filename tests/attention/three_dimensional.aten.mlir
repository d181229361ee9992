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
    %int1 = torch.constant.int 1
    %int2 = torch.constant.int 2
    %6 = torch.aten.transpose.int %3, %int1, %int2 : !torch.vtensor<[8,512,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[8,64,512],f32>
    %7 = torch.aten.bmm %1, %6 : !torch.vtensor<[8,512,64],f32>, !torch.vtensor<[8,64,512],f32> -> !torch.vtensor<[8,512,512],f32>
    %float8.000000e00 = torch.constant.float 8.000000e+00
    %8 = torch.aten.div.Scalar %7, %float8.000000e00 : !torch.vtensor<[8,512,512],f32>, !torch.float -> !torch.vtensor<[8,512,512],f32>
    %int-1_6 = torch.constant.int -1
    %none = torch.constant.none
    %9 = torch.aten.softmax.int %8, %int-1_6, %none : !torch.vtensor<[8,512,512],f32>, !torch.int, !torch.none -> !torch.vtensor<[8,512,512],f32>
    %10 = torch.aten.bmm %9, %5 : !torch.vtensor<[8,512,512],f32>, !torch.vtensor<[8,512,64],f32> -> !torch.vtensor<[8,512,64],f32>
    %int1_7 = torch.constant.int 1
    %int8_8 = torch.constant.int 8
    %int512 = torch.constant.int 512
    %int64_9 = torch.constant.int 64
    %11 = torch.prim.ListConstruct %int1_7, %int8_8, %int512, %int64_9 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %12 = torch.aten.view %10, %11 : !torch.vtensor<[8,512,64],f32>, !torch.list<int> -> !torch.vtensor<[1,8,512,64],f32>
    return %12 : !torch.vtensor<[1,8,512,64],f32>
  }
}
