# What one client certificate that a PKI engine signs needs: the engine signs a key of
# the broker's under one role, for the name and the time that broker.hcl says. It never
# makes a key. MOUNT and ROLE stand for the engine's; NAME is no rule where the name
# is of whoever acts.
path "MOUNT/sign/ROLE" {
  capabilities        = ["create", "update"]
  required_parameters = ["csr", "common_name", "ttl"]
  allowed_parameters = {
    "csr"         = []
    "common_name" = ["NAME"]
    "ttl"         = ["TTL"]
    "format"      = ["pem"]
  }
}
