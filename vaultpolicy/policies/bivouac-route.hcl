# One key that the operator bound to a model route or a registry in broker.hcl. The
# broker reads it with its own login; a policy of this exact path must repeat that it
# may also be written, because the more exact path is the one that counts. The policy
# bivouac-routes has one such rule for each key.
path "bivouac-credentials/data/TENANT/CREDENTIAL" {
  capabilities = ["create", "read", "update"]
}
