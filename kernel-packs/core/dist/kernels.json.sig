{
  "version": 1,
  "signatures": [
    { "key_id": "1efb774d1dc6d282b925de72ad649df0a45a66cc0f123d5735f6bc57b6bca150", "signature": "+ctqZomQQOeE6gYICkeuINR+QlY0+GxVhZAwuEoKpRluYdCXUyDIBMjmv+SA6yqPk7EyB9HL7UjFgZQcynReCQ==" }
  ]
}
