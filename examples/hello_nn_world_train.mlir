module {
  func.func @main(%arg0: !torch.vtensor<[16,1,28,28],f32>, %arg1: !torch.vtensor<[16],si64>, %arg2: !torch.vtensor<[10,784],f32>, %arg3: !torch.vtensor<[10],f32>) -> (!torch.vtensor<[],f32>, !torch.vtensor<[10,784],f32>, !torch.vtensor<[10],f32>) {
    %int16 = torch.constant.int 16
    %int784 = torch.constant.int 784
    %0 = torch.prim.ListConstruct %int16, %int784 : (!torch.int, !torch.int) -> !torch.list<int>
    %1 = torch.aten.view %arg0, %0 : !torch.vtensor<[16,1,28,28],f32>, !torch.list<int> -> !torch.vtensor<[16,784],f32>
    %2 = torch.aten.t %arg2 : !torch.vtensor<[10,784],f32> -> !torch.vtensor<[784,10],f32>
    %int1 = torch.constant.int 1
    %int1_0 = torch.constant.int 1
    %3 = torch.aten.addmm %arg3, %1, %2, %int1, %int1_0 : !torch.vtensor<[10],f32>, !torch.vtensor<[16,784],f32>, !torch.vtensor<[784,10],f32>, !torch.int, !torch.int -> !torch.vtensor<[16,10],f32>
    %4 = torch.aten.relu %3 : !torch.vtensor<[16,10],f32> -> !torch.vtensor<[16,10],f32>
    %int1_1 = torch.constant.int 1
    %false = torch.constant.bool false
    %5 = torch.aten._log_softmax %4, %int1_1, %false : !torch.vtensor<[16,10],f32>, !torch.int, !torch.bool -> !torch.vtensor<[16,10],f32>
    %none = torch.constant.none
    %int1_2 = torch.constant.int 1
    %int-100 = torch.constant.int -100
    %output, %total_weight = torch.aten.nll_loss_forward %5, %arg1, %none, %int1_2, %int-100 : !torch.vtensor<[16,10],f32>, !torch.vtensor<[16],si64>, !torch.none, !torch.int, !torch.int -> !torch.vtensor<[],f32>, !torch.vtensor<[],f32>
    %none_3 = torch.constant.none
    %none_4 = torch.constant.none
    %none_5 = torch.constant.none
    %false_6 = torch.constant.bool false
    %int1_7 = torch.constant.int 1
    %6 = torch.aten.ones_like %output, %none_3, %none_4, %none_5, %false_6, %int1_7 : !torch.vtensor<[],f32>, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.int -> !torch.vtensor<[],f32>
    %none_8 = torch.constant.none
    %int1_9 = torch.constant.int 1
    %int-100_10 = torch.constant.int -100
    %7 = torch.aten.nll_loss_backward %6, %5, %arg1, %none_8, %int1_9, %int-100_10, %total_weight : !torch.vtensor<[],f32>, !torch.vtensor<[16,10],f32>, !torch.vtensor<[16],si64>, !torch.none, !torch.int, !torch.int, !torch.vtensor<[],f32> -> !torch.vtensor<[16,10],f32>
    %int1_11 = torch.constant.int 1
    %int6 = torch.constant.int 6
    %8 = torch.aten._log_softmax_backward_data %7, %5, %int1_11, %int6 : !torch.vtensor<[16,10],f32>, !torch.vtensor<[16,10],f32>, !torch.int, !torch.int -> !torch.vtensor<[16,10],f32>
    %int0 = torch.constant.int 0
    %9 = torch.aten.threshold_backward %8, %4, %int0 : !torch.vtensor<[16,10],f32>, !torch.vtensor<[16,10],f32>, !torch.int -> !torch.vtensor<[16,10],f32>
    %10 = torch.aten.t %9 : !torch.vtensor<[16,10],f32> -> !torch.vtensor<[10,16],f32>
    %11 = torch.aten.mm %10, %1 : !torch.vtensor<[10,16],f32>, !torch.vtensor<[16,784],f32> -> !torch.vtensor<[10,784],f32>
    %12 = torch.aten.t %11 : !torch.vtensor<[10,784],f32> -> !torch.vtensor<[784,10],f32>
    %int0_12 = torch.constant.int 0
    %13 = torch.prim.ListConstruct %int0_12 : (!torch.int) -> !torch.list<int>
    %true = torch.constant.bool true
    %none_13 = torch.constant.none
    %14 = torch.aten.sum.dim_IntList %9, %13, %true, %none_13 : !torch.vtensor<[16,10],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[1,10],f32>
    %int10 = torch.constant.int 10
    %15 = torch.prim.ListConstruct %int10 : (!torch.int) -> !torch.list<int>
    %16 = torch.aten.view %14, %15 : !torch.vtensor<[1,10],f32>, !torch.list<int> -> !torch.vtensor<[10],f32>
    %17 = torch.aten.t %12 : !torch.vtensor<[784,10],f32> -> !torch.vtensor<[10,784],f32>
    return %output, %17, %16 : !torch.vtensor<[],f32>, !torch.vtensor<[10,784],f32>, !torch.vtensor<[10],f32>
  }
}
