# Which server may call the broker, where broker.hcl has service {}. Nobody else may, and
# without this entry no server may.
Kind    = "service-intentions"
Name    = "bivouac-broker"
Sources = [{ Name = "bivouac-server", Action = "allow" }]
