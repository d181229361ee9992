func.func @f(%a0: !torch.vtensor<[4,8],si64>, %a1: !torch.vtensor<[8,16],si64>) -> !torch.vtensor<[4,16],si64> {
  %c = torch.aten.mm %a0, %a1 : !torch.vtensor<[4,8],si64>, !torch.vtensor<[8,16],si64> -> !torch.vtensor<[4,16],si64>
  return %c : !torch.vtensor<[4,16],si64>
}
