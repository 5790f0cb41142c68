{
  "version": 1,
  "signatures": [
    { "key_id": "1efb774d1dc6d282b925de72ad649df0a45a66cc0f123d5735f6bc57b6bca150", "signature": "Kk6C0TrO/6h6G6h42FEyM1LACerLSe/lkbMAHs3iIgntbimPZEYOK7MDqcJImKRgvPjk51ThX/Ff7nA+hlt0Dg==" }
  ]
}
