# What a grant may do beside reading its own credentials: end itself, and make the
# credential of one action. That is a batch token, a child of the grant that ends with it, with one of
# the grant's own policies, for a minute. Whatever is not named here is refused:
# another type, no parent, an id, a role, metadata, a longer time.
path "auth/token/create" {
  capabilities        = ["create", "update"]
  required_parameters = ["type", "policies", "ttl", "no_default_policy"]
  allowed_parameters = {
    "type"              = ["batch"]
    "policies"          = ["bivouac-use-*"]
    "ttl"               = ["60s"]
    "no_default_policy" = [true]
  }
}

# A broker that finds another token named in the index ends the grant's own with it.
path "auth/token/revoke-self" {
  capabilities = ["update"]
}
