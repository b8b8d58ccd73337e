# What one credential that a database engine issues needs: a user is made of one role,
# and its lease ended when the action is over. It ends with the token that asked, after
# a minute, and with the grant above that. MOUNT and ROLE stand for the engine's.
path "MOUNT/creds/ROLE" {
  capabilities = ["read"]
}
path "sys/leases/revoke" {
  capabilities        = ["create", "update"]
  required_parameters = ["lease_id"]
  allowed_parameters = {
    "lease_id" = ["MOUNT/creds/ROLE/*"]
  }
}
