# What one credential of one tenant needs: it is read. The name of the policy is
# bivouac-use-<tenant>-<credential>; TENANT and CREDENTIAL stand for the two.
path "bivouac-credentials/data/TENANT/CREDENTIAL" {
  capabilities = ["read"]
}
