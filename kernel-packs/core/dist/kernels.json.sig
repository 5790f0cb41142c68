{
  "version": 1,
  "signatures": [
    { "key_id": "1efb774d1dc6d282b925de72ad649df0a45a66cc0f123d5735f6bc57b6bca150", "signature": "BWSdOJd+LJmz2RvADDhIw2S/PkKQcDHMazeFS0ebJU2CVMypQRGzXDEXBN7qENqQ+SY8swsiJjSB0Gm3TKGpCw==" }
  ]
}
