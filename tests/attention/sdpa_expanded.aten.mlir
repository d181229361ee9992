module {
  func.func @main(%arg0: !torch.vtensor<[1,8,512,64],f32>, %arg1: !torch.vtensor<[1,2,512,64],f32>, %arg2: !torch.vtensor<[1,2,512,64],f32>) -> !torch.vtensor<[1,8,512,64],f32> {
    %int2 = torch.constant.int 2
    %0 = torch.aten.unsqueeze %arg1, %int2 : !torch.vtensor<[1,2,512,64],f32>, !torch.int -> !torch.vtensor<[1,2,1,512,64],f32>
    %int1 = torch.constant.int 1
    %int2_0 = torch.constant.int 2
    %int4 = torch.constant.int 4
    %int512 = torch.constant.int 512
    %int64 = torch.constant.int 64
    %1 = torch.prim.ListConstruct %int1, %int2_0, %int4, %int512, %int64 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %2 = torch.aten.expand %0, %1, %false : !torch.vtensor<[1,2,1,512,64],f32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[1,2,4,512,64],f32>
    %int1_1 = torch.constant.int 1
    %int8 = torch.constant.int 8
    %int512_2 = torch.constant.int 512
    %int64_3 = torch.constant.int 64
    %3 = torch.prim.ListConstruct %int1_1, %int8, %int512_2, %int64_3 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %4 = torch.aten.reshape %2, %3 : !torch.vtensor<[1,2,4,512,64],f32>, !torch.list<int> -> !torch.vtensor<[1,8,512,64],f32>
    %int2_4 = torch.constant.int 2
    %5 = torch.aten.unsqueeze %arg2, %int2_4 : !torch.vtensor<[1,2,512,64],f32>, !torch.int -> !torch.vtensor<[1,2,1,512,64],f32>
    %int1_5 = torch.constant.int 1
    %int2_6 = torch.constant.int 2
    %int4_7 = torch.constant.int 4
    %int512_8 = torch.constant.int 512
    %int64_9 = torch.constant.int 64
    %6 = torch.prim.ListConstruct %int1_5, %int2_6, %int4_7, %int512_8, %int64_9 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %false_10 = torch.constant.bool false
    %7 = torch.aten.expand %5, %6, %false_10 : !torch.vtensor<[1,2,1,512,64],f32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[1,2,4,512,64],f32>
    %int1_11 = torch.constant.int 1
    %int8_12 = torch.constant.int 8
    %int512_13 = torch.constant.int 512
    %int64_14 = torch.constant.int 64
    %8 = torch.prim.ListConstruct %int1_11, %int8_12, %int512_13, %int64_14 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %9 = torch.aten.reshape %7, %8 : !torch.vtensor<[1,2,4,512,64],f32>, !torch.list<int> -> !torch.vtensor<[1,8,512,64],f32>
    %none = torch.constant.none
    %float0.000000e00 = torch.constant.float 0.000000e+00
    %true = torch.constant.bool true
    %none_15 = torch.constant.none
    %false_16 = torch.constant.bool false
    %10 = torch.aten.scaled_dot_product_attention %arg0, %4, %9, %none, %float0.000000e00, %true, %none_15, %false_16 : !torch.vtensor<[1,8,512,64],f32>, !torch.vtensor<[1,8,512,64],f32>, !torch.vtensor<[1,8,512,64],f32>, !torch.none, !torch.float, !torch.bool, !torch.none, !torch.bool -> !torch.vtensor<[1,8,512,64],f32>
    return %10 : !torch.vtensor<[1,8,512,64],f32>
  }
}
