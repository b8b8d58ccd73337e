# What one key that signs requests needs: it signs, with a text that is given whole and
# a form that is fixed. It decrypts nothing, and is not exported. PATH stands for the
# engine's path of the key.
path "PATH" {
  capabilities        = ["create", "update"]
  required_parameters = ["input"]
  allowed_parameters = {
    "input"                = []
    "hash_algorithm"       = ["sha2-256"]
    "marshaling_algorithm" = ["jws"]
    "signature_algorithm"  = ["pkcs1v15"]
  }
}
