# From Consul's documentation, for gRPC: the web frontend may call everything but refunds.
Kind = "service-intentions"
Name = "billing"
Sources = [
  {
    Name = "frontend-web"
    Permissions = [
      {
        Action = "deny"
        HTTP   = { PathExact = "/mycompany.BillingService/IssueRefund" }
      },
      {
        Action = "allow"
        HTTP   = { PathPrefix = "/mycompany.BillingService/" }
      },
    ]
  },
  {
    Name = "support-portal"
    Permissions = [
      {
        Action = "allow"
        HTTP   = { PathPrefix = "/mycompany.BillingService/" }
      },
    ]
  },
]
