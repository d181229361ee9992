func.func @f(%a0: !torch.vtensor<[4,8],complex<f32>>, %a1: !torch.vtensor<[8,16],complex<f32>>) -> !torch.vtensor<[4,16],complex<f32>> {
  %c = torch.aten.mm %a0, %a1 : !torch.vtensor<[4,8],complex<f32>>, !torch.vtensor<[8,16],complex<f32>> -> !torch.vtensor<[4,16],complex<f32>>
  return %c : !torch.vtensor<[4,16],complex<f32>>
}
