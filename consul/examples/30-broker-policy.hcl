# What the broker's token may do in Consul: read who may reach its destinations. bivouac
# consul setup makes it of broker.hcl, a rule for each destination and model route.
service "weather" {
  policy     = "read"
  intentions = "read"
}
service "model-default" {
  policy     = "read"
  intentions = "read"
}
# Its own service, where broker.hcl has service {}: to be it, and to have its leaf.
service "bivouac-broker" {
  policy     = "write"
  intentions = "read"
}
