# What the broker's own login may do. It makes, watches and ends grants, and writes
# credentials. It writes no policy, and reads no credential directly but those of
# bivouac-routes. Whoever steals it can all the same make a grant of any credential
# that is opened, for any person, or open one that the index holds, and read with that:
# each leaves its lines in the audit log. It also looks up, renews and revokes every
# token, of whomever, whose accessor it learns.

# its own token, and what it may
path "auth/token/lookup-self" {
  capabilities = ["read"]
}
path "auth/token/renew-self" {
  capabilities = ["update"]
}
path "auth/token/revoke-self" {
  capabilities = ["update"]
}
path "sys/capabilities-self" {
  capabilities = ["update"]
}

# grants: tokens of one role
path "auth/token/create/bivouac-grant" {
  capabilities = ["create", "update"]
  allowed_parameters = {
    "policies"          = []
    "meta"              = []
    "entity_alias"      = ["user-*"]
    "display_name"      = ["grant-*"]
    "no_default_policy" = [true]
  }
}
path "auth/token/lookup-accessor" {
  capabilities = ["update"]
}
path "auth/token/renew-accessor" {
  capabilities = ["update"]
}
path "auth/token/revoke-accessor" {
  capabilities = ["update"]
}

# whether the person behind a grant is disabled
path "identity/entity/id/+" {
  capabilities = ["read"]
}

# whether what a grant shall reach has its policy
path "sys/policies/acl/bivouac-use-*" {
  capabilities = ["read"]
}

# the index of grants
path "bivouac-grants/metadata" {
  capabilities = ["list"]
}
path "bivouac-grants/metadata/" {
  capabilities = ["list"]
}
path "bivouac-grants/metadata/+/" {
  capabilities = ["list"]
}
path "bivouac-grants/metadata/+/+" {
  capabilities = ["read", "delete"]
}
path "bivouac-grants/data/+/+" {
  capabilities = ["create", "read", "update"]
}

# credentials: written, listed and deleted; read only by grants
path "bivouac-credentials/data/+/+" {
  capabilities = ["create", "update"]
}
path "bivouac-credentials/metadata/+/" {
  capabilities = ["list"]
}
path "bivouac-credentials/metadata/+/+" {
  capabilities = ["read", "delete"]
}

# grants are sealed with a key of each person
path "bivouac-transit/encrypt/u-*" {
  capabilities = ["create", "update"]
  allowed_parameters = {
    "plaintext"       = []
    "associated_data" = []
  }
}
path "bivouac-transit/decrypt/u-*" {
  capabilities = ["update"]
}

# receipts
path "bivouac-transit/sign/bivouac-receipts" {
  capabilities = ["update"]
}
path "bivouac-transit/keys/bivouac-receipts" {
  capabilities = ["read"]
}
