module {
  func.func @main(%arg0: !torch.vtensor<[1,8,512,64],f32>, %arg1: !torch.vtensor<[1,2,512,64],f32>, %arg2: !torch.vtensor<[1,2,512,64],f32>) -> !torch.vtensor<[1,8,512,64],f32> {
    %int4 = torch.constant.int 4
    %int1 = torch.constant.int 1
    %none = torch.constant.none
    %0 = torch.aten.repeat_interleave.self_int %arg1, %int4, %int1, %none : !torch.vtensor<[1,2,512,64],f32>, !torch.int, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,64],f32>
    %int4_0 = torch.constant.int 4
    %int1_1 = torch.constant.int 1
    %none_2 = torch.constant.none
    %1 = torch.aten.repeat_interleave.self_int %arg2, %int4_0, %int1_1, %none_2 : !torch.vtensor<[1,2,512,64],f32>, !torch.int, !torch.int, !torch.none -> !torch.vtensor<[1,8,512,64],f32>
    %none_3 = torch.constant.none
    %float0.000000e00 = torch.constant.float 0.000000e+00
    %true = torch.constant.bool true
    %none_4 = torch.constant.none
    %false = torch.constant.bool false
    %2 = torch.aten.scaled_dot_product_attention %arg0, %0, %1, %none_3, %float0.000000e00, %true, %none_4, %false : !torch.vtensor<[1,8,512,64],f32>, !torch.vtensor<[1,8,512,64],f32>, !torch.vtensor<[1,8,512,64],f32>, !torch.none, !torch.float, !torch.bool, !torch.none, !torch.bool -> !torch.vtensor<[1,8,512,64],f32>
    return %2 : !torch.vtensor<[1,8,512,64],f32>
  }
}
