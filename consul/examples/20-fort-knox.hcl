# From Consul's documentation: one application may see whether the service lives, the
# other everything but its debugging pages.
Kind = "service-intentions"
Name = "fort-knox"
Sources = [
  {
    Name = "contractor-webapp"
    Permissions = [
      {
        Action = "allow"
        HTTP = {
          Methods   = ["GET", "HEAD"]
          PathExact = "/healtz"
        }
      },
    ]
  },
  {
    Name = "admin-dashboard-webapp"
    Permissions = [
      {
        Action = "deny"
        HTTP   = { PathPrefix = "/debugz" }
      },
      {
        Action = "allow"
        HTTP   = { PathPrefix = "/" }
      },
    ]
  },
]
