func.func @f(%a0: !torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4],si64> {
  %d = torch.constant.int 2
  %k = torch.constant.bool false
  %y = torch.aten.argmax %a0, %d, %k : !torch.vtensor<[4,8],f32>, !torch.int, !torch.bool -> !torch.vtensor<[4],si64>
  return %y : !torch.vtensor<[4],si64>
}
