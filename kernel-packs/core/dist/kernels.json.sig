{
  "version": 1,
  "signatures": [
    { "key_id": "1efb774d1dc6d282b925de72ad649df0a45a66cc0f123d5735f6bc57b6bca150", "signature": "PkmZYAv4Rx4gEBzqWqLrDDhmqaZRfjHeQLUenXe+sw3G9YfsCZoFqs+vRM6XAj2ZlZOrQVXmJ+GfSA47bv9QBw==" }
  ]
}
