func.func @f(%a0: !torch.vtensor<[4,8],bf16>, %a1: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %c = torch.aten.mm %a0, %a1 : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %c : !torch.vtensor<[4,16],bf16>
}
