{
  "version": 1,
  "signatures": [
    { "key_id": "1efb774d1dc6d282b925de72ad649df0a45a66cc0f123d5735f6bc57b6bca150", "signature": "DsyJtsSh+Hl9EgQLSwgaeQAGSs+nfMwdwljc419iUWV7xwwoTMvPRxSK20sCIDoI9T9VsCahO3AKXnCFC5lYBA==" }
  ]
}
