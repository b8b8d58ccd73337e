# One agent may read forecasts, and nothing below /v1/admin. The first permission that
# matches decides; a request that none matches is denied.
Kind = "service-intentions"
Name = "weather"
Sources = [
  {
    Name = "agent-assistant"
    Permissions = [
      {
        Action = "deny"
        HTTP   = { PathPrefix = "/v1/admin" }
      },
      {
        Action = "allow"
        HTTP = {
          PathPrefix = "/v1/"
          Methods    = ["GET"]
        }
      },
    ]
  },
]
