{
  "version": 1,
  "signatures": [
    { "key_id": "1efb774d1dc6d282b925de72ad649df0a45a66cc0f123d5735f6bc57b6bca150", "signature": "UFu5nFTeNQ2VcgVPO2uVmi2hkgcQptFwNRcCzHjqFSMeG7/rpLKcKis4R++rEGtb1H35W/fXfc6Xa+nEOWq7BA==" }
  ]
}
