{
  "version": 1,
  "signatures": [
    { "key_id": "1efb774d1dc6d282b925de72ad649df0a45a66cc0f123d5735f6bc57b6bca150", "signature": "FeXFCpQ0UURplu5IdH4TPnwPEzG1bKhTbu2zRAj1wM0Kt6CJJM4sMjrGq510pXQKQAQ8OZEK+fcxpkusZ+CZDA==" }
  ]
}
