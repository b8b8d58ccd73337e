# What the server's token may do in Consul, where server.hcl has service {}: be the service,
# and have its leaf. bivouac consul setup makes it where broker.hcl has service {}, too.
service "bivouac-server" {
  policy     = "write"
  intentions = "read"
}
