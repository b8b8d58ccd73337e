# What one certificate of SSH needs: the engine signs a key of the broker's under one
# role, for the principals and the time that broker.hcl says, with a key id that names
# the tenant. It asks for no extension, so that the certificate has no terminal and no
# forwarding; what it is bound to is in critical_options. It never makes a key. MOUNT,
# ROLE, PRINCIPALS, TTL and KEYID stand for what broker.hcl says.
path "MOUNT/sign/ROLE" {
  capabilities        = ["create", "update"]
  required_parameters = ["public_key", "cert_type", "valid_principals", "ttl", "key_id", "critical_options"]
  allowed_parameters = {
    "public_key"       = []
    "cert_type"        = ["user"]
    "valid_principals" = ["PRINCIPALS"]
    "ttl"              = ["TTL"]
    "key_id"           = ["KEYID *"]
    "critical_options" = []
  }
}
