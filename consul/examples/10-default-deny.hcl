# What no intention names is closed, also where Consul's own default is open.
Kind = "service-intentions"
Name = "*"
Sources = [
  {
    Name   = "*"
    Action = "deny"
  },
]
