{
  "version": 1,
  "signatures": [
    { "key_id": "1efb774d1dc6d282b925de72ad649df0a45a66cc0f123d5735f6bc57b6bca150", "signature": "T3AsZfX3mn4vdWUJ5aqhWHq0pL52zxRYajZzz/zaRQOYTnVyyiygxaRcZ4BWMsncs/DBpO+DT8UQ6BHDg+1gDQ==" }
  ]
}
