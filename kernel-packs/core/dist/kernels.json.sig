{
  "version": 1,
  "signatures": [
    { "key_id": "1efb774d1dc6d282b925de72ad649df0a45a66cc0f123d5735f6bc57b6bca150", "signature": "wx7NRixNVP8SHomdJ1ABe/3blG2XuNfLwX6/5OW4DBl+2YLD/X48nh45PSJ8x6P4PvUenmTsV2iQA+jrNtmcAQ==" }
  ]
}
