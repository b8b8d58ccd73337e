# The model route "default" of broker.hcl is the destination model-default. Two agents of
# the tenant local, and one of the tenant acme, may call it.
Kind = "service-intentions"
Name = "model-default"
Sources = [
  {
    Name   = "agent-assistant"
    Action = "allow"
  },
  {
    Name   = "agent-coder"
    Action = "allow"
  },
  {
    Name   = "acme--agent-assistant"
    Action = "allow"
  },
]
